"""Whether what a world pays keeps to the payoffs that it declares, while it runs (`protocol/spaces/rewards.py`).

In flow: the turns of one group of copies. Out flow: nothing, or an EnvironmentFault.

Rewards are compared in a copy once all are told who act there: after each turn of a world in which all act at once, at
the latest at the end of an episode where they act one after another. Until then they are added up: in a zero-sum
population the sums of all add up to 0; in a cooperative one those who took part all the while have equal sums.

Legend: `R` copies of a group, `C` agents that a template stands for (1 for a named agent).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Payoffs, Place, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn


def declares_payoffs(world: World) -> bool:
    """Whether a population of the world is cooperative or zero-sum."""
    return any(population.payoff != "general" for place in world.places for _, population in place.populations)


@dataclass(slots=True)
class _Sums:
    """Of one agent, [R, C] each."""

    earned: NDArray[np.float64]
    """Since all were told in that copy."""
    acts: NDArray[np.bool_]
    """Waits for what its last action brings."""
    whole: NDArray[np.bool_]
    """Took part all the time since."""
    told: NDArray[np.bool_] = field(init=False)
    """In this turn."""
    ended: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.told, self.ended = np.zeros_like(self.acts), np.zeros_like(self.acts)

    def add(self, news: AgentTimeStep | AgentOutcome) -> None:
        """What a turn tells."""
        where = slice(None) if news.copies is None else news.copies
        self.earned.reshape(-1)[where] += news.reward
        self.told.reshape(-1)[where] = True
        self.ended.reshape(-1)[where] = news.terminated | news.truncated


class PayoffCheck:
    """Of one group of `copies` copies of `world`, which `declares_payoffs`."""

    def __init__(self, world: World, copies: int) -> None:
        self._names = [place.name for place in world.places]
        self._templates = [place.capacity is not None for place in world.places]
        self._cooperative = Payoffs(world, kinds=("cooperative",))
        self._zero_sum = Payoffs(world, kinds=("zero_sum",))
        self._copies, self._places = copies, world.places
        self._sums: list[_Sums] = []
        self._turn = 0
        self.begin()

    def begin(self) -> None:
        """New episodes everywhere."""
        self._sums = [_fresh(place, self._copies) for place in self._places]
        self._turn = 0

    def check(self, turn: Turn) -> None:
        """EnvironmentFault unless what the turn tells keeps to the payoffs."""
        told: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
        for news in told:
            self._sums[news.agent].add(news)
        waiting = np.zeros(self._copies, np.bool_)
        for sums in self._sums:
            waiting |= (sums.acts & ~sums.told).any(axis=1)
        complete = ~waiting
        if self._turn and complete.any():
            self._compare(complete)
        self._turn += 1
        for present in turn.present:
            where = slice(None) if present.copies is None else present.copies
            self._sums[present.agent].acts.reshape(-1)[where] = True
        here = {present.agent for present in turn.present}
        for agent, sums in enumerate(self._sums):
            if agent not in here or sums.ended.any():
                self._end(agent, turn)
            sums.earned[complete] = 0
            sums.whole[complete] = sums.acts[complete]
            sums.whole &= sums.acts
            sums.told.fill(False)
            sums.ended.fill(False)

    def _end(self, agent: int, turn: Turn) -> None:
        """Whose episode ended and who does not act now waits for nothing."""
        sums = self._sums[agent]
        acts = np.zeros(sums.acts.size, np.bool_)
        for present in turn.present:
            if present.agent == agent:
                acts[slice(None) if present.copies is None else present.copies] = True
        sums.acts &= ~sums.ended | acts.reshape(sums.acts.shape)

    def _compare(self, complete: NDArray[np.bool_]) -> None:
        earned = [np.where(complete[:, None], sums.earned, 0) for sums in self._sums]
        partly = [~(complete[:, None] & sums.whole) for sums in self._sums]
        rewards = {name: self._shaped(i, earned[i]) for i, name in enumerate(self._names)}
        self._zero_sum.check(rewards, self._turn)
        self._cooperative.check(rewards, self._turn, {n: self._shaped(i, partly[i]) for i, n in enumerate(self._names)})

    def _shaped(self, agent: int, array: NDArray) -> NDArray:
        return array if self._templates[agent] else array[:, 0]


def _fresh(place: Place, copies: int) -> _Sums:
    shape = (copies, place.many)
    return _Sums(np.zeros(shape), np.zeros(shape, np.bool_), np.zeros(shape, np.bool_))
