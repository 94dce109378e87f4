"""Whole episodes with given players, counted fairly: what baselines and evaluations are made of.

In flows: an environment and a player for each agent. Out flow: the return of every episode, by agent.

Legend: `E` copies, `C` places of an agent that stands for many (1 otherwise), `N` episodes of each copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import STRUCTURES
from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Player, Turn
from workers.environments.registry import BUILT_IN, settings_for_evaluation
from workers.environments.simulators import EXTERNAL

_LIMIT = 1_000_000
"""Steps after which an episode counts as endless."""


class _Account:
    """Returns of one agent's episodes: the first N of every copy, so that short episodes do not crowd out long ones
    (those that end first are not a fair sample)."""

    def __init__(self, copies: int, quota: int) -> None:
        self._running = np.zeros(copies, np.float64)
        self._finished = np.zeros(copies, np.int64)
        self._quota = quota
        self._returns = np.zeros((copies, quota))

    @property
    def full(self) -> bool:
        """Has every copy given its episodes?"""
        return bool((self._finished >= self._quota).all())

    @property
    def returns(self) -> NDArray[np.float64]:
        """[copies, n]: the first n <= N episodes of every copy, as many as all have finished."""
        return self._returns[:, : min(self._quota, int(self._finished.min()))]

    def add(self, told: AgentTimeStep | AgentOutcome) -> None:
        """Enters what the previous actions brought; an end closes the episode with that reward in it."""
        copies = np.arange(self._running.size) if told.copies is None else told.copies
        self._running[copies] += told.reward
        ended = copies[told.terminated | told.truncated]
        wanted = ended[self._finished[ended] < self._quota]
        self._returns[wanted, self._finished[wanted]] = self._running[wanted]
        self._finished[ended] += 1
        self._running[ended] = 0


class EpisodePlay:
    """At least `episodes` episodes, equally many from every copy, turn by turn, until it is `over`."""

    def __init__(self, environment: Environment, players: Mapping[str, Player], episodes: int, seed: int) -> None:
        if episodes < 1:
            raise ConfigurationError("episodes_too_few", value=episodes)
        self._environment, self._players = environment, players
        self._names = [agent.name for agent in environment.world.agents]
        self._quota = math.ceil(episodes / environment.copies)
        self._accounts = [_Account(environment.copies * place.many, self._quota) for place in environment.world.places]
        self._turns = 0
        self._turn = environment.reset(seed)

    @property
    def over(self) -> bool:
        """Whether all of them have ended."""
        return all(account.full for account in self._accounts)

    @property
    def returns(self) -> dict[str, NDArray[np.float64]]:
        """agent -> [E * C, n <= N], those that every copy has finished."""
        return {name: account.returns for name, account in zip(self._names, self._accounts, strict=True)}

    def step(self) -> None:
        """One turn more; EnvironmentFault if episodes do not end."""
        if self._turns == _LIMIT * self._quota:
            where, limit = self._environment.world.id, _LIMIT * self._quota
            raise EnvironmentFault("episodes_not_finished", environment=where, count=self._quota, limit=limit)
        self._turns += 1
        turn = self._turn = self._environment.step(act(self._turn, self._names, self._players))
        told: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
        for one in told:
            self._accounts[one.agent].add(one)


def play_episodes(
    environment: Environment,
    players: Mapping[str, Player],
    episodes: int,
    seed: int,
    on_turn: Callable[[], None] = lambda: None,
) -> dict[str, NDArray[np.float64]]:
    """agent -> returns [E * C, N] of at least `episodes` episodes, equally many from every copy. `on_turn` is called
    once a turn and may raise.

    EnvironmentFault if episodes do not end.
    """
    game = EpisodePlay(environment, players, episodes, seed)
    while not game.over:
        on_turn()
        game.step()
    return game.returns


def act(turn: Turn, names: list[str], players: Mapping[str, Player]) -> list[NDArray[Any]]:
    """What `players` do in `turn`, after those who want to know are told what comes beside their own turns: outcomes,
    and what all agents see. `names` of the world's agents, in order."""
    for outcome in turn.outcomes:
        if (receive := getattr(players[names[outcome.agent]], "add_outcome", None)) is not None:
            receive(outcome)
    if turn.common is not None:
        for present in turn.present:
            if (look := getattr(players[names[present.agent]], "set_shared_observation", None)) is not None:
                look(turn.common)
    return [players[names[present.agent]](present) for present in turn.present]


def environments_of(config: EnvironmentConfig, copies: int) -> dict[str, EnvironmentConfig]:
    """name -> each environment by itself that policies are evaluated in, with at most `copies` at once.

    ConfigurationError where nobody here can play it.
    """
    if config.id == EXTERNAL:
        raise ConfigurationError("external_simulators_not_evaluable")
    where = config.evaluation()
    if where.members is None:
        return {where.id: evaluation_config(where, copies)}
    alone = dict.fromkeys(STRUCTURES)
    return {
        name: evaluation_config(where.model_copy(update={**alone, "members": {name: member}}), copies)
        for name, member in where.members.items()
    }


def evaluation_config(config: EnvironmentConfig, copies: int) -> EnvironmentConfig:
    """`config` as it is measured: at most `copies` at once, episodes whole from the first on. What is not ours and is
    stepped by processes is stepped by one here as well, as it may end the process that it is in."""
    members = config.members or {}
    settled = {
        name: one.model_copy(update={"settings": settings_for_evaluation(one.id, one.settings)})
        for name, one in members.items()
    }
    apart = int(config.processes > 0 and config.id not in BUILT_IN)
    copies = max(1, min(config.copies, copies))
    return config.model_copy(
        update={
            "copies": copies,
            "settings": settings_for_evaluation(config.id, config.settings),
            "members": settled or None,
            "processes": apart,
            "async_factor": 1,
            "restarts": 0,
        }
    )
