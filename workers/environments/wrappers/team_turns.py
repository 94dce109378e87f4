"""The members of one team: what is told of each, as told of the team, and what the team does, as done by each.

In flows: turns of members; actions of the team. Out flows: turns of the team; actions of members.

Legend: `n` copies in which the team is present, `m` of those whose episode was truncated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Place, RowFormat
from workers.environments.base import AgentOutcome, AgentTimeStep, Player
from workers.environments.wrappers.team_spaces import Team, part_of

_NONE: NDArray[np.int64] = np.empty(0, np.int64)
_Told = AgentTimeStep | AgentOutcome


@dataclass(slots=True)
class _Columns:
    """The arrays of a member's rows, and of its part in a team's rows: by field, None where rows are plain."""

    fields: list[tuple[str | None, str]]

    @classmethod
    def of(cls, record: RowFormat, member: str) -> _Columns:
        return cls(
            [(leaf.name.partition(".")[2] if record.nested else None, part_of(leaf, member)) for leaf in record.leaves]
        )

    def write(self, rows: NDArray[Any], team: NDArray[Any]) -> None:
        """Rows of the member into those of its team."""
        for field, part in self.fields:
            team[part] = rows if field is None else rows[field]

    def read(self, record: RowFormat, team: NDArray[Any]) -> NDArray[Any]:
        """The member's rows out of those of its team."""
        if not record.nested:
            return np.ascontiguousarray(team[self.fields[0][1]])
        rows = record.zeros(len(team))
        for field, part in self.fields:
            rows[field] = team[part]
        return rows


class TeamTurns:
    """What is told of the members of one team, as told of the team."""

    def __init__(
        self, world: str, team: Team, members: Sequence[Place], places: Sequence[Place], reward: Literal["sum", "mean"]
    ) -> None:
        self._world, self._name, self.agent, self.members = world, team.name, team.agent, team.members
        self._place = places[team.agent]
        self.worth = 1.0 if reward == "sum" else 1 / len(team.members)
        """Of a member's reward, in the team's."""
        self._places = {member: members[member] for member in team.members}
        named = self._places.items()
        self._seen = {member: _Columns.of(place.observed, place.name) for member, place in named}
        self._done = {member: _Columns.of(place.acted, place.name) for member, place in named}
        self._masks = {m: _Columns.of(place.masked, place.name) for m, place in named if place.masked is not None}

    def complete(self, told: Mapping[int, _Told]) -> list[Any]:
        """What is told of each member; nothing, where none is told of. EnvironmentFault where only some are."""
        theirs = [told.get(member) for member in self.members]
        if not any(theirs):
            return []
        first = next(one for one in theirs if one is not None)
        for member, one in zip(self.members, theirs, strict=True):
            if one is None or not _same(one.copies, first.copies):
                raise EnvironmentFault("teammate_absent", **self._apart(member, first.agent))
            if not np.array_equal(one.terminated | one.truncated, first.terminated | first.truncated):
                raise EnvironmentFault("teammate_ends_apart", **self._apart(member, first.agent))
        return theirs

    def gather(self, told: list[AgentTimeStep]) -> AgentTimeStep:
        """Of the whole team."""
        first = told[0]
        seen = self._place.observed.zeros(len(first.reward))
        for one in told:
            self._seen[one.agent].write(one.observation, seen)
        masks = None
        if self._place.masked is not None:
            masks = self._place.masked.zeros(len(first.reward))
            for name in masks.dtype.names or ():
                masks[name] = True
            for one in told:
                if one.action_mask is not None:
                    self._masks[one.agent].write(one.action_mask, masks)
        reward, terminated, truncated = self._earned(told)
        return AgentTimeStep(
            self.agent, seen, reward, terminated, truncated, first.copies, *self._finals(told, truncated), masks
        )

    def conclude(self, told: list[AgentOutcome]) -> AgentOutcome:
        """What their last actions brought."""
        reward, terminated, truncated = self._earned(told)
        finals = self._finals(told, truncated)
        return AgentOutcome(self.agent, told[0].copies, reward, terminated, truncated, *finals)

    def part(self, member: int, actions: NDArray[Any]) -> NDArray[Any]:
        """What `member` does."""
        return self._done[member].read(self._places[member].acted, actions)

    def play(self, player: Player, present: AgentTimeStep) -> NDArray[Any]:
        """What `player` does for each member."""
        actions = self._place.acted.zeros(len(present.reward))
        for member, place in self._places.items():
            seen = self._seen[member].read(place.observed, present.observation)
            masks = None
            if place.masked is not None and present.action_mask is not None:
                masks = self._masks[member].read(place.masked, present.action_mask)
            own = replace(present, agent=member, observation=seen, action_mask=masks, final_observation=None)
            self._done[member].write(player(own), actions)
        return actions

    def _earned(self, told: Sequence[_Told]) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_]]:
        """Reward, terminated and truncated [n]."""
        reward, terminated = np.zeros_like(told[0].reward), np.zeros_like(told[0].terminated)
        for one in told:
            reward += one.reward
            terminated |= one.terminated
        reward *= np.float32(self.worth)
        return reward, terminated, told[0].truncated & ~terminated

    def _finals(
        self, told: Sequence[_Told], truncated: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[Any] | None, NDArray[Any] | None]:
        """(index [m], observation [m], common [m, *shape]) where the team was truncated."""
        index = np.flatnonzero(truncated)
        if not index.size:
            return _NONE, None, None
        last = self._place.observed.zeros(index.size)
        common = None
        for one in told:
            assert one.final_observation is not None
            where = np.searchsorted(one.final_index, index)
            self._seen[one.agent].write(one.final_observation[where], last)
            common = None if one.final_common is None else one.final_common[where]
        return index, last, common

    def _apart(self, member: int, other: int) -> dict[str, str]:
        """The facts of a fault: who does not as another one does."""
        one, another = self._places[member].name, self._places[other].name
        facts = {"environment": self._world, "agent": one, "team": self._name, "other": another}
        return facts | {"key": "environment.teams"}


def _same(one: NDArray[np.int64] | None, other: NDArray[np.int64] | None) -> bool:
    if one is None or other is None:
        return one is other
    return np.array_equal(one, other)
