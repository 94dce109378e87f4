"""Who meets whom in each copy of a group: drawn when an episode begins, counted when it is over.

In flows: turns; what the coordinator told last of the league. Out flows: who sits in each seat of each copy; games,
points and margins by pair (workers/league/league_state.py says what these are).

An episode is over when everyone who acted in it has been told an end; all seats change hands at that moment.

Legend: `A` agents, `R` copies of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.memory.shared_file import Counters
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.league.opponents import OpponentCache
from workers.planning.league_plan import LeaguePlan

LEARNS = -1
"""Who sits there learns."""


class MatchInstructions:
    """What an actor was told last: whom players are to meet, which members are to be measured."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        """member -> checksum."""
        self.opponents: dict[str, tuple[list[str], NDArray[np.float64]]] = {}
        """player -> names, and their cumulative chances."""
        self.pairs: tuple[list[tuple[str, str]], NDArray[np.float64]] = ([], np.empty(0))

    def hear(self, told: Mapping[str, Any]) -> None:
        """Takes news in."""
        self.files = dict(told["files"])
        self.opponents = {player: ([*whom], _cumulative([*whom.values()])) for player, whom in told["whom"].items()}
        pairs = told["pairs"]
        self.pairs = [(one, other) for one, other, _ in pairs], _cumulative([chance for *_, chance in pairs])


class MatchScheduler:
    """Of group `group` of an actor, whose world has `agents` agents."""

    def __init__(
        self,
        plan: LeaguePlan,
        agents: int,
        group: int,
        told: MatchInstructions,
        cast: OpponentCache,
        counters: Counters,
        generator: np.random.Generator,
    ) -> None:
        self._plan, self._told, self._cast, self._counters, self._generator = plan, told, cast, counters, generator
        self._group = group
        self.who: NDArray[np.int64] = np.full((agents, plan.copies), LEARNS, np.int64)
        """[A, R]: by its number in the cast, or LEARNS."""
        self._open = np.zeros((agents, plan.copies), np.bool_)
        self._returns = np.zeros((agents, plan.copies))
        self._closing = np.zeros(plan.copies, np.bool_)
        self._home = [home for home in plan.homes for _ in range(plan.copies_per_slot)]
        self._games: list[tuple[str, int] | None] = [None] * plan.copies
        """[R]: the pair that is counted, as its counters call it, and the seat of the first of them."""
        self._counted = {pair: f"{pair[0]}:{pair[1]}" for pair in plan.pairs}
        self._others = {seat: [other for other in plan.seats if other != seat] for seat in plan.seats}
        self._begun = False

    def begin(self, turn: Turn, conclude: Callable[[], Sequence[AgentOutcome]]) -> Turn:
        """Before anybody acts in `turn`: counts what is over in it, and seats who plays next. `conclude` as of the
        environment; the same turn with all ends told."""
        if not self._begun:
            self._begun = True
            for copy in range(self._plan.copies):
                self._draw(copy)
        if self._enter((*turn.outcomes, *turn.present)):
            if (self._open.any(0) & self._closing).any() and (late := tuple(conclude())):
                self._enter(late)
                turn = replace(turn, outcomes=(*turn.outcomes, *late))
            over = np.flatnonzero(self._closing & ~self._open.any(0))
            for copy in over.tolist():
                self._settle(copy)
                self._draw(copy)
            self._closing[over] = False
            self._returns[:, over] = 0
        for present in turn.present:
            self._open[present.agent, slice(None) if present.copies is None else present.copies] = True
        return turn

    def _enter(self, news: Sequence[AgentTimeStep | AgentOutcome]) -> bool:
        """Adds rewards; whether anything ended."""
        ended = False
        for told in news:
            where = slice(None) if told.copies is None else told.copies
            self._returns[told.agent, where] += told.reward
            done = told.terminated | told.truncated
            if done.any():
                ended = True
                copies = np.flatnonzero(done) if told.copies is None else told.copies[done]
                self._open[told.agent, copies] = False
                self._closing[copies] = True
        return ended

    def _settle(self, copy: int) -> None:
        game = self._games[copy]
        if game is not None:
            pair, seat = game
            earned = self._returns[:, copy]
            margin = float(earned[seat] - earned[self._others[seat]].mean()) / 2
            self._counters.add(f"league.games.{pair}")
            self._counters.add(f"league.points.{pair}", 1 + int(np.sign(margin)))
            self._counters.add(f"league.margin.{pair}", margin)
        done = np.ones(1, np.bool_)
        for agent in self._plan.seats:
            number = int(self.who[agent, copy])
            if number != LEARNS:
                nothing = np.zeros(1, np.float32)
                over = AgentOutcome(agent, np.array([copy]), nothing, done, ~done)
                self._cast.player(number, agent, self._group).add_outcome(over)
                self._cast.release(number)

    def _draw(self, copy: int) -> None:
        if copy < len(self._home):
            home = self._home[copy]
            name, number = self._take(_drawn(*self._told.opponents[home.player], self._generator))
            self._seat(copy, home.agent, LEARNS, number)
            self._count(copy, (home.player, name), home.agent)
            return
        pairs, chances = self._told.pairs
        if not pairs:  # a library with a single member: its player plays itself
            player = next(iter(self._plan.players))
            pairs, chances = [(player, self._plan.players[player].opponents[0])], np.ones(1)
        one, other = _drawn(pairs, chances, self._generator)
        seats = self._plan.seats_for(one.partition("/")[0], other.partition("/")[0])
        seat = seats[self._generator.integers(len(seats))]
        (one, first), (other, second) = self._take(one), self._take(other)
        self._seat(copy, seat, first, second)
        self._count(copy, (one, other), seat)

    def _count(self, copy: int, pair: tuple[str, str], seat: int) -> None:
        counted = self._counted.get(pair)
        self._games[copy] = None if counted is None else (counted, seat)

    def _seat(self, copy: int, seat: int, one: int, other: int) -> None:
        """`one` sits down in `seat` and `other` in all others, each of which is one more use of it."""
        self.who[seat, copy] = one
        for place in self._others[seat]:
            self.who[place, copy] = other
        for _ in self._others[seat][1:]:
            self._cast.use(other)

    def _take(self, name: str) -> tuple[str, int]:
        """Who plays for `name`: a member, or the newest of its player where all that fit into memory are playing."""
        number = self._cast.acquire(name)
        if number is None:
            self._counters.add("league_redrawn")
            name = name.partition("/")[0]
            number = self._cast.acquire(name)
            assert number is not None
        return name, number


_Choice = TypeVar("_Choice")


def _drawn(choices: list[_Choice], chances: NDArray[np.float64], generator: np.random.Generator) -> _Choice:
    return choices[int(np.searchsorted(chances, generator.random(), side="right"))]


def _cumulative(chances: list[float]) -> NDArray[np.float64]:
    """Their sums, which end at 1, above which nothing is drawn."""
    sums = np.cumsum(chances)
    return sums / sums[-1] if len(sums) else sums
