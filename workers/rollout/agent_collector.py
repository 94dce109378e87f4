"""One agent's seat in all copies of a world: its streams, written row by row straight into ring slots.

Row t is (observation, action, reward and end *caused by that action*, version). A row stays open until the agent's next
observation; rewards and ends that arrive between its turns are added to it. Streams may have their own pace: where all
stand at the same row, a field is one slice assignment for all of them, otherwise it is an index.
What all agents of the world see in common is written elsewhere, once (protocol/experience/shared_obs.py): a row holds
the number of its moment. Legend: `E` streams (copies, times the C places of an agent that stands for many), `n` of them
present in this turn; `T` segment length; `F` stacked frames; `K` side-table entries.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.experience.layout import OUTPUT
from protocol.experience.ring_buffer import Ring
from protocol.experience.shared_obs import SharedObsWriter
from workers.environments.base import AgentOutcome, AgentTimeStep, select_rows
from workers.rollout.acting_policy import ActingPolicy, InferenceRequest
from workers.rollout.observation_encoder import ObservationEncoder
from workers.rollout.segment_block import Index, Rows, SegmentBlock
from workers.rollout.stream_state import EpisodeReturns, RecurrentState, SharedObservationRefs
from workers.runtime.state_capture import State, capture, restore

_HISTORY = ("terminated", "truncated", "moment")
_ELSEWHERE = ("performer", "_sender", "_moments", "_acted", "_done")
"""Of a seat, what others remember, or nobody beyond a turn."""
_NOBODY: NDArray[np.int64] = np.empty(0, np.int64)


class _Carried(NamedTuple):
    """What a block leaves to the next one of its streams."""

    opened: NDArray[np.int64]
    """Streams with an open row."""
    rows: dict[str, NDArray]
    """Their open rows, by field."""
    history: Rows
    tail: dict[str, NDArray]
    """The last rows of all streams, by field, of which `history` are known."""


_NOTHING = _Carried(_NOBODY, {}, 0, {})


class Sender(Protocol):
    """Where segments go: `ExperienceSender`, or the one-process channel."""

    ring: Ring

    def take(self, on_wait: Callable[[], None]) -> slice:
        """Slots to write."""

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """The slots are whole, with so many rows and rows of history (a number, or one a slot); slots without a row
        are no segments."""


class AgentCollector:
    """Agent `name`, which `performer` plays in streams with the numbers `streams`.

    A block that is older than `flush_after` seconds is shipped with the rows it has. `common` holds what all agents
    see; its newest moment is that of the turn which is told, and stream s is of the copy s // C % copies there.
    """

    def __init__(
        self,
        name: str,
        performer: ActingPolicy,
        sender: Sender,
        streams: range,
        noise: np.random.Generator,
        flush_after: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        common: SharedObsWriter | None = None,
    ) -> None:
        self.name = name
        self.performer = performer
        self._sender = sender
        self.noise = noise
        self._flush_after, self._clock = flush_after, clock
        layout, interface = sender.ring.layout, performer.interface
        self._actions = interface.action_encoding
        self._before, self._length = layout.before, layout.length
        count = len(streams)
        self._numbers = np.array(streams, np.uint64)
        self._everyone: NDArray[np.int64] = np.arange(count)
        copies = self._everyone
        if common is not None:
            copies = self._numbers.astype(np.int64) // interface.place.many % common.copies
        ring = sender.ring.nonce
        self._moments = (
            None if common is None else SharedObservationRefs(common, ring, copies, self._length, self._before)
        )
        self._sight = ObservationEncoder(interface, count, self._before + 1, common, copies)
        self._memory = RecurrentState(count, performer.state) if performer.state else None
        self._block: SegmentBlock | None = None
        self._segments = np.zeros(count, np.uint64)
        """Segments of each stream so far."""
        self._row_fields = [f.name for f in layout.fields if f.per == "row"]
        self._history = [name for name in self._row_fields if name in _HISTORY or name in self._sight.names]
        self._clocked = "clock" in self._row_fields
        said = ("log_probability", "value")
        self._said = [name for name in self._row_fields if name in said or name.startswith(OUTPUT)]
        self.episodes = EpisodeReturns(count)
        self._streams: Index = slice(None)
        """Those that act in this turn."""
        self._acted: dict[str, NDArray] = {}
        self._done: dict[str, NDArray] = {}
        """What the policy did in this turn, and its columns of that."""

    def act(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> NDArray:
        """Closes the open rows with what the last actions brought, opens the next ones, and returns actions: n rows."""
        actions = self.take(self.observe(present, on_wait).act())
        self.record(present)
        return actions

    def observe(self, present: AgentTimeStep, on_wait: Callable[[], None]) -> InferenceRequest:
        """First part of `act`: closes the open rows, ships them where the segments are full, and says what the policy
        is to see. Nothing else is to be told before `record`."""
        streams = self._choose(present)
        if self._has_no_entry(streams, present):
            self._flush_block(on_wait)
            streams = self._choose(present)
        block, self._streams = self._block, streams
        if block is not None:
            closed, brought = streams, present
            if not isinstance(streams, slice) and np.count_nonzero(opened := block.opened[streams]) < len(streams):
                self._refuse_early(present, ~opened)
                closed, brought = streams[opened], select_rows(present, np.flatnonzero(opened))
            self._add(block, closed, brought)
            block.close(closed)
        if block is None or block.full(streams, self._length) or self._is_old(block):
            seen = present.observation, present.action_mask
            self._begin_block(streams, _NOTHING if block is None else self._ship(block, streams, *seen), on_wait)
        legal = None if present.action_mask is None else self._sight.legal(present.action_mask)
        state = None if self._memory is None else self._memory.of(streams)
        observation = self._sight.encode(streams, present.observation)
        return InferenceRequest(self.performer, observation, self.noise, legal, state)

    def take(self, acted: dict[str, NDArray]) -> NDArray:
        """Second part of `act`: the actions, of what the policy did."""
        self._done, actions = self._actions.decode(acted["action"], acted.get("amount"))
        self._acted = acted
        return actions

    def record(self, present: AgentTimeStep) -> None:
        """Last part of `act`: opens a row with the observation and what the policy did."""
        block, streams, acted = self._block, self._streams, self._acted
        assert block is not None
        where = (streams, block.at(streams) if self._before == 0 else block.at(streams) + self._before)
        columns = block.columns
        for name, seen in self._sight.columns(present.observation, present.action_mask).items():
            columns[name][where] = seen
        columns["version"][where] = self.performer.packed_version
        if self._clocked:
            columns["clock"][where] = 0.0 if present.clock is None else present.clock
        if self._moments is not None:
            columns["moment"][where] = self._moments.now
        for name, chosen in self._done.items():
            columns[name][where] = chosen
        for name in self._said:
            columns[name][where] = acted[name]
        if self._memory is not None:
            self._memory.keep(streams, acted["state"])
        block.open(streams)
        self.episodes.act(streams)
        block.version_max = self.performer.packed_version

    def add_outcome(self, outcome: AgentOutcome, on_wait: Callable[[], None]) -> None:
        """Adds what arrived between an agent's turns to its open rows; an end closes them."""
        streams = outcome.copies
        if self._block is None or not self._block.has_open(streams):
            raise EnvironmentFault("outcome_without_action", agent=self.name)
        if self._has_no_entry(streams, outcome):
            self._flush_block(on_wait)
        block = self._block
        assert block is not None
        block.split_streams()
        block.has_outcomes = True
        done = outcome.terminated | outcome.truncated
        self._add(block, streams, outcome)
        if np.count_nonzero(done):
            block.close(streams[done])

    def get_state(self) -> State:
        """All that it remembers between two turns, the open segments included."""
        return capture(self, _ELSEWHERE)

    def set_state(self, state: State, on_wait: Callable[[], None]) -> None:
        """The inverse, before anybody acts; the open segments are in slots of its own ring."""
        slots = self._sender.take(on_wait)
        columns = {name: column[slots] for name, column in self._sender.ring.columns.items()}
        self._block = SegmentBlock(slots, columns, self._before, True, self.performer.packed_version, self._clock())
        restore(self, state)

    @property
    def segments(self) -> NDArray[np.uint64]:
        """[E]: segments of each stream so far."""
        return self._segments

    @property
    def open_rows(self) -> int:
        """Rows acted in that are in no finished segment yet, but for the last of each stream, which is still open."""
        return 0 if self._block is None else self._block.count()

    @property
    def writes(self) -> bool:
        """Whether it has slots that it writes to."""
        return self._block is not None

    def waits(self, streams: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[n]: which of `streams` have acted and wait for what that brings."""
        block = self._block
        if block is None or block.aligned:
            return np.full(len(streams), block is not None)
        return block.opened[streams]

    def retire(self) -> None:
        """Ships what it has; no stream waits, and it may be long until one acts again, or for ever."""
        if self._block is not None:
            self._block.split_streams()
            self._ship(self._block, _NOBODY, self.performer.interface.place.observed.zeros(0), None)

    def flush(self, on_wait: Callable[[], None]) -> None:
        """Ships what the present block has if it is old, although nobody acts."""
        if self._block is not None and self._is_old(self._block):
            self._flush_block(on_wait)

    def _flush_block(self, on_wait: Callable[[], None]) -> None:
        """Finishes the block with the rows that are whole; open ones are taken along into the next."""
        assert self._block is not None
        self._block.split_streams()
        nothing = self.performer.interface.place.observed.zeros(0)
        self._begin_block(_NOBODY, self._ship(self._block, _NOBODY, nothing, None), on_wait)

    def _choose(self, present: AgentTimeStep) -> Index:
        """The streams present, as a slice of all where they all stand at the same row."""
        block, chosen = self._block, present.copies
        expected = len(self._everyone) if chosen is None else len(chosen)
        if len(present.observation) != expected:
            raise EnvironmentFault(
                "observations_miscounted", agent=self.name, expected=expected, count=len(present.observation)
            )
        if chosen is None:
            return slice(None) if block is None or block.align_streams() else self._everyone
        if block is not None:
            block.split_streams()
        return chosen

    def _add(self, block: SegmentBlock, streams: Index, brought: AgentTimeStep | AgentOutcome) -> None:
        """Rewards and ends onto open rows, and into the returns of episodes."""
        columns = block.columns
        where = (streams, block.at(streams) + self._before)
        if block.aligned:
            columns["reward"][where] = brought.reward
        else:
            columns["reward"][where] += brought.reward
        columns["terminated"][where] = brought.terminated
        columns["truncated"][where] = brought.truncated
        ended = self.episodes.add(streams, brought.reward, brought.terminated | brought.truncated)
        if not len(ended):
            return
        self._sight.reset_streams(ended)
        if self._memory is not None:
            self._memory.reset(ended)
        if len(brought.final_index):
            self._write_final_observations(block, self._everyone[streams][brought.final_index], brought)

    def _has_no_entry(self, streams: Index, brought: AgentTimeStep | AgentOutcome) -> bool:
        """Whether a stream was cut more often than its side table has entries: episodes may be shorter than the world's
        `episode_steps`, say of an agent that came late. Its segment then ends before that row."""
        if self._block is None or not len(brought.final_index):
            return False
        cut = self._everyone[streams][brought.final_index]
        return int(self._block.ends[cut].max()) >= self._block.columns["final_row"].shape[1]

    def _write_final_observations(
        self, block: SegmentBlock, streams: NDArray[np.int64], brought: AgentTimeStep | AgentOutcome
    ) -> None:
        entry = block.ends[streams]
        assert brought.final_observation is not None
        for name, seen in self._sight.columns(brought.final_observation).items():
            block.columns[f"final_{name}"][streams, entry] = seen
        if self._moments is not None:
            block.columns["final_common"][streams, entry] = brought.final_common
        block.columns["final_row"][streams, entry] = block.at(streams)
        block.ends[streams] += 1

    def _ship(self, block: SegmentBlock, streams: Index, observation: NDArray, mask: NDArray | None) -> _Carried:
        """Finishes the block: the new observations of `streams` are bootstrap rows, with their masks."""
        following = (streams, block.at(streams) + self._before)
        for name, seen in self._sight.columns(observation, mask).items():
            block.columns[name][following] = seen
        if self._moments is not None:
            block.columns["moment"][following] = self._moments.now
        opened, rows, history, tail = _NOTHING
        if not block.aligned:  # streams that do not act now take their open rows along
            self._end_idle(block, streams)
            opened = np.flatnonzero(block.opened)
            place = (opened, block.rows[opened] + self._before)
            rows = {name: block.columns[name][place] for name in self._row_fields}
        valid = block.at(slice(None))
        if self._before:  # before the block is out of our hands
            tail = block.tail(self._history)
            history = np.minimum(block.history + valid, self._before)
        self._block, slots, table = None, block.slots, self._sender.ring.table
        table["stream"][slots] = self._numbers
        table["stream_sequence"][slots] = self._segments
        table["version_min"][slots] = block.version_min
        table["version_max"][slots] = block.version_max
        table["episode"][slots] = block.episode.view(np.uint8).reshape(-1, 4)[:, :3]
        if self._moments is not None:
            self._moments.close(block)
        self._segments += np.uint64(1) if isinstance(valid, int) else (valid > 0).astype(np.uint64)
        self._sender.finish(slots, valid, block.history)
        return _Carried(opened, rows, history, tail)

    def _begin_block(self, streams: Index, carried: _Carried, on_wait: Callable[[], None]) -> None:
        """Opens a block with what the last one left, for `streams` that act now."""
        slots, opened = self._sender.take(on_wait), carried.opened
        columns = {name: column[slots] for name, column in self._sender.ring.columns.items()}
        even = len(opened) == 0 and (isinstance(streams, slice) or len(streams) == len(self._everyone))
        block = self._block = SegmentBlock(
            slots, columns, self._before, even, self.performer.packed_version, self._clock()
        )
        columns["final_row"].fill(-1)
        for name, rows in carried.tail.items():
            columns[name][:, : self._before] = rows
        block.history = carried.history
        block.episode[:] = self.episodes.ended
        if len(opened):
            for name, values in carried.rows.items():
                columns[name][opened, self._before] = values
            block.opened[opened] = True
            block.has_outcomes = True
            block.version_min = carried.rows["version"].min()
        if self._memory is not None:
            self._memory.begin(columns["state"], opened)
        if self._moments is not None:
            self._moments.acquire(block, opened)

    def _end_idle(self, block: SegmentBlock, acting: Index) -> None:
        """Behind an end that is followed by nothing yet, the last observation once more: it is never learned from, but
        it is there."""
        idle = (block.rows > 0) & ~block.opened
        idle[acting] = False
        streams = np.flatnonzero(idle)
        at = block.rows[streams] + self._before
        for name in (*self._sight.names, "moment"):
            if name in block.columns:
                block.columns[name][streams, at] = block.columns[name][streams, at - 1]

    def _is_old(self, block: SegmentBlock) -> bool:
        """Whether it goes on for longer than `flush_after` seconds, or than memory for common observations lasts."""
        if self._moments is not None and self._moments.is_late(block):
            return True
        return self._flush_after is not None and self._clock() - block.since > self._flush_after and block.count() > 0

    def _refuse_early(self, present: AgentTimeStep, fresh: NDArray[np.bool_]) -> None:
        """What is told of an action that was never made belongs to no row."""
        if present.reward[fresh].any() or present.terminated[fresh].any() or present.truncated[fresh].any():
            raise EnvironmentFault("reward_before_first_action", agent=self.name)
