"""The league as one actor plays it: who is at hand, who meets whom in each copy, and the seats of all agents.

In flows: turns; what the coordinator tells of the league; files of the library, from the run's folder or else from the
node's shelf. Out flows: seats; counts of games.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.memory.shared_file import Counters
from protocol.spaces import Place, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Told, Turn, select_rows, with_rows
from workers.evaluation.policy_sync import SyncedPolicy
from workers.league.matches import LEARNS, MatchInstructions, MatchScheduler
from workers.league.opponents import OpponentCache
from workers.league.policy_pool import PoolEntry, verify
from workers.league.pool_cache import PoolCache
from workers.planning.league_plan import LeaguePlan, TrainingSlot
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import ActorAssignment
from workers.rollout.players.frozen_player import FrozenPlayer, InferencePolicy
from workers.runtime.seeds import seed_of


class ActorLeague:
    """Of an actor that plays `hand` of `run` in `world`. By player: `newest`, its policy as it learns, and `learning`,
    the seats that do by (agent, group). `library`: the run's folder, or the node's shelf where it cannot be seen."""

    def __init__(
        self,
        plan: LeaguePlan,
        run: Run,
        world: World,
        hand: ActorAssignment,
        newest: Mapping[str, SyncedPolicy],
        learning: Mapping[str, Mapping[tuple[int, int], AgentCollector]],
        library: Path | PoolCache,
        counters: Counters,
    ) -> None:
        self._told, self._plan, self._library = MatchInstructions(), plan, library
        self._at_hand: dict[str, PoolEntry] = {}
        """Members whose files were found."""
        noise = {
            (agent, group): hand.noise(seed_of(run.seed, "opponents"), agent, group)
            for agent in plan.seats
            for group in hand.groups
        }

        def make(decider: InferencePolicy, agent: int, group: int) -> FrozenPlayer:
            return FrozenPlayer(decider, plan.copies, noise[agent, group])

        code = {entry for one in run.learning for entry in one.network.entries}
        cast = OpponentCache(newest, plan.config.loaded, self._find, self._forget, make, counters, code)
        self._fixtures = [
            MatchScheduler(
                plan,
                len(world.agents),
                group,
                self._told,
                cast,
                counters,
                hand.noise(seed_of(run.seed, "draw"), 0, group),
            )
            for group in hand.groups
        ]
        homes = plan.homes
        self.seats = {
            (agent, group): LeagueCollector(
                agent,
                world.places[agent],
                [(home, learning[home.player][agent, group]) for home in homes if home.agent == agent],
                self._fixtures[group],
                cast,
                group,
            )
            for agent in plan.seats
            for group in hand.groups
        }

    @property
    def ready(self) -> bool:
        """Whether every player has somebody to meet."""
        return all(player in self._told.opponents for player in self._plan.players)

    def update(self, view: Mapping[str, Any]) -> None:
        """What the coordinator says with its answer to a heartbeat."""
        if view.get("league"):
            self._told.hear(view["league"])

    def begin(self, turn: Turn, conclude: Callable[[], Sequence[AgentOutcome]]) -> Turn:
        """Before anybody acts: see `MatchScheduler.begin`."""
        return self._fixtures[turn.group].begin(turn, conclude)

    @property
    def steps(self) -> int:
        """Actions so far of those who do not learn."""
        return sum(seat.steps for seat in self.seats.values())

    def close(self) -> None:
        """Lets go of files."""
        if isinstance(self._library, PoolCache):
            self._library.close()

    def _find(self, member: str) -> Path | None:
        policy, _, number = member.partition("/")
        entry = self._at_hand[member] = PoolEntry(policy, int(number), self._told.files[member])
        if isinstance(self._library, PoolCache):
            return self._library.get(entry)
        path = entry.path(self._library)
        verify(entry, path.read_bytes())
        return path

    def _forget(self, member: str) -> None:
        entry = self._at_hand.pop(member)
        if isinstance(self._library, PoolCache):
            self._library.release(entry)


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
