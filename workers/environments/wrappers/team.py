"""Agents that act as one: a team has one observation, one action and one reward for all its members.

In flows: actions of teams. Out flow: turns in which the members' observations are the parts of one, and rewards are
added up or averaged. All else of the world stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from numpy.typing import NDArray

from protocol.config.environment import Mates
from workers.environments.base import (
    INFO,
    AgentOutcome,
    AgentTimeStep,
    Environment,
    Episodes,
    Player,
    Turn,
    WrappedEnvironment,
)
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.checks.closing import closed_on_failure
from workers.environments.wrappers.team_spaces import team_world
from workers.environments.wrappers.team_turns import TeamTurns


class TeamEnvironment(WrappedEnvironment):
    """`inner` with `teams`; `reward` says what becomes of the members' rewards.

    The members of a team act in the same turns of the same copies, and their episodes end together: terminated if one
    of them was, as nothing follows then; otherwise truncated. EnvironmentFault where that does not hold.
    """

    def __init__(self, inner: Environment, teams: Mapping[str, Mates], reward: Literal["sum", "mean"]) -> None:
        members = inner.world
        with closed_on_failure(members.id, inner.close):
            super().__init__(CheckedEnvironment(inner))
            self.world, made = team_world(members, teams)
        self._teams = [TeamTurns(members.id, team, members.places, self.world.places, reward) for team in made]
        self._team_of = {member: team for team in self._teams for member in team.members}
        names = [place.name for place in self.world.places]
        self._own = {i: names.index(place.name) for i, place in enumerate(members.places) if i not in self._team_of}
        """Of each agent in no team: its place in the world of teams."""
        self._asked: list[tuple[int, int]] = []
        """Who acts next in the world of members: entry of its actions among those of teams, and its place."""

    def reset(self, seed: int) -> Turn:
        """As the environment's."""
        return self._turn(self._inner.reset(seed))

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Each member does its part of its team's action."""
        given = []
        for entry, agent in self._asked:
            team = self._team_of.get(agent)
            given.append(actions[entry] if team is None else team.part(agent, actions[entry]))
        return self._turn(self._inner.step(given))

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """As the environment's, teams for their members."""
        return self._outcomes(self._inner.flush_ends())

    def take_episodes(self) -> Episodes:
        """As the environment's; a team's are those of its first member, with what all of them earned, and all that the
        world tells of any of them."""
        taken: Episodes = {}
        for (name, agent), (count, total) in self._inner.take_episodes().items():
            team = self._team_of.get(agent)
            if team is None:
                taken[name, self._own[agent]] = count, total
            else:
                before = taken.get((name, team.agent), (0, 0.0))
                first, worth = (True, 1) if name.startswith(INFO) else (agent == team.members[0], team.worth)
                taken[name, team.agent] = before[0] + count * first, before[1] + worth * total
        return taken

    def _player(self, player: Player) -> Player:
        theirs, inner = {team.agent: team for team in self._teams}, {there: i for i, there in self._own.items()}

        def choose(present: AgentTimeStep) -> NDArray[Any]:
            team = theirs.get(present.agent)
            if team is None:
                return player(replace(present, agent=inner[present.agent]))
            return team.play(player, present)

        return choose

    def _turn(self, turn: Turn) -> Turn:
        self.restarts = self._inner.restarts
        present = {one.agent: one for one in turn.present}
        told: list[AgentTimeStep] = []
        entries: dict[int, int] = {}
        for team in self._teams:
            theirs = team.complete(present)
            if theirs:
                entries |= dict.fromkeys(team.members, len(told))
                told.append(team.gather(theirs))
        for agent, here in self._own.items():
            if agent in present:
                entries[agent] = len(told)
                told.append(replace(present[agent], agent=here))
        self._asked = [(entries[one.agent], one.agent) for one in turn.present]
        return replace(turn, present=tuple(told), outcomes=self._outcomes(turn.outcomes))

    def _outcomes(self, outcomes: Sequence[AgentOutcome]) -> tuple[AgentOutcome, ...]:
        by_agent = {one.agent: one for one in outcomes}
        told = [replace(one, agent=self._own[one.agent]) for one in outcomes if one.agent in self._own]
        for team in self._teams:
            theirs = team.complete(by_agent)
            if theirs:
                told.append(team.conclude(theirs))
        return tuple(told)
