"""One agent's seat in all copies of a world: its streams, written row by row straight into ring slots.

Row t is (observation, action, reward and end *caused by that action*, version). A row stays open until the agent's next
observation, which brings the reward; the segment is whole when the observation after its last row is there.
Legend: `E` copies, one stream each; `T` segment length; `F` stacked frames; `K` side-table entries.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.ring import Ring
from workers.acting.performer import Performer
from workers.environments.base import Present

__all__ = ["Seat", "Sender"]


class Sender(Protocol):
    """Where segments go: `ExperienceSender`, or the one-process channel."""

    ring: Ring

    def take(self, on_wait: Callable[[], None]) -> slice:
        """Slots to write."""

    def finish(self, slots: slice, valid: int, before: int) -> None:
        """The slots are whole."""


class Seat:
    """Agent `name`, which `performer` plays in `copies` copies; its streams are numbered from `first_stream`."""

    def __init__(
        self,
        name: str,
        performer: Performer,
        sender: Sender,
        copies: int,
        first_stream: int,
        noise: np.random.Generator,
    ) -> None:
        self.name = name
        self.performer = performer
        self._sender = sender
        self._noise = noise
        self._copies = copies
        layout = sender.ring.layout
        self._before, self._length = layout.before, layout.length
        self._streams = np.arange(first_stream, first_stream + copies, dtype=np.uint64)
        self._block = 0
        self._slots: slice | None = None
        self._row = 0
        self._history = 0
        self._columns: dict[str, NDArray] = {}
        shape = layout.fields[0].shape
        self._stack = (
            np.zeros((copies, layout.before + 1, *shape), np.dtype(layout.fields[0].dtype)) if self._before else None
        )
        self._fields = [
            f.name for f in layout.fields if f.per == "row" and f.name in ("action", "log_probability", "value")
        ]
        self._ends = np.zeros(copies, np.int64)
        self._version_min = self._version_max = np.uint64(0)
        self._returns = np.zeros(copies)
        self.episodes = 0
        self.return_sum = 0.0
        self.steps = 0

    def act(self, present: Present, on_wait: Callable[[], None]) -> NDArray[np.int64]:
        """Closes the open row with what the last action brought, opens the next one, and returns actions [E]."""
        observation = present.observation
        if len(observation) != self._copies:
            raise EnvironmentFault(
                f"agent {self.name!r} is present in {len(observation)} of {self._copies} copies; this release needs "
                "every agent in every copy at each of its turns: make the environment keep all agents until "
                "the episode ends"
            )
        done = self._close_row(present) if self._slots is not None else None
        if self._slots is None or self._row == self._length:
            self._next_segment(observation, on_wait)
        seen = observation if self._stack is None else self._push_frame(observation, done)
        acted = self.performer.act(seen, self._noise)
        row = self._before + self._row
        columns = self._columns
        columns["observation"][:, row] = observation
        columns["version"][:, row] = self.performer.word
        for name in self._fields:
            columns[name][:, row] = acted[name]
        self._version_max = self.performer.word
        self.steps += self._copies
        return acted["action"]

    def take_episodes(self) -> tuple[int, float]:
        """(episodes, sum of their returns) since the last call."""
        taken = (self.episodes, self.return_sum)
        self.episodes, self.return_sum = 0, 0.0
        return taken

    @property
    def open_rows(self) -> int:
        """Rows acted in that are in no finished segment yet."""
        return self._row * self._copies

    def _close_row(self, present: Present) -> NDArray[np.bool_]:
        columns, row = self._columns, self._before + self._row
        columns["reward"][:, row] = present.reward
        columns["terminated"][:, row] = present.terminated
        columns["truncated"][:, row] = present.truncated
        self._returns += present.reward
        done = present.terminated | present.truncated
        if done.any():
            self.episodes += int(done.sum())
            self.return_sum += float(self._returns[done].sum())
            self._returns[done] = 0.0
            if len(present.final_index):
                self._side_table(present)
        self._row += 1
        return done

    def _side_table(self, present: Present) -> None:
        index = present.final_index
        entry = self._ends[index]
        room = self._columns["final_row"].shape[1]
        if int(entry.max()) >= room:
            raise EnvironmentFault(
                f"agent {self.name!r} was truncated more than {room} times within {self._length} steps, which the "
                "world's episode_steps rules out; correct episode_steps or leave it out"
            )
        self._columns["final_observation"][index, entry] = present.final_observation
        self._columns["final_row"][index, entry] = self._row
        self._ends[index] += 1

    def _next_segment(self, observation: NDArray, on_wait: Callable[[], None]) -> None:
        """Finishes the full segments (the new observation is their bootstrap row) and opens the next ones."""
        old, old_slots = self._columns, self._slots
        table = self._sender.ring.table
        tail = {}
        if old_slots is not None:
            if self._before:  # before the block is out of our hands
                tail = {name: old[name][:, self._length : self._length + self._before].copy() for name in _HISTORY}
            old["observation"][:, self._before + self._length] = observation
            table["stream"][old_slots] = self._streams
            table["stream_sequence"][old_slots] = self._block
            table["version_min"][old_slots] = self._version_min
            table["version_max"][old_slots] = self._version_max
            self._sender.finish(old_slots, self._length, self._history)
            self._block += 1
        self._slots = self._sender.take(on_wait)
        self._columns = {name: column[self._slots] for name, column in self._sender.ring.columns.items()}
        self._columns["final_row"].fill(-1)
        self._ends.fill(0)
        for name, rows in tail.items():
            self._columns[name][:, : self._before] = rows
        self._history = self._before if tail else 0
        self._row = 0
        self._version_min = self.performer.word

    def _push_frame(self, observation: NDArray, done: NDArray[np.bool_] | None) -> NDArray:
        """The last F observations of each stream, newest last; at an episode's start all are its first."""
        stack = self._stack
        assert stack is not None
        if done is None:
            stack[:] = observation[:, None]
            return stack
        stack[:, :-1] = stack[:, 1:]
        stack[:, -1] = observation
        if done.any():
            stack[done] = observation[done][:, None]
        return stack


_HISTORY = ("observation", "terminated", "truncated")
