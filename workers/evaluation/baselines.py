"""What scripted and random players earn in an environment: the baselines that training is compared with.

In flows: an environment and a player for each agent. Out flow: mean return of an episode and its standard error, by
policy. A baseline is never a reason for a run to end late or without its summary.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig, Run
from protocol.spaces import World
from workers.environments.base import Environment, Player
from workers.environments.players import random_player
from workers.environments.registry import make
from workers.environments.simulators import EXTERNAL
from workers.evaluation.episodes import evaluation_config, play_episodes

__all__ = ["BaselineMeasurement", "baselines", "baselines_by_policy", "play"]

log = logging.getLogger(__name__)

_EPISODES = 200
_PATIENCE, _HURRY = 60.0, 3.0
"""Seconds for a run that reached its end, and for one that was stopped."""


class BaselineMeasurement:
    """Of one run, begun now, in a thread of its own."""

    def __init__(self, run: Run, world: World) -> None:
        self._run, self._world = run, world
        self._found: dict[str, dict[str, float]] = {}
        self._thread = threading.Thread(target=self._measure, name="baselines", daemon=True)
        self._thread.start()

    def by_policy(self, complete: bool) -> dict[str, dict[str, float]]:
        """policy -> baselines of the first agent it plays; empty, as the log tells, where the world raises or is slow.
        `complete`: the run reached its end, and there is time."""
        self._thread.join(_PATIENCE if complete else _HURRY)
        if self._thread.is_alive():
            reason = f"{_EPISODES} episodes take too long; shorten them with a time limit"
            log.warning("event=no_baselines reason=%s", reason)
        by_policy: dict[str, Any] = {}
        for agent, policy in self._run.policy_of(self._world).items():
            by_policy.setdefault(policy, dict(self._found.get(agent, {})))
        return by_policy

    def _measure(self) -> None:
        if self._run.environment.id == EXTERNAL:  # nobody else can play it
            return
        try:
            self._found.update(baselines(self._run.environment, _EPISODES, self._run.seed))
        except (Exception, SystemExit) as fault:
            log.warning("event=no_baselines reason=%s: %s", type(fault).__name__, fault)


def baselines_by_policy(run: Run, world: World, complete: bool) -> dict[str, dict[str, float]]:
    """The same, measured while the caller waits."""
    return BaselineMeasurement(run, world).by_policy(complete)


_COPIES = 256
"""At most so many copies play at once."""


def play(
    environment: Environment, players: Mapping[str, Player], episodes: int, seed: int
) -> dict[str, tuple[float, float]]:
    """agent -> (mean return, its standard error) over at least `episodes` episodes, equally many from every copy.

    The standard error is 0 where there was a single episode. EnvironmentFault if episodes do not end.
    """
    return {name: _mean(earned.ravel()) for name, earned in play_episodes(environment, players, episodes, seed).items()}


def baselines(config: EnvironmentConfig, episodes: int, seed: int) -> dict[str, dict[str, float]]:
    """agent -> {"random", "random_stderr"} and, where the world has a scripted player, {"scripted", "scripted_stderr"}.

    Mean returns of whole episodes; reproducible from `seed`.
    """
    environment = make(evaluation_config(config, min(_COPIES, episodes)))
    try:
        places = environment.world.places
        generators = np.random.default_rng(seed).spawn(len(places))
        chance = {place.name: random_player(place, g) for place, g in zip(places, generators, strict=True)}
        result = {
            name: {"random": mean, "random_stderr": error}
            for name, (mean, error) in play(environment, chance, episodes, seed).items()
        }
        environment.reset(seed)
        player = environment.scripted()
        if player is not None:
            for name, (mean, error) in play(environment, dict.fromkeys(chance, player), episodes, seed).items():
                result[name] |= {"scripted": mean, "scripted_stderr": error}
        return result
    finally:
        environment.close()


def _mean(earned: NDArray[np.float64]) -> tuple[float, float]:
    spread = float(np.std(earned, ddof=1)) / math.sqrt(len(earned)) if len(earned) > 1 else 0.0
    return float(np.mean(earned)), spread
