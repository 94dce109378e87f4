"""One agent's seat in a league: in its homes a player learns, in the other copies somebody else plays, who does not.

In flows: an agent's turns, and outcomes between them. Out flows: actions; what learns is written by its own
`AgentCollector`.

Legend: `n` copies in which the agent acts, of `R` of its group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Place
from workers.environments.base import AgentOutcome, AgentTimeStep, Told, select_rows, with_rows
from workers.league.matches import LEARNS, MatchScheduler
from workers.league.opponents import OpponentCache
from workers.planning.league_plan import TrainingSlot
from workers.rollout.agent_collector import AgentCollector


class LeagueCollector:
    """Agent number `agent`, at `place`. `homes`: where its `AgentCollector`s learn; `fixtures` and `group`: of these
    copies.
    """

    def __init__(
        self,
        agent: int,
        place: Place,
        homes: Sequence[tuple[TrainingSlot, AgentCollector]],
        fixtures: MatchScheduler,
        cast: OpponentCache,
        group: int,
    ) -> None:
        self.name = place.name
        self._agent, self._place, self._homes, self._group = agent, place, homes, group
        self._fixtures, self._cast = fixtures, cast
        self.steps = 0
        """Actions so far of those who do not learn."""

    def act(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray[Any]:
        """n actions."""
        actions = self._place.acted.zeros(len(present.observation))
        for home, seat in self._homes:
            rows = _between(present.copies, home)
            if rows.stop > rows.start:
                actions[rows] = seat.act(_part(present, rows, home), on_wait)
        who = self._who(present.copies)
        for number in np.unique(who).tolist():
            if number != LEARNS:
                chosen = np.flatnonzero(who == number)
                player = self._cast.player(number, self._agent, self._group)
                actions[chosen] = player(select_rows(present, chosen))
                self.steps += len(chosen)
        return actions

    def add_outcome(self, outcome: AgentOutcome, on_wait: Callable[[], None]) -> None:
        """What arrived between the agent's turns."""
        for home, seat in self._homes:
            rows = _between(outcome.copies, home)
            if rows.stop > rows.start:
                seat.add_outcome(_part(outcome, rows, home), on_wait)
        who = self._who(outcome.copies)
        for number in np.unique(who).tolist():
            if number != LEARNS:
                player = self._cast.player(number, self._agent, self._group)
                player.add_outcome(select_rows(outcome, np.flatnonzero(who == number)))

    def _who(self, copies: NDArray[np.int64] | None) -> NDArray[np.int64]:
        who = self._fixtures.who[self._agent]
        return who if copies is None else who[copies]


def _between(copies: NDArray[np.int64] | None, home: TrainingSlot) -> slice:
    """The rows that are of a home's copies."""
    if copies is None:
        return slice(home.first, home.last)
    first, last = np.searchsorted(copies, (home.first, home.last)).tolist()
    return slice(first, last)


def _part(told: Told, rows: slice, home: TrainingSlot) -> Told:
    """`rows` of what was told, whose copies are counted from the home's first; as views."""
    copies: NDArray[np.int64] | None = told.copies
    if copies is not None:
        everywhere = isinstance(told, AgentTimeStep) and rows.stop - rows.start == home.last - home.first
        copies = None if everywhere else copies[rows] - home.first
    return with_rows(told, rows, copies, *_finals(told.final_index, rows))


def _finals(index: NDArray[np.int64], rows: slice) -> tuple[NDArray[np.int64], slice]:
    first, last = np.searchsorted(index, (rows.start, rows.stop)).tolist() if len(index) else (0, 0)
    return index[first:last] - rows.start, slice(first, last)
