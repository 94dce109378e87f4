"""What the doctor sees before a run, on machines that cannot carry it."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
from collections import namedtuple
from pathlib import Path

import pytest
import torch
import yaml
from click.testing import CliRunner

from protocol.config.run import parse_run
from protocol.transport.curve import new_keys
from tests.faults import kinds_in, words_in
from workers.metrics.diagnostics import FINDINGS
from workers.tools import preflight
from workers.tools.preflight import CHECKS, Check, RunContext, main

WORLD = {"environment": {"copies": 4, "settings": {"width": 9, "height": 9}}}


def situation(folder: Path, **keys: object) -> RunContext:
    """A small run in `folder`; `keys` of the configuration, or of the situation."""
    own = {name: keys.pop(name) for name in ("host", "base", "keys") if name in keys}
    return RunContext(parse_run({**WORLD, **keys}), folder, **own)  # type: ignore[arg-type]


def found(name: str, of: RunContext) -> Check:
    """What is said of one thing."""
    return next(check for check in preflight.preflight(of) if check.name == name)


def test_a_run_that_can_be_carried_is_ok_in_everything_H1(tmp_path: Path) -> None:
    checks = list(preflight.preflight(situation(tmp_path, num_learner_processes=1)))
    assert [check.name for check in checks] == list(CHECKS)
    assert {check.state for check in checks} <= {"ok", "note"}
    assert "agents agent_0, agent_1" in found("spaces", situation(tmp_path)).says


def test_rings_that_do_not_fit_are_told_before_they_are_made_B12(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(2**20, 2**20 - 4096, 4096))
    check = found("memory", situation(tmp_path))
    assert check.state == "FAILS"
    assert "lower environment.copies" in check.says
    assert found("memory", situation(tmp_path, transport="tcp")).state == "ok"
    assert found("disk", situation(tmp_path)).state == "note"


def test_what_can_be_foreseen_of_learning_is_told_with_the_number_of_updates(tmp_path: Path) -> None:
    check = found("training", situation(tmp_path))
    assert check.state == "ok"
    assert re.search(r"agent_0: about [\d,.]+ updates", check.says)
    sleepy = {"name": "dqn", "target_update": "hard", "target_update_freq": 10**9}
    check = found("training", situation(tmp_path, policy={"algorithm": sleepy}))
    assert check.state == "note"
    assert FINDINGS["target_never_updated"].remedy in check.says


def test_a_port_in_use_is_named(tmp_path: Path, free_port_block: int) -> None:
    assert found("ports", situation(tmp_path, base=free_port_block)).state == "ok"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port_block + 2))
        taken.listen()
        check = found("ports", situation(tmp_path, base=free_port_block))
    assert check.state == "FAILS"
    assert f"port {free_port_block + 2} of 127.0.0.1 cannot be bound" in check.says
    assert found("ports", situation(tmp_path, base=65_530)).state == "FAILS"


def test_keys_that_others_may_read_and_keys_that_are_not_there(tmp_path: Path) -> None:
    new_keys(tmp_path / "keys")
    assert found("keys", situation(tmp_path, keys=tmp_path / "keys")).state == "ok"
    (tmp_path / "keys" / "actor.secret").chmod(0o644)
    check = found("keys", situation(tmp_path, keys=tmp_path / "keys"))
    assert (check.state, kinds_in(check.says)) == ("FAILS", ["key_file_readable_by_others"])
    check = found("keys", situation(tmp_path, keys=tmp_path / "nowhere"))
    assert (check.state, "rookery keys new" in check.says) == ("FAILS", True)


def test_too_few_open_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 4096))
    check = found("limits", situation(tmp_path))
    assert (check.state, "ulimit -n" in check.says) == ("FAILS", True)


def test_a_device_that_is_not_there_and_one_that_is_idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    check = found("device", situation(tmp_path, device="cuda"))
    assert (check.state, kinds_in(check.says)) == ("FAILS", ["device_not_available"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "a GPU")
    check = found("device", situation(tmp_path, device="cpu"))
    assert (check.state, "a GPU is idle" in check.says) == ("note", True)


def test_more_processes_than_cores_and_more_threads_than_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "available_cores", lambda: 2.0)
    check = found("cores", situation(tmp_path, actors=9))
    assert (check.state, "11 processes compute, on 2 cores" in check.says) == ("note", True)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    assert "unset it" in found("cores", situation(tmp_path)).says


def test_a_folder_that_cannot_be_written_and_a_clock_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    assert found("disk", situation(tmp_path / "file" / "run")).state == "FAILS"
    monkeypatch.setattr(preflight.time, "time", lambda: os.stat(tmp_path).st_mtime - 3600)
    check = found("disk", situation(tmp_path))
    assert (check.state, "clock" in check.says) == ("note", True)


def test_a_package_of_a_release_that_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.metadata, "requires", lambda _: ["numpy>=99", "nonesuch>=1", "odd>=1; extra == 'x'"])
    check = found("packages", situation(tmp_path))
    assert check.state == "FAILS"
    assert "nonesuch is missing" in check.says
    assert "numpy is" in check.says
    assert "odd" not in check.says


def test_what_does_not_fit_is_a_finding_of_its_own_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({**WORLD, "policies": {"nobody": {}}}))
    result = CliRunner().invoke(main, [str(path), "--run-dir", str(tmp_path), "--json"])
    assert result.exit_code == 1
    checks = {check["name"]: check for check in json.loads(result.output)["checks"]}
    assert list(checks) == list(CHECKS)
    assert checks["spaces"]["state"] == "FAILS"
    assert kinds_in(checks["spaces"]["says"]) == ["policy_not_used"]
    assert "'nobody'" in words_in(checks["spaces"]["says"])
    assert checks["ports"]["state"] == "ok"


def test_an_algorithm_of_ones_own_is_tried(tmp_path: Path) -> None:
    def said(entry: str) -> Check:
        algorithm = {"entry": f"tests.workers.algorithms.test_own_algorithm:{entry}", "weight": 2}
        return found("losses", situation(tmp_path, policy={"algorithm": algorithm}))

    good, bad = said("Streaming"), said("Failing")
    assert (good.state, "weight=2" in good.says) == ("ok", True)
    assert (bad.state, kinds_in(bad.says)) == ("FAILS", ["algorithm_failed"])


def test_a_network_of_ones_own_is_tried(tmp_path: Path) -> None:
    bad = found("losses", situation(tmp_path, policy={"network": {"encoder": {"entry": "tests.flows.dots:make"}}}))
    assert (bad.state, kinds_in(bad.says)) == ("FAILS", ["network_not_built"])
