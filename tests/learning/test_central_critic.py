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


def heard(folder: Path, trial: Trial, seed: int, *keys: str) -> float:
    """What is earned in one turn, learned in this process."""
    settings = ["environment.settings.turns=1", *keys, *trial.keys]
    make_run(load("weather", settings, steps=trial.steps(12_000), seed=seed), folder)
    return greedy_returns(folder)["agent_0"]


def test_the_sign_is_heard_through_the_weather_by_whose_critic_sees_it(tmp_path: Path, trial: Trial) -> None:
    """In short: one turn."""
    trial.reaches(heard(tmp_path, trial, trial.seed), 0.95)


@pytest.mark.slow
def test_it_is_not_by_whose_critic_does_not(tmp_path: Path, trial: Trial) -> None:
    """By the same settings a seed knows one sign of four, or by chance three: the mean of five."""
    without = [heard(tmp_path / str(n), trial, trial.seed + 100 * n, WITHOUT) for n in range(5)]
    trial.stays_below(statistics.mean(without), 0.8)


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_weather_is_learned_with_a_central_critic_and_not_without(tmp_path: Path, seed: int) -> None:
    """Separate workers, exploration off; as many steps for both."""
    train("weather", tmp_path / "with", seed)
    assert greedy_returns(tmp_path / "with")["agent_0"] >= LEAST
    train("weather", tmp_path / "without", seed, set=WITHOUT)
    assert greedy_returns(tmp_path / "without")["agent_0"] <= MOST
