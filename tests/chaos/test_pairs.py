"""The short form of a thousand pairs that are started and killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT


@pytest.mark.chaos
def test_of_pairs_that_are_started_and_killed_nothing_stays_G8_B11(memory_dir: Path) -> None:
    """G8, B11: no file, process, descriptor, in whatever order and phase they die."""
    command = [sys.executable, "-m", "tests.chaos.pairs", "--cycles", "12", "--seed", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "at work" in done.stdout
    assert "starting" in done.stdout
    assert list(memory_dir.iterdir()) == []
