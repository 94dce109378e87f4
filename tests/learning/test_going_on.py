"""A run that goes on after its end learns as one that was as long at once."""

from __future__ import annotations

import statistics
from math import sqrt
from pathlib import Path

import pytest

from tests.learning.test_presets import last, train

SEEDS = range(5)
BARE = "baseline_episodes=0"
STEPS = 1_000_000
"""By which the hunters have learned about half of what they can."""


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("forked_rookery")
def test_what_goes_on_earns_as_much_as_what_was_as_long_at_once(tmp_path: Path) -> None:
    """Within three standard errors of the difference of two means, each of both policies in five seeds."""
    whole, parts = list[float](), list[float]()
    for seed in SEEDS:
        summary = train("treasure-hunt", tmp_path / f"whole-{seed}", seed, steps=STEPS, set=BARE)
        whole += [last(summary, policy) for policy in summary["returns"]]
        folder = tmp_path / f"parts-{seed}"
        train("treasure-hunt", folder, seed, steps=STEPS, set=[BARE, f"until={STEPS // 2}"])
        summary = train(str(folder), folder, seed, set=f"until={STEPS}")
        assert summary["agent_steps"] >= STEPS
        parts += [last(summary, policy) for policy in summary["returns"]]
    spread = sqrt((statistics.variance(whole) + statistics.variance(parts)) / len(whole))
    assert abs(statistics.fmean(whole) - statistics.fmean(parts)) <= 3 * spread, (whole, parts)
