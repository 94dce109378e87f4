"""What is learned only where the critic knows what the actor is never shown (X10)."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from launch.config_loader import load
from tests.learning.greedy import greedy_returns, make_run
from tests.learning.test_presets import SEEDS, train
from tests.trial import Trial

WITHOUT = "policy.algorithm.central_critic=false"
LEAST, MOST = 1.9, 1.6
"""Returns of two turns: 2 at best, 0.5 by chance; three of four signs known are 1.5."""


def test_the_sign_is_heard_through_the_weather_by_whose_critic_sees_it(tmp_path: Path, trial: Trial) -> None:
    """In short: one turn, in this process; the same settings without the critic's view, where a seed knows one sign of
    four, or by chance three: the mean of five."""

    def learn(name: str, seed: int, *keys: str) -> float:
        settings = ["environment.settings.turns=1", *keys, *trial.keys]
        make_run(load("weather", settings, steps=trial.steps(12_000), seed=seed), tmp_path / name)
        return greedy_returns(tmp_path / name)["agent_0"]

    trial.reaches(learn("with", trial.seed), 0.95, "with")
    without = [learn(f"without-{number}", trial.seed + 100 * number, WITHOUT) for number in range(5)]
    trial.stays_below(statistics.mean(without), 0.8, "without")


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_weather_is_learned_with_a_central_critic_and_not_without(tmp_path: Path, seed: int) -> None:
    """Separate workers, exploration off; as many steps for both."""
    train("weather", tmp_path / "with", seed)
    assert greedy_returns(tmp_path / "with")["agent_0"] >= LEAST
    train("weather", tmp_path / "without", seed, set=WITHOUT)
    assert greedy_returns(tmp_path / "without")["agent_0"] <= MOST
