"""The benchmarks run and print what they promise; what they measure is for a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tools import ROOT


@pytest.mark.slow
def test_L2_speed_return_and_rows_trained_are_reported_beside_those_of_the_sequential_reference() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.bench_sequential", "treasure-hunt", "200000", "--pairs", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=True)
    told = json.loads(ended.stdout)
    for rate in ("env_steps_per_second", "train_steps_per_second"):
        assert told[rate]["ratio"] == pytest.approx(told[rate]["workers"] / told[rate]["sequential"])
    for pair in ("last_return", "rows_trained_per_row_made"):
        assert set(told[pair]) == {"workers", "sequential"}
