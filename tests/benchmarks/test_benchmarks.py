"""The benchmarks run and print what they promise; what they measure is for a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.benchmarks import bench_gpu
from tests.late.cuda import late_cuda
from tests.tools import ROOT

ADAPTERS = {"adapter.pettingzoo_ratio": 1.5, "adapter.gymnasium_ratio": 1.5}
"""None doubles the cost of what it steps; wide, as neighbours on the machine may disturb a short run."""


@pytest.mark.slow
def test_L2_speed_return_and_rows_trained_are_reported_beside_those_of_the_sequential_reference() -> None:
    command = [sys.executable, "-m", "tests.benchmarks.bench_sequential", "treasure-hunt", "200000", "--pairs", "1"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=220, check=True)
    told = json.loads(ended.stdout)
    for rate in ("env_steps_per_second", "train_steps_per_second"):
        assert told[rate]["ratio"] == pytest.approx(told[rate]["workers"] / told[rate]["sequential"])
    for pair in ("last_return", "rows_trained_per_row_made"):
        assert set(told[pair]) == {"workers", "sequential"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "figures"),
    [
        ("bench_simulator --rounds 1", {"simulator.round_trip_us": 1e6, "simulator.ratio_to_echo": 100}),
        ("bench_rollout --rounds 3", {"async.speedup": 100, "herd.segments": 1e7, **ADAPTERS}),
    ],
)
def test_every_promised_figure_is_printed_as_one_json_object(script: str, figures: dict[str, float]) -> None:
    command = [sys.executable, "-m", *f"tests.benchmarks.{script}".split()]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=True)
    told = json.loads(ended.stdout)
    for name, most in figures.items():
        assert 0 < told[name] < most, f"{name} is {told[name]}"


@pytest.mark.slow
def test_the_table_of_a_gpu_can_be_made_the_moment_there_is_one() -> None:
    """On a device which is not there, but to which and from which everything goes, and by which graphs are captured:
    every figure that is asked for is there, and has been measured."""
    with late_cuda():
        found = bench_gpu.table(rounds=1, tiny=True)
    assert found["device"] == "late"
    told = json.loads(json.dumps(found))
    assert told["reached"].keys() == bench_gpu.WANTED.keys()
    assert all(figure > 0 for figure in told["figures"].values())
    for name in ("mlp", "mlp_16", "lstm", "lstm_4", "iqn"):
        ways = ("bare", "stacked", "branches", "bfloat16")
        times = {way: told["figures"][f"cohort.{name}_ms_{way}"] for way in ways}
        best = min(times["stacked"], times["branches"])
        assert told["figures"][f"cohort.{name}_speedup"] == pytest.approx(times["bare"] / best)
        rounded = told["figures"][f"cohort.{name}_speedup_bfloat16"]
        assert rounded == pytest.approx(times["bare"] / times["bfloat16"])
