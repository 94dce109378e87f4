"""The figures of adapters: both keys, and no adapter that doubles the cost of what it steps."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from tests.benchmarks import adapters
from tests.benchmarks.adapters import overhead


def test_an_adapter_costs_little_beside_the_environment_that_it_steps() -> None:
    """The bounds are wide, as neighbours on the machine may disturb a short run; bench_rollout.py measures."""
    figures = overhead(rounds=3)
    assert figures.keys() == {"adapter.pettingzoo_ratio", "adapter.gymnasium_ratio"}
    assert all(0.2 < ratio < 1.5 for ratio in figures.values())


def test_an_adapters_ratio_is_its_time_over_that_of_what_it_steps() -> None:
    world: Any = SimpleNamespace(reset=lambda seed: None, step=lambda actions: time.sleep(1e-3))
    assert adapters._ratio(world, lambda actions, seed: 1e-3, (5, 1, 1), choices=2, rounds=1) >= 5
