"""Agents that are given to another policy while an actor plays: in each stream the next episode is that one's first.

In flow: what the run's roster says of agents. Out flow: their seats, each of which writes whole episodes only.

Legend: `E` streams of an agent in a group of copies, `n` of them present in a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep, select_rows
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.build import Collectors

Place = tuple[int, int]
"""(agent, group)."""


class Handover:
    """The seat of an agent as long as it goes over: `seat` plays what it has begun. `room`: whether one more seat may
    begin to write where this one does."""

    steps = 0
    """All its actions are of policies that learn."""

    def __init__(self, seat: AgentCollector, room: Callable[[AgentCollector], bool]) -> None:
        self.name, self._room = seat.name, room
        self._seats, self._to = [seat], 0
        self._who: NDArray[np.int64] = np.zeros(len(seat.segments), np.int64)
        """[E]: which of the seats plays the stream."""

    def give(self, seat: AgentCollector) -> None:
        """From its next episode on `seat` plays each stream."""
        if seat not in self._seats:
            self._seats.append(seat)
        self._to = self._seats.index(seat)

    def involves(self, seats: Collection[AgentCollector]) -> bool:
        """Whether one of `seats` may play here."""
        return any(seat in seats for seat in self._seats)

    @property
    def over(self) -> bool:
        """Whether all streams have gone over."""
        return bool((self._who == self._to).all())

    def end(self) -> None:
        """The other seats send what they have, and hold no memory any more."""
        for seat in self._seats:
            if seat is not self._seats[self._to]:
                seat.retire()

    def act(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray[Any]:
        """n actions."""
        streams = np.arange(len(self._who)) if present.copies is None else present.copies
        present = self._go_over(present, streams, on_wait)
        who = self._who[streams]
        actions: NDArray[Any] | None = None
        for number in np.unique(who).tolist() or [0]:
            rows = np.flatnonzero(who == number)
            acted = self._seats[number].act(select_rows(present, rows), on_wait)
            if actions is None:
                actions = np.empty((len(who), *acted.shape[1:]), acted.dtype)
            actions[rows] = acted
        assert actions is not None
        return actions

    def add_outcome(self, outcome: AgentOutcome, on_wait: Callable[[], None]) -> None:
        """What arrived between the agent's turns."""
        who = self._who[outcome.copies]
        for number in np.unique(who).tolist():
            self._seats[number].add_outcome(select_rows(outcome, np.flatnonzero(who == number)), on_wait)

    def _go_over(
        self, present: AgentTimeStep, streams: NDArray[np.int64], on_wait: Callable[[], None]
    ) -> AgentTimeStep:
        """Streams that begin an episode go over, once who played them was told how the last one ended; what is left to
        be told."""
        who, going = self._who[streams], np.zeros(len(streams), np.bool_)
        for number in np.unique(who[who != self._to]).tolist() if self._room(self._seats[self._to]) else ():
            seat, mine = self._seats[number], who == number
            waits = seat.waits(streams)
            told = np.flatnonzero(mine & waits & (present.terminated | present.truncated))
            if len(told):
                seat.add_outcome(_outcome(select_rows(present, told)), on_wait)
            going |= mine & ~waits
            going[told] = True
        if not going.any():
            return present
        self._who[streams[going]] = self._to
        left = ~going[present.final_index]
        return replace(
            present,
            reward=np.where(going, np.float32(0), present.reward),
            terminated=present.terminated & ~going,
            truncated=present.truncated & ~going,
            final_index=present.final_index[left],
            final_observation=_some(present.final_observation, left),
            final_common=_some(present.final_common, left),
        )


class AgentHandovers:
    """Of all agents of one actor, whose seats are `collectors`. By policy: `learning`, the seats that there are from
    the beginning, and `rooms`, how many may write at the same time. `agents`: number of an agent by its name; `build`
    makes the seats of an agent that a policy is given."""

    def __init__(
        self,
        collectors: Collectors,
        learning: Mapping[str, Mapping[Place, AgentCollector]],
        rooms: Mapping[str, int],
        agents: Mapping[str, int],
        build: Callable[[str, int], Mapping[Place, AgentCollector]],
    ) -> None:
        self._collectors, self._rooms, self._agents, self._build = collectors, {**rooms}, agents, build
        self._seats = {name: dict(seats) for name, seats in learning.items()}

    def admit(self, policy: str, room: int) -> None:
        """Agents may be given to one policy more, which has weights now."""
        if policy not in self._seats:
            self._seats[policy], self._rooms[policy] = {}, room

    def idle(self, policy: str) -> bool:
        """Whether it plays nothing that was begun."""
        mine = self._seats.get(policy, {}).values()
        return not any(
            seat.involves(mine) if isinstance(seat, Handover) else seat in mine
            for seat in self._collectors.seats.values()
        )

    def forget(self, policy: str) -> None:
        """It is given nothing any more, and plays nothing."""
        gone = self._seats.pop(policy, {}).values()
        self._collectors.of.pop(policy, None)
        self._collectors.writing[:] = [seat for seat in self._collectors.writing if seat not in gone]

    def follow(self, given: Mapping[str, str]) -> None:
        """Agents play what they are `given`, by name, from their next episodes on, as soon as that has weights; to be
        called again and again."""
        for name, policy in given.items():
            if policy not in self._seats:
                continue
            agent = self._agents[name]
            places = [place for place in self._collectors.seats if place[0] == agent]
            if places[0] not in self._seats[policy]:
                self._make(policy, agent)
            left = [place for place in places if not self._give(place, policy)]
            if not left:
                self._collectors.policy_of[agent] = policy

    def _give(self, place: Place, policy: str) -> bool:
        """Whether all streams there are the policy's."""
        seats, seat = self._collectors.seats, self._seats[policy][place]
        present = seats[place]
        if present is seat:
            return True
        if isinstance(present, AgentCollector):
            present = seats[place] = Handover(present, self._has_room)
        assert isinstance(present, Handover)
        present.give(seat)
        if present.over:
            present.end()
            seats[place] = seat
        return present.over

    def _make(self, policy: str, agent: int) -> None:
        made = self._build(policy, agent)
        for seat in made.values():
            seat.episodes.close_opening()
        self._seats[policy] |= made
        self._collectors.of.setdefault(policy, []).extend(made.values())
        self._collectors.writing += made.values()

    def _has_room(self, seat: AgentCollector) -> bool:
        """Whether `seat` writes, or its policy's ring has memory for one more that does: or all would wait for it."""
        (policy,) = (name for name, seats in self._seats.items() if seat in seats.values())
        return seat.writes or sum(one.writes for one in self._seats[policy].values()) < self._rooms[policy]


def _outcome(told: AgentTimeStep) -> AgentOutcome:
    """How it ended."""
    assert told.copies is not None
    ends = told.reward, told.terminated, told.truncated, told.final_index, told.final_observation, told.final_common
    return AgentOutcome(told.agent, told.copies, *ends)


def _some(finals: NDArray[Any] | None, left: NDArray[np.bool_]) -> NDArray[Any] | None:
    return None if finals is None or not left.any() else finals[left]
