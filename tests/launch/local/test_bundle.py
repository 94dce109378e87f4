"""A bundle tells of a run what a report needs, and nothing of its user."""

from __future__ import annotations

import json
import os
import shutil
import stat
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.cli.main import main
from launch.local.bundle import collected, write
from protocol.errors import ConfigurationError
from tests.faults import raises

CONFIG = """
environment: {id: treasure_hunt, copies: 8, settings: {password: canary-01, name: canary-02}}
policy: {algorithm: {name: ppo, learning_rate: 0.001}}
hooks: [{entry: "mine:Tell", settings: {api: canary-03}}]
policies: {left: {start: {path: /home/alice/canary-04/runs/first}}}
"""
LOG = """
2026-01-01 00:00:00,000 - actor-0 - INFO - event=acting quota=3000 agents=2
joining with token=canary05
Authorization: Bearer canary06
{"api_key": "canary07"}
connected to postgres://bob:canary08@db.example.com/x
the page: http://127.0.0.1:31939/#token=canary0959dc57ce77ca
File "/home/alice/canary-10/worlds/hunt.py", line 3, in step
mail canary11@example.com or look at 10.20.30.40 and fe80::1ff:fe23:4567:890a
the run is canary12secretoftherun01, its key r%canary13]?k>Lns:E.o
AWS_SECRET_ACCESS_KEY=canary14/abc
machine canary15host, user canary16user, home /home/alice/canary17
also canary18!mine, and canary21abcdefghijkl0123
"""
KNOWN = "r%canary13]?k>Lns:E.o"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder with what must not be seen in all its parts."""
    folder = tmp_path / "run"
    for name in ("logs", "run-keys", "checkpoints"):
        (folder / name).mkdir(parents=True)
    (folder / "config.yaml").write_text(CONFIG)
    (folder / "logs" / "actor-0.log").write_text("canary19 of long ago\n" * 10 + "x\n" * 200 + LOG)
    (folder / "logs" / "actor-0.out").write_text("")
    (folder / "state.json").write_text('{"secret": "canary20"}')
    (folder / "notes.txt").write_text("canary20")
    (folder / "token").write_text("canary12secretoftherun01\n")
    (folder / "run-keys" / "actor.secret").write_text(KNOWN)
    (folder / "summary.json").write_text(json.dumps({"complete": True, "errors": ["/home/alice/canary-04/x failed"]}))
    monkeypatch.setattr("platform.node", lambda: "canary15host")
    monkeypatch.setattr("getpass.getuser", lambda: "canary16user")
    monkeypatch.setattr("pathlib.Path.home", lambda: Path("/home/alice/canary17"))
    monkeypatch.setenv("MINE", "canary18!mine")
    return folder


def test_nothing_of_the_user_goes_in_and_what_a_report_needs_does(run: Path, tmp_path: Path) -> None:
    files = collected(run, lambda: f"the doctor looked at {run}")
    whole = "".join(f"{name} {text}" for name, text in files.items())
    for secret in ("canary", "alice", "bob", "example.com", "10.20.30.40", "fe80::", str(tmp_path)):
        assert secret not in whole, whole[max(0, whole.find(secret) - 200) :][:400]
    assert [*files] == ["versions.json", "config.json", "summary.json", "findings.txt", "logs/actor-0.log"]
    config = json.loads(files["config.json"])
    assert config["environment"]["id"] == "treasure_hunt"
    assert config["policy"]["algorithm"] == {"name": "ppo", "learning_rate": 0.001}
    assert config["hooks"][0]["entry"] == "mine:Tell"
    assert "event=acting quota=3000 agents=2" in files["logs/actor-0.log"]
    assert "hunt.py" in files["logs/actor-0.log"], "which file it was is told, and not where it lies"
    assert len(files["logs/actor-0.log"].splitlines()) == 200


def test_a_bundle_is_written_once_the_user_says_so_and_only_the_user_may_read_it(run: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.zip"
    arguments = ["doctor", str(run), "--bundle", str(target)]
    shown = CliRunner().invoke(main, arguments, input="n\n")
    assert not target.exists()
    assert "logs/actor-0.log" in shown.output
    assert CliRunner().invoke(main, [*arguments, "--yes"]).exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    with zipfile.ZipFile(target) as archive:
        assert archive.read("config.json")
    with raises(ConfigurationError, "bundle_file_exists"):
        write({}, target)


def test_what_is_no_run_or_too_large_makes_no_bundle(run: Path, tmp_path: Path) -> None:

    with raises(ConfigurationError, "bundle_too_large"):
        write({"noise": os.urandom(6_000_000).hex()}, tmp_path / "large.zip")
    shutil.rmtree(run)
    with raises(ConfigurationError, "folder_without_config"):
        collected(run, str)
    assert [*tmp_path.iterdir()] == []
