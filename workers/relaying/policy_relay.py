"""One policy's segments in a relay: from the frames that brought them into a pool, and by header to the learner.

In flows: messages of actors elsewhere, acknowledgements, who lives. Out flow: headers over a `LearnerLink`. A slot is
used again when the learner has acknowledged what lies in it; in replay when the actor's own ring would have used its
own one again. Legend: `n` segments of a message, which stay together as a block.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.ack_publisher import Key
from protocol.experience.ring_buffer import Records
from protocol.experience.validation import read_columns, read_records
from protocol.memory.shared_file import Counters
from protocol.memory.shared_obs_store import Lease, SharedObsStore
from protocol.memory.slot_allocator import SlotPool
from protocol.messages.compression import unpacked
from protocol.messages.core import Ack, CommonRows, Segments
from workers.planning.policy_plan import TrainingPlan
from workers.relaying.learner_link import LearnerLink

_REFUSED_AFTER = 5.0
"""Seconds, five acknowledgements, after which a learner that has not mentioned a segment does not want it."""


@dataclass(frozen=True, slots=True)
class _Parcel:
    """A checked message: how it will be announced; `columns` are views on the frames that brought it."""

    header: Segments
    records: Records
    columns: dict[str, NDArray]
    lease: Lease | None


@dataclass(slots=True)
class _Block:
    """How segments are announced, where they lie, and the moments that they refer to."""

    header: Segments
    records: Records
    lease: Lease | None
    at: float = 0.0


@dataclass(slots=True)
class _ActorState:
    """What came from one actor incarnation."""

    settled: int = 0
    heard: int = 0
    """The highest number that the learner said it knows."""
    heard_at: float = 0.0
    held: dict[int, _Block] = field(default_factory=dict)
    """Announced and not settled, by last number."""
    kept: deque[_Block] = field(default_factory=deque)
    """Settled and still sampled, oldest first."""


class PolicySegmentRelay:
    """`path`: where the pool lies, which is made when the first segments come. `shelf`: all lanes' moments."""

    def __init__(
        self, plan: TrainingPlan, path: Path, shelf: SharedObsStore, link: LearnerLink, counters: Counters
    ) -> None:
        self.link = link
        """To the learner."""
        self._plan, self._shelf, self._counters = plan, shelf, counters
        self._check = plan.check
        self._pool = SlotPool(plan.layout, plan.pool_slots, path, plan.config.checksums)
        self._lines: dict[Key, _ActorState] = {}
        self._parked: dict[tuple[Key, int], _Parcel] = {}
        """What waits for room, by actor and last number, oldest first."""
        self._living: Set[Key] = frozenset()

    def move(self, link: LearnerLink) -> None:
        """The learner is elsewhere now: it is told of everything that is not settled."""
        self.link = link
        for key, line in self._lines.items():
            link.listen(self._plan.name, key)
            line.heard, line.heard_at = 0, 0.0
            for last in sorted(line.held):
                self._announce(line.held[last], line.held[last].header.after, True)

    def take(self, header: Segments, frames: Sequence[Any]) -> int | None:
        """Copies a message to the pool and announces it; where there is no room it waits. What is known is announced
        once more, what is settled is not. Returns the bytes copied, None where nothing was new or of use; WireError if
        the message breaks a rule."""
        parcel = self._open(header, frames)
        records, key = parcel.records, (header.actor, header.incarnation)
        line, last = self._line(key), int(records["number"][-1])
        known = line.held.get(last)
        if known is not None or last <= line.settled or (key, last) in self._parked:
            self._counters.add(f"repeated.{self._plan.name}", len(records))
            if known is not None:
                self._announce(known, header.after, True)
            return None
        layout, columns = self._plan.layout, parcel.columns
        if header.common is not None:
            if not self._shelf.holds(key, columns, records, layout):
                self._counters.add("out_of_order", len(records))  # the message that brought the moments was lost
                return None
            parcel = _Parcel(parcel.header, records, columns, self._shelf.lend(key, columns, records, layout))
        if self._parked or not self._has_room(len(records)):
            self._queue(key, last, parcel)
            return 0
        return self._store(line, parcel)

    def retry(self) -> int:
        """Takes what waited for room, as far as there is some now; the bytes copied. SharedMemoryError where somebody
        made the pool shorter: a learner would take nothing more from it, and nothing would become free."""
        self._pool.check_whole()
        copied = 0
        for (key, last), parcel in list(self._parked.items()):
            if not self._has_room(len(parcel.records)):
                break
            del self._parked[key, last]
            copied += self._store(self._line(key), parcel)
        return copied

    def settle(self, ack: Ack) -> None:
        """The learner has all segments of an actor incarnation up to a number."""
        line = self._lines.get((ack.actor, ack.incarnation))
        if line is None:
            return
        line.settled = max(line.settled, ack.acknowledged)
        line.heard, line.heard_at = ack.announced, time.monotonic()
        for last in sorted(last for last in line.held if last <= line.settled):
            line.kept.append(self._release(line, last))
        while len(line.kept) > self._plan.kept_blocks:
            self._free(line.kept.popleft())

    def living(self, actors: Set[Key]) -> None:
        """Who is a member now. A dead actor repeats nothing: what its learner refused is given up."""
        self._living = actors
        now = time.monotonic()
        for key in [key for key in self._lines if key not in actors]:
            line = self._lines[key]
            for last, block in list(line.held.items()):
                if last > line.heard and min(now, line.heard_at) - block.at > _REFUSED_AFTER:
                    self._free(self._release(line, last))
                    self._counters.add(f"refused.{self._plan.name}", len(block.records))
            if not line.held and not line.kept:
                self.link.ignore(self._plan.name, key)
                del self._lines[key]

    def close(self) -> None:
        """Lets go of the pool."""
        self._parked.clear()
        self._pool.close()

    def _open(self, header: Segments, frames: Sequence[Any]) -> _Parcel:
        """Checks a message and takes the moments in it, which later ones may refer to whatever becomes of this one."""
        layout, fields = self._plan.layout, len(self._plan.layout.fields)
        if header.layout != layout.hash:
            raise WireError("segments_layout_differs", value=header.layout, expected=layout.hash)
        if not header.inline:
            raise WireError("segments_in_remote_memory", peer=header.actor)
        expected = 1 + fields + self._shelf.frames(header.common)
        if len(frames) != expected or header.count > self._pool.slots:
            raise WireError(
                "relayed_segments_malformed",
                value=len(frames),
                count=header.count,
                expected=expected,
                limit=self._pool.slots,
            )
        records = read_records(frames[0], header.count, layout)
        packed = unpacked(frames[1 : 1 + fields], header.compressed, header.count, layout)
        columns = read_columns(packed, header.count, layout)
        if self._check is not None:
            self._check(columns, records, layout)
        common = self._shelf.put((header.actor, header.incarnation), header.common, frames[1 + fields :])
        place = None
        if common is not None:
            place = CommonRows(ring=str(common.ring.path), nonce=common.ring.nonce, writer=int(common.writer))
        header = header.model_copy(update={"inline": False, "compressed": [], "common": place})
        return _Parcel(header, records, columns, None)

    def _line(self, key: Key) -> _ActorState:
        if key not in self._lines:
            self._lines[key] = _ActorState()
            self.link.listen(self._plan.name, key)
        return self._lines[key]

    def _has_room(self, n: int) -> bool:
        """Whether `n` slots are free, if need be those that a dead actor's replay still had."""
        for key, line in self._lines.items():
            while self._pool.free < n and line.kept and key not in self._living:
                self._free(line.kept.popleft())
        return self._pool.free >= n

    def _queue(self, key: Key, last: int, parcel: _Parcel) -> None:
        waiting = sum(len(other.records) for other in self._parked.values())
        if waiting + len(parcel.records) > self._pool.slots:
            self._return(parcel.lease)
            raise WireError("relay_pool_overrun", limit=self._pool.slots)
        self._parked[key, last] = parcel
        self._counters.add(f"waiting_for_room.{self._plan.name}", len(parcel.records))

    def _store(self, line: _ActorState, parcel: _Parcel) -> int:
        count, ring = len(parcel.records), self._pool.ring
        stored = self._pool.store(parcel.records, parcel.columns)
        header = parcel.header.model_copy(update={"ring": str(ring.path), "nonce": ring.nonce})
        block = line.held[int(stored["number"][-1])] = _Block(header, stored, parcel.lease)
        self._announce(block, header.after, header.resent)
        self._counters.add(f"relayed.{self._plan.name}", count)
        self._counters.add(f"held.{self._plan.name}", count)
        return count * self._plan.layout.segment_bytes

    def _announce(self, block: _Block, after: int, resent: bool) -> None:
        block.at = time.monotonic()
        self.link.announce(block.header.model_copy(update={"after": after, "resent": resent}), block.records)

    def _release(self, line: _ActorState, last: int) -> _Block:
        """A block that is held no more."""
        block = line.held.pop(last)
        self._counters.add(f"held.{self._plan.name}", -len(block.records))
        return block

    def _free(self, block: _Block) -> None:
        """Nobody needs a block. Marked so before its moments may change: a reader never takes one for whole."""
        slots = block.records["slot"]
        self._pool.ring.begin(slots.astype(np.int64))
        self._pool.give_back(slots)
        self._return(block.lease)

    def _return(self, lease: Lease | None) -> None:
        while lease is not None and lease.segments:
            self._shelf.give_back(lease)
