"""The episodes of an actor, each as it ends, for hooks that are to be told of them.

In flow: the turns of a checked environment. Out flows: the same turns; an event for each episode that ended in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import INFO, AgentOutcome, AgentTimeStep, Environment, Episodes, Turn, add_episodes
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.metrics.hooks.calls import Call
from workers.metrics.hooks.hook import EpisodeEvent
from workers.planning.league_plan import TrainingSlot


def checked(inner: Environment, calls: Sequence[Call]) -> CheckedEnvironment:
    """A guard around `inner`, which tells `calls` of episodes if there are any."""
    return WatchedEnvironment(inner, calls) if calls else CheckedEnvironment(inner)


class WatchedEnvironment(CheckedEnvironment):
    """Calls each of `calls` with every episode that ended. `policy_of`, set before the first step: by number of the
    agent. `homes`: where players of a league learn; in other copies the library's members play their agents, whose
    episodes are no policy's."""

    policy_of: Mapping[int, str]
    homes: Sequence[TrainingSlot] = ()

    def __init__(self, inner: Environment, calls: Sequence[Call]) -> None:
        super().__init__(inner)
        self._calls = calls
        self._group = 0
        self._told: dict[tuple[int, int], tuple[NDArray[np.float64], NDArray[np.int64]]] = {}
        """(agent, group) -> returns and lengths [n] of the present episodes."""
        self._kept: Episodes = {}
        """What was taken here, and is asked for elsewhere."""

    def reset(self, seed: int) -> Turn:
        """As the environment's."""
        self._told.clear()
        return super().reset(seed)

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """As the environment's."""
        acted = self._turn
        turn = super().step(actions)
        for one in acted.present if acted is not None else ():
            self._of(one.agent, acted.group if acted is not None else 0)[1][_rows(one)] += 1
        self._group = turn.group
        self._look((*turn.outcomes, *turn.present))
        return turn

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """As the environment's."""
        outcomes = super().flush_ends()
        self._look(outcomes)
        return outcomes

    def take_episodes(self) -> Episodes:
        """As the environment's."""
        taken, self._kept = self._kept, {}
        add_episodes(taken, super().take_episodes())
        return taken

    def _look(self, told: Sequence[AgentTimeStep | AgentOutcome]) -> None:
        ended = []
        for one in told:
            returns, lengths = self._of(one.agent, self._group)
            rows = _rows(one)
            returns[rows] += one.reward
            done = one.terminated | one.truncated
            if np.count_nonzero(done):
                where = np.arange(len(returns))[rows][done]
                ended.append((one.agent, where, returns[where], lengths[where], one.terminated[done]))
                returns[where], lengths[where] = 0.0, 0
        if not ended:
            return
        fresh = super().take_episodes()
        add_episodes(self._kept, fresh)
        for agent, *columns in ended:
            info = {
                name.removeprefix(INFO): total / count
                for (name, of), (count, total) in fresh.items()
                if of == agent and name.startswith(INFO) and name != INFO
            }
            name = self.world.places[agent].name
            for copy, earned, length, terminated in zip(*columns, strict=True):
                if (policy := self._policy(agent, copy)) is None:
                    continue
                for call in self._calls:
                    call(EpisodeEvent(policy, name, float(earned), int(length), bool(terminated), dict(info)))

    def _policy(self, agent: int, copy: int) -> str | None:
        homes = [home for home in self.homes if home.agent == agent]
        if not homes:
            return self.policy_of[agent]
        return next((home.player for home in homes if home.first <= copy < home.last), None)

    def _of(self, agent: int, group: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        if (agent, group) not in self._told:
            rows = self._agents[agent].rows
            self._told[agent, group] = np.zeros(rows), np.zeros(rows, np.int64)
        return self._told[agent, group]


def _rows(told: AgentTimeStep | AgentOutcome) -> slice | NDArray[np.int64]:
    return slice(None) if told.copies is None else told.copies
