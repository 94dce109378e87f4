"""The league as one actor plays it: who is at hand, who meets whom in each copy, and the seats of all agents.

In flows: turns; what the coordinator tells of the league; files of the library, from the run's folder or else from the
node's shelf. Out flows: seats; counts of games.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from protocol.memory.counters import Counters
from protocol.spaces import World
from workers.environments.base import AgentOutcome, Turn
from workers.evaluation.policy_sync import SyncedPolicy
from workers.league.league_collector import LeagueCollector
from workers.league.matches import MatchInstructions, MatchScheduler
from workers.league.opponents import OpponentCache
from workers.league.policy_pool import PoolEntry, verify
from workers.league.pool_cache import PoolCache
from workers.planning.league_plan import LeaguePlan
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
