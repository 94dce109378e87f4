"""The short form of a thousand pairs that are started and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT

SCRIPT = "from tests.chaos import pairs; {}pairs.main(['--cycles', '{}', '--seed', '1'])"


def _pairs(cycles: int, before: str = "") -> subprocess.CompletedProcess[str]:
    """In a process of its own, which has one thread and may be forked."""
    command = [sys.executable, "-c", SCRIPT.format(before, cycles)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)


@pytest.mark.chaos
def test_of_pairs_that_are_started_and_killed_nothing_stays_G8_B11(memory_dir: Path) -> None:
    """G8, B11: no file, process, descriptor, in whatever order and phase they die."""
    done = _pairs(12)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at work" in done.stdout
    assert "starting" in done.stdout
    assert list(memory_dir.iterdir()) == []


@pytest.mark.chaos
def test_what_stays_of_them_is_found(memory_dir: Path) -> None:
    done = _pairs(2, before="pairs.sweep = lambda run: []; ")
    assert done.returncode == 1
    assert "file left: rookery-run1-" in done.stdout
