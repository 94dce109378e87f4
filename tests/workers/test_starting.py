"""What a worker's program imports is no business of the garbage collector."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT

PROGRAMS = [path for path in sorted((ROOT / "workers").rglob("*.py")) if "__main__" in path.read_text()]
BARE = ROOT / "workers/environments/simulators/guardian.py"
"""Runs by its path, without this package."""
WITNESS = """
import atexit
import gc
import sys

atexit.register(lambda: print("collects", gc.isenabled(), gc.get_freeze_count() > 10_000, file=sys.stderr))
"""


@pytest.mark.parametrize("path", [path for path in PROGRAMS if path != BARE], ids=lambda path: path.stem)
def test_every_program_says_first_that_all_is_imported(path: Path) -> None:
    *_, last = ast.parse(path.read_text()).body
    assert isinstance(last, ast.If)
    assert ast.unparse(last.test) == "__name__ == '__main__'"
    assert ast.unparse(last.body[0]) == "freeze_startup_objects()"


def witnessed(folder: Path, *arguments: str) -> str:
    """What an interpreter says of its collector when it ends."""
    (folder / "sitecustomize.py").write_text(WITNESS)
    environment = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    command = [sys.executable, *arguments]
    result = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert result.returncode == 0, result.stderr
    return result.stderr.strip()


@pytest.mark.parametrize("command", ["workers.relay --help", "launch --version"])
def test_a_program_collects_garbage_but_not_in_what_it_is_made_of(tmp_path: Path, command: str) -> None:
    assert witnessed(tmp_path, "-P", "-m", *command.split()) == "collects True True"


def test_who_only_imports_workers_keeps_the_collector_of_his_interpreter(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/__init__.py").write_text("import workers")
    (tmp_path / "mine/program.py").write_text("")
    assert witnessed(tmp_path, "-m", "mine.program") == "collects True False"
