"""Cart-poles that are programs of their own, eight of them, learn as those of this process do."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.languages import LANGUAGES, example
from tests.learning.test_presets import check_books
from tests.tools import ROOT, require

pytestmark = pytest.mark.timeout(1000)
EXAMPLE = ROOT / "protocol" / "clients" / "python" / "cartpole.py"


def last(folder: Path, steps: int, program: Sequence[str] = (sys.executable, str(EXAMPLE))) -> float:
    """Mean return of the last 5 % of a run whose carts are started by its actor."""
    command = f"environment.settings.command={shlex.join(program)} {{address}} {{name}}"
    options = ["--steps", str(steps), "--json", "--no-progress", "--run-dir", str(folder), "--set", command]
    ended = subprocess.run(
        [require("rookery"), "train", "external", *options], capture_output=True, text=True, timeout=900, check=False
    )
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    check_books(summary["segments"])
    return float(summary["returns"]["agent"]["last"])


@pytest.mark.learning
def test_eight_carts_from_outside_balance(run_dir: Path) -> None:
    """E10 I7."""
    assert last(run_dir, 300_000) >= 475


@pytest.mark.learning
@pytest.mark.parametrize("language", LANGUAGES)
def test_eight_carts_in_another_language_balance(language: str, tmp_path: Path, run_dir: Path) -> None:
    """E10 I7. In short: tests/flows/test_simulators.py drives a run by both."""
    assert last(run_dir, 300_000, example(language, tmp_path)) >= 475
