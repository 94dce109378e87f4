"""What simulators say of episodes, checked: nothing is taken in of a message that is wrong in any part.

In flows: `observe` and `end` of guests. Out flows: rows of the desks, requests for actions; a GuestFault for each
message that is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.messages.fast_path import ObserveHeader
from protocol.messages.simulator import End, Observe
from protocol.spaces import World
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.simulators.agent_inbox import AgentInbox
from workers.environments.simulators.array_codec import RowCodec
from workers.environments.simulators.session import GuestFault, SimulatorSession

_MOST_REWARD = float(np.finfo(np.float32).max)
_MOST_LATE = 2**53
"""A counter holds no more."""


@dataclass(slots=True, eq=False)
class Request:
    """An `observe` that is to be answered: (agent, row) of each that asked. `came_at`: when it arrived, `seen_at`: when
    it was looked at."""

    guest: SimulatorSession
    number: int
    episode: int
    asks: list[tuple[int, int]]
    elements: list[str]
    came_at: float
    seen_at: float


class MessageValidator:
    """Of a world in `copies` copies. `on_over` is called when a guest's episode is over for all its agents, `tell` with
    the number of an agent whose episode ended and what is told of it."""

    def __init__(
        self,
        world: World,
        copies: int,
        on_over: Callable[[SimulatorSession], None],
        tell: Callable[[int, Mapping[str, float]], None],
    ) -> None:
        self.desks = [AgentInbox(number, place, copies) for number, place in enumerate(world.places)]
        self.readings = [RowCodec(place) for place in world.places]
        self._rows = {
            slot: (number, k, place.many)
            for number, place in enumerate(world.places)
            for k, slot in enumerate(place.slots)
        }
        """agent -> number of its place, which of those there it is, how many there are."""
        self._on_over, self._tell = on_over, tell
        self.requests: list[Request] = []
        self.steps = 0
        """Rows that were closed or continued since the last turn."""
        self.late = self.rows_cut = 0

    def listen(self, guest: SimulatorSession) -> Iterator[GuestFault]:
        """What a guest said, in order, and what was wrong with it. What is about an agent that asks for an action is
        looked at when it was given one."""
        desks = self.desks
        while guest.inbox and not guest.gone:
            heard = guest.inbox[0]
            try:
                rows = self._rows_of(guest, heard.message.agents)
                for agent, row in rows:
                    if desks[agent].asked[row]:
                        return
                guest.inbox.popleft()
                if isinstance(heard.message, End):
                    self._end(guest, heard.message, heard.frames, rows)
                else:
                    self._observe(guest, heard.message, heard.frames, rows, heard.at)
                guest.strikes = 0
            except GuestFault as fault:
                if guest.inbox and guest.inbox[0] is heard:
                    guest.inbox.popleft()
                fault.answers = 0 if isinstance(heard.message, End) else heard.message.number
                yield fault
                if fault.fatal:
                    return

    @property
    def ended(self) -> bool:
        """Whether there is an end to tell of."""
        return True in [desk.ended for desk in self.desks]

    def take(self) -> tuple[list[tuple[AgentTimeStep | None, AgentOutcome | None]], int]:
        """Who asks and what ended at each desk since the last turn, and how many rows were closed or continued."""
        steps, self.steps = self.steps, 0
        return [desk.take() for desk in self.desks], steps

    def cut(self, guest: SimulatorSession) -> None:
        """Nothing more comes of this guest: its open rows end here."""
        self.requests = [request for request in self.requests if request.guest is not guest]
        for desk in self.desks:
            for row in range(guest.copy * desk.many, (guest.copy + 1) * desk.many):
                cut = desk.truncate(row)
                self.rows_cut += cut
                self.steps += cut

    def _rows_of(self, guest: SimulatorSession, agents: Sequence[str]) -> list[tuple[int, int]]:
        if agents == guest.agents:  # as a rule it speaks of the same ones always
            return guest.rows
        rows = []
        for name in agents:
            found = self._rows.get(name)
            if found is None:
                some = ", ".join([*self._rows][:8])
                raise GuestFault("agent_not_in_world", "agent", agent=name[:64], choices=some)
            rows.append((found[0], guest.copy * found[2] + found[1]))
        if len(rows) > 1 and len(set(rows)) < len(rows):
            raise GuestFault("message_names_agent_twice", "agent")
        guest.agents, guest.rows = agents, rows
        return rows

    def _rewards(self, message: ObserveHeader | Observe | End, rows: list[tuple[int, int]]) -> list[float]:
        """Of each, checked."""
        given = message.rewards
        if not given:
            return [0.0] * len(rows)
        if len(given) != len(rows):
            raise GuestFault("reward_count_differs", "reward", count=len(given), expected=len(rows))
        for i, (agent, row) in enumerate(rows):
            reward = given[i]
            if abs(reward) > _MOST_REWARD:
                raise GuestFault("reward_exceeds_float32", "value", value=reward, agent=message.agents[i])
            if reward and not self.desks[agent].open[row]:
                raise GuestFault("simulator_reward_without_action", "reward", agent=message.agents[i])
        return given

    def _observe(
        self,
        guest: SimulatorSession,
        message: ObserveHeader | Observe,
        frames: Sequence[bytes],
        rows: list[tuple[int, int]],
        at: float,
    ) -> None:
        if not rows:
            raise GuestFault("observation_without_agents", "agent")
        if message.number <= guest.number:
            raise GuestFault("observation_number_repeated", "number", value=message.number, last=guest.number)
        allowed = guest.next_episode if guest.hello.drives or guest.playing else 0
        if message.episode != allowed:
            wanted = f"episode {guest.next_episode}" if allowed else "none before reset is told"
            raise GuestFault("observation_of_wrong_episode", "episode", value=message.episode, expected=wanted)
        rewards = self._rewards(message, rows)
        if message.elements:
            for number in {agent for agent, _ in rows}:
                self.readings[number].check_elements(message.elements)
        told = self._read(frames, rows)
        for i, (agent, row) in enumerate(rows):
            desk = self.desks[agent]
            self.steps += bool(desk.open[row])
            seen, mask = told[i]
            desk.add_observation(row, seen, mask, rewards[i], message.clock)
        guest.number, guest.episode, guest.playing = message.number, message.episode, True
        if message.late:
            self.late = min(self.late + message.late, _MOST_LATE)
        now = time.monotonic()
        self.requests.append(Request(guest, message.number, message.episode, rows, message.elements, at, now))

    def _read(
        self, frames: Sequence[bytes], rows: list[tuple[int, int]]
    ) -> list[tuple[NDArray[Any], NDArray[np.bool_] | None]]:
        """What each sees, and its mask."""
        if len(rows) == 1 and (seen := self.readings[rows[0][0]].fast_decode(frames)) is not None:
            return [(seen, None)]
        readings = [self.readings[agent] for agent, _ in rows]
        size = sum([reading.whole for reading in readings])
        frame, at, told = _only(frames, size, "observations"), 0, []
        for reading in readings:
            told.append((reading.observation(frame, at), reading.mask(frame, at)))
            at += reading.whole
        return told

    def _end(self, guest: SimulatorSession, message: End, frames: Sequence[bytes], rows: list[tuple[int, int]]) -> None:
        if not guest.playing:
            raise GuestFault("end_without_episode", "episode", value=message.episode)
        if message.episode != guest.episode:
            raise GuestFault("end_of_wrong_episode", "episode", value=message.episode, expected=guest.episode)
        for (agent, row), name in zip(rows, message.agents, strict=True):
            if not self.desks[agent].open[row]:
                raise GuestFault("ended_agent_did_not_act", "order", agent=name)
        if message.over:
            self._check_all(guest, set(rows))
        rewards = self._rewards(message, rows)
        infos = message.infos or [{}] * len(rows)
        if len(infos) != len(rows):
            raise GuestFault("info_count_differs", "info", count=len(infos), expected=len(rows))
        finals: list[NDArray[Any] | None] = [None] * len(rows)
        sizes = [self.readings[agent].size for agent, _ in rows]
        frame = _only(frames, sum(sizes) if message.truncated else 0, "last observations")
        if message.truncated:
            starts = np.cumsum([0, *sizes]).tolist()
            finals = [self.readings[agent].observation(frame, at) for (agent, _), at in zip(rows, starts, strict=False)]
        for (agent, row), reward, final, info in zip(rows, rewards, finals, infos, strict=True):
            self.steps += 1
            self.desks[agent].end(row, reward, final)
            self._tell(agent, info)
        if message.over:
            guest.playing = False
            self._on_over(guest)

    def _check_all(self, guest: SimulatorSession, named: set[tuple[int, int]]) -> None:
        """GuestFault if an episode is said to be over for everybody, but not how it ended for somebody."""
        for name, (agent, k, many) in self._rows.items():
            row = guest.copy * many + k
            if (agent, row) not in named and self.desks[agent].open[row]:
                raise GuestFault("over_without_end_of_agent", "order", agent=name)


def _only(frames: Sequence[bytes], size: int, what: str) -> bytes:
    """The one frame that belongs to a message; GuestFault if it is another."""
    if len(frames) != 1 or len(frames[0]) != size:
        if not size and not frames:
            return b""
        sizes = ", ".join(str(len(frame)) for frame in frames[:4]) or "none"
        raise GuestFault("frame_size_differs", "size", value=sizes, what=what, expected=size)
    return frames[0]
