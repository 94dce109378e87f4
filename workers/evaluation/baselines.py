"""What random and scripted players earn in an environment: the baselines that training is compared with.

In flows: an environment and a player for each agent. Out flow: mean return of an episode, its standard error and the
number of episodes, by agent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from workers.environments.base import Environment, Player
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.players import random_player
from workers.environments.registry import make
from workers.evaluation.episodes import EpisodePlay, evaluation_config
from workers.rollout.players.scripted_player import Script

Found = dict[str, dict[str, float]]
"""agent -> {"random", "random_stderr", "random_episodes"}; the same of `scripted`, if the world has such a player."""

_COPIES = 256
"""At most so many copies play at once."""


class Baselines:
    """Of so many whole episodes, or some more, as far as they have been played; reproducible from `seed`."""

    def __init__(self, config: EnvironmentConfig, episodes: int, seed: int, copies: int = _COPIES) -> None:
        self._config = evaluation_config(config, min(copies, episodes))
        self._episodes, self._seed = episodes, seed
        self._games: dict[str, EpisodePlay] = {}

    @property
    def found(self) -> Found:
        """Of the episodes that every copy has finished."""
        result: Found = {}
        for kind, game in self._games.items():
            for agent, earned in game.returns.items():
                if earned.size:
                    mean, error = mean_and_error(earned.ravel())
                    told = {kind: mean, f"{kind}_stderr": error, f"{kind}_episodes": earned.size}
                    result[agent] = {**result.get(agent, {}), **told}
        return result

    def play(self, on_turn: Callable[[], None] = lambda: None) -> None:
        """Plays all of them; `on_turn` is called once a turn and may raise."""
        environment = CheckedEnvironment(make(self._config))
        try:
            places = environment.world.places
            generators = np.random.default_rng(self._seed).spawn(len(places))
            chance = {place.name: random_player(place, g) for place, g in zip(places, generators, strict=True)}
            self._play("random", environment, chance, on_turn)
            environment.reset(self._seed)
            player = environment.scripted()
            if player is not None:
                scripts = {place.name: Script("world", "baselines", place, player) for place in places}
                self._play("scripted", environment, scripts, on_turn)
        finally:
            environment.close()

    def _play(
        self, kind: str, environment: Environment, players: Mapping[str, Player], on_turn: Callable[[], None]
    ) -> None:
        game = self._games[kind] = EpisodePlay(environment, players, self._episodes, self._seed)
        while not game.over:
            on_turn()
            game.step()


def mean_and_error(earned: NDArray[np.float64]) -> tuple[float, float]:
    """Of returns, the standard error 0 where there is a single one."""
    spread = float(np.std(earned, ddof=1)) / math.sqrt(len(earned)) if len(earned) > 1 else 0.0
    return float(np.mean(earned)), spread
