"""The figures of adapters: both keys, and no adapter that doubles the cost of what it steps."""

from __future__ import annotations

from workers.tools.bench.rollout.adapters import overhead


def test_an_adapter_costs_little_beside_the_environment_that_it_steps() -> None:
    """The bounds are wide, as neighbours on the machine may disturb a short run; `rookery bench rollout` measures."""
    figures = overhead(rounds=3)
    assert figures.keys() == {"adapter.pettingzoo_ratio", "adapter.gymnasium_ratio"}
    assert all(0.2 < ratio < 1.5 for ratio in figures.values())
