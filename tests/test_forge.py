"""Commands that tests fork are the commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from launch.local.fork_client import ForkedProcess
from tests.flows import runs
from tests.forge import Forge, forging
from tests.tools import PYTHON_PATH

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds are missing")


def test_a_forked_command_says_and_does_what_one_by_command_line_does(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def said(*arguments: str) -> tuple[int, str, str]:
        done = runs.rookery(*arguments, cwd=tmp_path)
        return done.returncode, done.stdout, done.stderr

    commands = (["presets"], ["train", "nothing.yaml"], ["status", "nowhere"])
    monkeypatch.setattr(runs, "forge", forge)
    with runs.started(["presets"], tmp_path, "presets") as worker:
        assert isinstance(worker.popen, ForkedProcess)
        assert worker.wait() == 0
    forked = [said(*command) for command in commands]
    monkeypatch.setenv("SOMETHING_READ_AT_IMPORT", "1")
    with runs.started(["presets"], tmp_path, "again") as worker:
        assert isinstance(worker.popen, subprocess.Popen)
        assert worker.wait() == 0
    monkeypatch.delenv("SOMETHING_READ_AT_IMPORT")
    monkeypatch.setattr(runs, "forge", None)
    assert forked == [said(*command) for command in commands]
    assert forked[0][0] == 0
    assert forked[1][0] == 2


def test_a_fork_of_it_serves_those_that_have_other_variables(
    forge: Forge, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMETHING_READ_AT_IMPORT", "1")
    with forging({**os.environ, "PYTHONPATH": PYTHON_PATH}, tmp_path / "forge.out", forge) as own:
        assert own is not None
        monkeypatch.setattr(runs, "forge", own)
        with runs.started(["presets"], tmp_path, "presets") as worker:
            assert isinstance(worker.popen, ForkedProcess)
            assert worker.wait() == 0
        begun = [Path(f"/proc/{one.pid}/environ").read_bytes() for one in (own, forge)]
        assert begun[0] == begun[1], "it was started by command line"
    assert (tmp_path / "forge.out").read_text() == ""
