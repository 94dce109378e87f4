"""Products in bfloat16 are exact enough to learn by; weights that are kept in it are not."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from launch.config_loader import load
from tests.learning.test_presets import SEEDS
from tests.learning.test_recurrent import learn
from workers.algorithms.common.adam import FlatAdam

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]

_BOUND = 160
"""A random player falls after 22 steps. Three seeds came to 212, 213 and 241; with weights rounded after each step to
114, 111 and 95; without a gradient for hidden layers two of them to 75 and 73."""


def learnt(folder: Path, seed: int) -> float:
    """The return over the last 5 % of CartPole, learned by steps so small that rounded weights lose most of them."""
    keys = ["policy.learning_rate=0.0003"]
    return learn(load("cartpole", keys, steps=100_000, seed=seed, device="cpu", precision="bfloat16"), folder)


def test_cartpole_is_learnt_with_rounded_products(tmp_path: Path) -> None:
    """Median of three seeds, each run within this process."""
    assert statistics.median(learnt(tmp_path / str(seed), seed) for seed in SEEDS) > _BOUND


def test_it_is_not_where_weights_are_rounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = FlatAdam.step

    def rounded(self: FlatAdam, learning_rate: float) -> None:
        exact(self, learning_rate)
        self.parameters.copy_(self.parameters.bfloat16())

    monkeypatch.setattr(FlatAdam, "step", rounded)
    assert learnt(tmp_path, SEEDS[0]) < _BOUND
