"""What given players earn in a world: the yardsticks that training is compared with.

In flows: an environment and a player for each agent. Out flow: mean return of an episode, and its standard error.

Legend: `E` copies, `n` copies in which an agent is present.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from protocol.config import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.base import Environment, Outcome, Player, Present
from workers.environments.players import random_player
from workers.environments.registry import BUILT_IN, make

__all__ = ["baselines", "play"]

_COPIES = 256
"""At most so many copies play at once."""
_LIMIT = 1_000_000
"""Steps after which an episode counts as endless."""


class _Account:
    """Returns of one agent's episodes: the first `quota` of every copy, so that short episodes do not crowd out long
    ones (those that end first are not a fair sample)."""

    def __init__(self, copies: int, quota: int) -> None:
        self._running = np.zeros(copies, np.float64)
        self._finished = np.zeros(copies, np.int64)
        self._quota = quota
        self.returns: list[float] = []

    @property
    def full(self) -> bool:
        """Has every copy given its episodes?"""
        return bool((self._finished >= self._quota).all())

    def add(self, told: Present | Outcome) -> None:
        """Enters what the previous actions brought; an end closes the episode with that reward in it."""
        copies = np.arange(self._running.size) if told.copies is None else told.copies
        self._running[copies] += told.reward
        ended = copies[told.terminated | told.truncated]
        wanted = ended[self._finished[ended] < self._quota]
        self.returns.extend(self._running[wanted].tolist())
        self._finished[ended] += 1
        self._running[ended] = 0


def play(
    environment: Environment, players: Mapping[str, Player], episodes: int, seed: int
) -> dict[str, tuple[float, float]]:
    """agent -> (mean return, its standard error) over at least `episodes` episodes, equally many from every copy.

    The standard error is 0 where there was a single episode. EnvironmentFault if episodes do not end.
    """
    if episodes < 1:
        raise ConfigurationError(f"{episodes} episodes give no baseline; ask for at least 1")
    names = [agent.name for agent in environment.world.agents]
    quota = math.ceil(episodes / environment.copies)
    accounts = [_Account(environment.copies * place.many, quota) for place in environment.world.places]
    turn = environment.reset(seed)
    for _ in range(_LIMIT * quota):
        turn = environment.step([players[names[present.agent]](present) for present in turn.present])
        told: tuple[Present | Outcome, ...] = (*turn.outcomes, *turn.present)
        for one in told:
            accounts[one.agent].add(one)
        if all(account.full for account in accounts):
            return {name: _mean(account.returns) for name, account in zip(names, accounts, strict=True)}
    raise EnvironmentFault(
        f"{environment.world.id} did not finish {quota} episodes a copy within {_LIMIT * quota} steps; "
        "give its episodes a time limit"
    )


def baselines(config: EnvironmentConfig, episodes: int, seed: int) -> dict[str, dict[str, float]]:
    """agent -> {"random", "random_stderr"} and, where the world has a scripted player, {"scripted", "scripted_stderr"}.

    Mean returns of whole episodes; reproducible from `seed`. A world that is not ours and is stepped by processes is
    stepped by one here as well, as it may end the process that it is in.
    """
    settings = dict(config.settings)
    if config.id in BUILT_IN:
        # Shortened first episodes serve training only.
        settings.pop("desynchronize", None)
    copies = max(1, min(_COPIES, config.copies, episodes))
    apart = int(config.processes > 0 and config.id not in BUILT_IN)
    where = {"processes": apart, "async_factor": 1, "restarts": 0}
    environment = make(config.model_copy(update={"copies": copies, "settings": settings, **where}))
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


def _mean(returns: list[float]) -> tuple[float, float]:
    spread = float(np.std(returns, ddof=1)) / math.sqrt(len(returns)) if len(returns) > 1 else 0.0
    return float(np.mean(returns)), spread
