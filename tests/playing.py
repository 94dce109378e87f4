"""What players earn in an environment, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.config.run import EnvironmentConfig
from workers.environments.base import Environment, Player
from workers.evaluation.baseline_process import Baselines, Found, mean_and_error
from workers.evaluation.episodes import play_episodes


def play(
    environment: Environment, players: Mapping[str, Player], episodes: int, seed: int
) -> dict[str, tuple[float, float]]:
    """agent -> (mean return, its standard error) over at least `episodes` episodes, equally many from every copy."""
    earned = play_episodes(environment, players, episodes, seed)
    return {name: mean_and_error(returns.ravel()) for name, returns in earned.items()}


def baselines(config: EnvironmentConfig, episodes: int, seed: int) -> Found:
    """Of random and scripted players, over so many whole episodes or some more."""
    measured = Baselines(config, episodes, seed, 256)
    measured.play()
    return measured.found
