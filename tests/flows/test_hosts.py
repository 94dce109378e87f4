"""`rookery hosts` with a stand-in for ssh: a whole run on two "machines", a death there, and its end from elsewhere."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from tests.flows import runs
from tests.flows.network import LEFT, network
from tests.tools import require

SSH = """#!/bin/sh
for word; do host=$line; line=$word; done
cd "$MACHINES/$host" && exec sh -c "$line"
"""
SCP = """#!/bin/sh
for last; do :; done
for word; do
  case "$word" in *.public|*.secret|*/run.yaml) cp -p "$word" "$MACHINES/${last%%:*}/${last#*:}" || exit 1;; esac
done
"""


@pytest.mark.chaos
@pytest.mark.slow
def test_up_holds_every_worker_status_tells_of_them_and_down_ends_all(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin", "machines/a", "machines/b"):
        (tmp_path / name).mkdir(parents=True)
    for name, text in (("ssh", SSH), ("scp", SCP)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("MACHINES", str(tmp_path / "machines"))
    common = {"address": LEFT, "rookery": require("rookery")}
    runs.write(runs.config(steps=10_000_000, actors=2), tmp_path)
    path = tmp_path / "hosts.yaml"
    path.write_text(yaml.safe_dump({"run": "tiny.yaml", "hosts": {"a": common, "b": {**common, "actors": 2}}}))
    assert runs.rookery("keys", "new", "keys", cwd=tmp_path).returncode == 0
    with network() as net, runs.started(["hosts", "up", str(path)], tmp_path, "up", net.on("left")) as up:
        run = tmp_path / "machines" / "a" / "runs" / "hosts"
        runs.until(lambda: (run / "metrics.jsonl").exists() and (run / "metrics.jsonl").read_text(), what=up.said)
        members = json.loads((run / "state.json").read_text())["members"]
        runs.kill(next(member["pid"] for member in members if member["role"] == "actor"), signal.SIGKILL)
        runs.until(lambda: "the run's page: http://" in up.said and "return:" in up.said, what="the run is shown")
        runs.until(lambda: "ended with code 137; starting it again" in up.said, what="the death is seen")
        told = runs.rookery("hosts", "status", str(path), cwd=tmp_path).stdout
        assert len(told.splitlines()) == 6
        assert told.count("runs") >= 5
        called = {line.split()[0] for line in told.splitlines()} - {"coordinator"}
        joined = {member["name"] for member in members if member["role"] != "relay"}
        assert {name for name in called if not name.startswith("relay")} == joined
        assert {member["name"] for member in members} <= called, "relays too, as far as they have joined"
        ended = runs.rookery("hosts", "down", str(path), cwd=tmp_path, seconds=120)
        assert ended.stdout == "all have ended\n", ended.stderr
        assert up.wait() == 9, "in order, before all steps were made"
        assert "mean return of an episode" in up.said
        assert "run folder: a:runs/hosts" in up.said
    assert runs.rookery("hosts", "down", str(path), cwd=tmp_path).returncode == 2
    summary = json.loads((run / "summary.json").read_text())
    assert runs.balanced(summary["segments"])
    assert summary["segments"]["unexplained"] == 0
    assert list((run / "checkpoints" / "agent_0").iterdir())
