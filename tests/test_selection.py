"""What has passed is not run again, and what has not is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import selection
from tests.tools import ROOT

TESTS = """
import os, pathlib, signal

def ran(name):
    with open("ran", "a") as file:
        file.write(name)
    return pathlib.Path("ran").read_text().count(name)

def test_passes():
    ran("a")

def test_fails_at_first():
    assert ran("b") > 1

def test_is_killed_at_first():
    if ran("c") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(folder: Path, *arguments: str, code: int = 0) -> str:
    """The tests that ran, in a run that ends with `code`."""
    (folder / "ran").write_text((folder / "ran").read_text() if (folder / "ran").exists() else "")
    before = len((folder / "ran").read_text())
    (folder / "conftest.py").write_text("from tests import selection\nselection.state = lambda: 'as it is'\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.selection", "-p", "no:cacheprovider", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "said").open("w") as said:
        ended = subprocess.run(command, cwd=folder, env=environment, stdout=said, timeout=300, check=False)
    assert ended.returncode == code, (folder / "said").read_text()
    return (folder / "ran").read_text()[before:]


def test_an_interrupted_run_goes_on_with_what_has_not_passed(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    passed = ["--passed", str(tmp_path / "made" / "passed.jsonl")]
    assert run(tmp_path, *passed, code=-signal.SIGKILL) == "abc"
    with (tmp_path / "made" / "passed.jsonl").open("a") as file:
        file.write('\n{"state": "cut o')
    assert run(tmp_path, *passed) == "bc"
    assert run(tmp_path, *passed) == ""


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_after_its_seconds_no_test_is_begun_and_the_files_are_named(processes: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    assert run(tmp_path, "--seconds", "0", *processes) == ""
    assert "not run for want of time, and run by make test: test_it.py (3)\n" in (tmp_path / "said").read_text()


def test_any_code_that_changes_makes_another_state(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "workers").mkdir()
    states = {selection.state(tmp_path)}
    for name in ("actor.py", "preset.yaml", "client.hpp"):
        (tmp_path / "workers" / name).write_text("1")
        states.add(selection.state(tmp_path))
    (tmp_path / "workers" / "preset.yaml").rename(tmp_path / "workers" / "other.yaml")
    assert len({*states, selection.state(tmp_path)}) == 5
