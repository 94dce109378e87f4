"""One environment of a single copy, played episode by episode: whose actions are open, what was earned, what is over.

In flows: a copy's actions. Out flows: its turns; for each episode that is over a score, for each agent's a return.

Legend: `S` places of all agents in the copy, one after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Episodes, Turn, add_episodes


class MemberCopy:
    """`environment` (one copy) as number `number` of the member `member`; what ends is counted in `episodes`.

    An episode is over when everyone who acted in it has been told an end. The environment has then begun the next one,
    whose first turn, `turn`, waits here if another member is played meanwhile.
    """

    def __init__(self, member: str, number: int, environment: Environment, episodes: Episodes) -> None:
        self.member, self.number, self.environment = member, number, environment
        self.turn: Turn | None = None
        """Who acts next; None before the first episode."""
        self.over = False
        """Whether the last step ended the episode."""
        self.score = 0.0
        """Of that episode: the mean return of those who acted."""
        self._episodes = episodes
        many = [place.many for place in environment.world.places]
        ends = np.cumsum(many).tolist()
        self._places = [slice(end - count, end) for end, count in zip(ends, many, strict=True)]
        self._limit = environment.world.episode_steps
        self._open = np.zeros(ends[-1], np.bool_)
        """[S]: has acted, and was told no end since."""
        self._acted: NDArray[np.int64] = np.zeros(ends[-1], np.int64)
        """[S]: actions in this episode."""
        self._returns = np.zeros(ends[-1])
        """[S]: since the last end."""
        self._earned = 0.0

    def begin(self, seed: int) -> Turn:
        """The first turn of an episode: of one that waits, or after a reset with `seed`."""
        if self.turn is None:
            for array in (self._open, self._acted, self._returns):
                array.fill(0)
            self._earned = 0.0
            self.turn = self.environment.reset(seed)
            if self.turn.outcomes:
                raise EnvironmentFault("outcomes_before_first_step", environment=self.environment.world.id)
        return self.turn

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """The turn that follows; sets `over` and `score`."""
        assert self.turn is not None
        for one in self.turn.present:
            where = self._where(one)
            self._open[where] = True
            self._acted[where] += 1
        turn = self.environment.step(actions)
        ended = False
        news: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            ended |= self._enter(told)
        if ended and self._open.any():
            turn = self._conclude(turn)
        if ended:
            add_episodes(self._episodes, self.environment.take_episodes())
        self.turn = turn
        self.over = ended and not self._open.any()
        if self.over:
            self.score = self._earned / np.count_nonzero(self._acted)
            self._acted.fill(0)
            self._earned = 0.0
        return turn

    def _conclude(self, turn: Turn) -> Turn:
        """Some have ended: whoever has too, and would be told later, is told now."""
        late = self.environment.flush_ends()
        for told in late:
            self._enter(told)
        if self._limit is not None and self._acted.max() > self._limit:
            raise EnvironmentFault(
                "episode_steps_exceeded",
                environment=self.environment.world.id,
                limit=self._limit,
                count=self._acted.max(),
            )
        return replace(turn, outcomes=(*turn.outcomes, *late)) if late else turn

    def _enter(self, told: AgentTimeStep | AgentOutcome) -> bool:
        """Adds a reward; whether it came with an end."""
        where = self._where(told)
        self._returns[where] += told.reward
        self._earned += float(told.reward.sum())
        done = told.terminated | told.truncated
        if not done.any():
            return False
        ended = np.arange(len(self._open))[where][done]
        count, total = self._episodes.get((self.member, told.agent), (0, 0.0))
        self._episodes[self.member, told.agent] = (count + len(ended), total + float(self._returns[ended].sum()))
        self._returns[ended] = 0.0
        self._open[ended] = False
        return True

    def _where(self, told: AgentTimeStep | AgentOutcome) -> slice | NDArray[np.int64]:
        """Its places among S."""
        places = self._places[told.agent]
        return places if told.copies is None else told.copies + places.start
