"""What one policy's learner takes in: announced segments that are checked, fresh and in order.

In flow: frames of messages; their headers are decoded, and those of one sender that wait together are checked and taken
as one. Out flow: `Arrival`s that wait for the learner; refusals as errors, before anything changed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError, WireError
from protocol.experience.ack_publisher import AckSender, Key
from protocol.experience.layout import Layout
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.ring_buffer import RECORD, Place, Records, Ring, copied, place_of
from protocol.experience.shared_obs import SharedObs
from protocol.experience.validation import ActionCheck, check_final_rows, read_columns, read_records
from protocol.memory.shared_file import PREFIX, Counters
from protocol.memory.shared_obs_store import Lease, SharedObsStore
from protocol.memory.slot_allocator import SlotPool
from protocol.messages.codec import decode, packed
from protocol.messages.compression import unpacked
from protocol.messages.core import Segments

_TOGETHER = 1024
"""Segments up to which arrivals of one actor are put together."""
_RINGS = 8
"""That one actor, of all its incarnations, may have attached: each takes two descriptors."""
_PARKED = 4
"""Pools that segments waiting for room may fill; actors that keep to their credit need less than one."""


@dataclass(slots=True)
class Arrival:
    """Announced segments: where they lie and their records as announced. `owned` slots go back to the pool, used.
    `common`: where the moments of their actor lie, where agents see something in common."""

    actor: str
    incarnation: int
    ring: Ring
    records: Records
    owned: bool
    common: SharedObs | None = None

    def continues(self, other: Arrival) -> bool:
        """Whether `other`, which came later, is more of the same."""
        return (
            self.ring is other.ring
            and (self.actor, self.incarnation) == (other.actor, other.incarnation)
            and self.common is other.common
        )


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Checked inline segments; `columns` are views on the frames that brought them."""

    key: Key
    records: Records
    columns: dict[str, NDArray]
    common: SharedObs | None
    lease: Lease | None


@dataclass(slots=True)
class PolicyInbox:
    """One policy's: what its actors announced, and where it lies."""

    name: str
    layout: Layout
    ledger: ReceiptLog
    pool: SlotPool
    check: ActionCheck | None
    most: int
    announced: dict[Key, int]
    settled: dict[Key, int]
    shelf: SharedObsStore
    acks: AckSender
    counters: Counters
    arrivals: deque[Arrival] = field(default_factory=deque)
    waiting_for_room: deque[_Parcel] = field(default_factory=deque)
    rings: dict[Key, Ring] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    """By slot of the pool: the moments that the segment there refers to."""
    left: list[tuple[Key, Ring]] = field(default_factory=list)
    """Rings whose actors are announced in others since: of a relay that was started again."""

    def accepted(self, pile: HeaderBatch) -> Arrival:
        """Segments in memory, to be queued. What they refer to is checked where it lies, before anything of it is
        used."""
        header, layout = pile.header, self.layout
        key = (header.actor, header.incarnation)
        records = read_records(pile.records(), header.count * len(pile.messages), layout)
        if len(pile.messages) > 1:
            ends = records["number"][header.count - 1 : -1 : header.count]
            if (ends < np.array(pile.afters[1:], np.uint64)).any():
                raise WireError("messages_out_of_order")
        ring = self._ring(key, header)
        if int(records["slot"].max()) >= ring.slots:
            raise WireError("record_slot_not_readable", limit=ring.slots)
        place = place_of(records["slot"])
        if "final_row" in ring.columns:
            check_final_rows(ring.columns["final_row"][place], layout)
        self.check_in_place(ring, records, place)
        common = self.shelf.near(key, header.common)
        records = self.fresh(key, pile.afters[0], records)
        self.acks.came(self.name, key, records["number"][(len(records) - 1) % header.count :: header.count].tolist())
        return Arrival(*key, ring, records, False, common)

    def accept_inline(self, header: Segments, after: int, frames: Sequence[zmq.Frame]) -> int | None:
        """Segments in frames: checked, then copied to the pool; where that has no room, they wait, announced all the
        same. None: nothing in them was new, or of use before what was lost ahead of them."""
        layout, key = self.layout, (header.actor, header.incarnation)
        fields = len(layout.fields)
        expected = 1 + fields + self.shelf.frames(header.common)
        if len(frames) != expected:
            raise WireError("segment_frames_wrong", count=len(frames), expected=expected)
        records = read_records(frames[0].buffer, header.count, layout)
        if header.common is None and records["number"][-1] <= self.announced.get(key, 0):
            self.counters.add("repeated_headers", header.count)  # before it costs what a fresh one does
            return None
        packed = frames[1 : fields + 1]
        columns = read_columns(unpacked(packed, header.compressed, header.count, layout), header.count, layout)
        if self.check is not None:
            self.check(columns, records, layout)
        common = self.shelf.put(key, header.common, frames[fields + 1 :])
        return self._admit(key, after, records, columns, common)

    def _admit(
        self, key: Key, after: int, records: Records, columns: dict[str, NDArray], common: SharedObs | None
    ) -> int | None:
        if sum(len(parcel.records) for parcel in self.waiting_for_room) > _PARKED * self.pool.slots:
            raise WireError("credit_exceeded", factor=_PARKED, limit=self.pool.slots)
        known = int(np.count_nonzero(records["number"] <= self.announced.get(key, 0)))
        if known:
            columns = {name: column[known:] for name, column in columns.items()}
        if common is not None and not self.shelf.holds(key, columns, records[known:], self.layout):
            self.counters.add("out_of_order", len(records) - known)  # the message that brought the moments was lost
            return None
        fresh = self._news(key, after, records)
        if len(fresh) == 0:
            return None
        room = not self.waiting_for_room and self.pool.free >= len(fresh)
        if room:
            stored = self.pool.store(fresh, columns)
        last = self.announced[key] = int(fresh["number"][-1])
        self.acks.came(self.name, key, (last,))
        lease = None if common is None else self.shelf.lend(key, columns, fresh, self.layout)
        if room:
            return self._stored(key, stored, common, lease)
        self.waiting_for_room.append(_Parcel(key, fresh, columns, common, lease))
        self.counters.add(f"waiting_for_room.{self.name}", len(fresh))
        return 0

    def retry(self) -> int:
        """Takes what waited for room, as far as there is some now; how many segments."""
        count = 0
        while self.waiting_for_room and self.pool.free >= len(self.waiting_for_room[0].records):
            parcel = self.waiting_for_room.popleft()
            stored = self.pool.store(parcel.records, parcel.columns)
            count += self._stored(parcel.key, stored, parcel.common, parcel.lease)
        return count

    def _stored(self, key: Key, records: Records, common: SharedObs | None, lease: Lease | None) -> int:
        if lease is not None:
            self.leases.update(dict.fromkeys(records["slot"].tolist(), lease))
        return self.queue(Arrival(*key, self.pool.ring, records, True, common))

    def fresh(self, key: Key, after: int, records: Records) -> Records:
        """The records (always the last ones) that were not announced before; from now on they are. None at all if
        something announced before them has not come: their actor will announce both again."""
        fresh = self._news(key, after, records)
        if len(fresh):
            self.announced[key] = int(fresh["number"][-1])
        return fresh

    def _news(self, key: Key, after: int, records: Records) -> Records:
        """`fresh`, which they are not yet taken for announced."""
        known, last = self.announced.get(key, 0), int(records["number"][-1])
        if last > self.most:  # whatever it dropped: all of its true ones would be taken for repeated
            raise WireError("segment_number_too_large", value=last, limit=self.most, field="number")
        if int(records["number"][0]) <= known:
            count = len(records)
            records = records[records["number"] > known]
            self.counters.add("repeated_headers", count - len(records))
        if after > known:
            self.counters.add("out_of_order", len(records))
            return records[:0]
        return records

    def queue(self, arrival: Arrival) -> int:
        """Put together with what waits at the end, if that is the same actor's."""
        count, waiting = len(arrival.records), self.arrivals
        if count == 0:
            return 0
        last = waiting[-1] if waiting else None
        if last is not None and last.continues(arrival) and len(last.records) + count <= _TOGETHER:
            last.records = copied(last.records, arrival.records)
        else:
            waiting.append(arrival)
        return count

    def _ring(self, key: Key, header: Segments) -> Ring:
        """The actor's, or that of a relay, which many actors share; each has an attachment of its own."""
        known = self.rings.get(key)
        if known is not None and known.nonce == header.nonce:
            known.check_whole()
            return known
        path = Path(header.ring)
        if not path.name.startswith(PREFIX):
            raise SharedMemoryError("ring_name_invalid", value=header.ring)
        if sum(actor == key[0] for actor, _ in (*self.rings, *(whose for whose, _ in self.left))) >= _RINGS:
            raise SharedMemoryError("rings_too_many", peer=header.actor, limit=_RINGS)
        ring = Ring.attach(path, self.layout, self.counters)
        if ring.nonce != header.nonce:
            ring.close()
            raise SharedMemoryError("ring_not_of_actor", ring=header.ring, peer=header.actor, key="transport")
        if known is not None:
            self.left.append((key, known))
        self.rings[key] = ring
        return ring

    def check_in_place(self, ring: Ring, records: Records, place: Place) -> None:
        """The actions in an actor's own memory, in slots `place`, before they become indices."""
        if self.check is not None:
            columns = {name: ring.columns[name][place] for name in self.check.columns}
            self.check(columns, records, self.layout)


_AFTER = b"\xa5after"
_MOST_KNOWN = 4096
"""Headers that are remembered: more than actors that one learner has."""
_LARGEST = 4096
"""Bytes of a header that is worth remembering."""


class HeaderDecoder:
    """Decodes headers. From one message of an actor to its next only `after` differs: of a header that is, byte for
    byte, one that was decoded and checked before but for that number, the number alone is decoded."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Segments, bytes]] = {}
        """What comes before the number -> the header and what comes behind it."""

    def open(self, frames: list[zmq.Frame]) -> tuple[Segments, int]:
        """The header and its own `after`: that in a remembered header is another message's. WireError for anything
        else."""
        raw = frames[0].bytes
        cut = raw.find(_AFTER) + len(_AFTER)
        start = raw[:cut] if cut >= len(_AFTER) else raw
        known = self._known.get(start)
        if known is not None:
            header, rest = known
            if start is raw:
                return header, header.after
            after = _count(raw[cut : len(raw) - len(rest)]) if raw.endswith(rest) else None
            if after is not None:
                return header, after
        decoded, _ = decode(frames)
        if not isinstance(decoded, Segments):
            raise WireError("message_not_segments", message=decoded.type)
        if len(raw) <= _LARGEST and (decoded.common is None or not decoded.inline):
            self._remember(raw, start, decoded)
        return decoded, decoded.after

    def _remember(self, raw: bytes, start: bytes, header: Segments) -> None:
        """If another number in its place changes nothing but that; one that does not tell it is always the same."""
        end = len(start) + (0 if start is raw else len(packed(header.after)))
        other = header.model_copy(update={"after": header.after - 1 if header.after else 1})
        try:
            if start is not raw and decode([start + packed(other.after) + raw[end:]])[0] != other:
                return
        except WireError:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[start] = (header, raw[end:])


@dataclass(slots=True)
class HeaderBatch:
    """Messages about one actor's ring that came one behind the other, of one header but for `after`."""

    header: Segments
    afters: list[int] = field(default_factory=list)
    messages: list[list[zmq.Frame]] = field(default_factory=list)

    def add(self, after: int, frames: list[zmq.Frame]) -> None:
        """One more, the newest."""
        self.afters.append(after)
        self.messages.append(frames)

    def records(self) -> Any:
        """The records of all of them, one behind the other; WireError unless each message has as many as it says."""
        frames = [records_frame(frames) for frames in self.messages]
        if len(frames) == 1:
            return frames[0]
        expected = self.header.count * RECORD.itemsize
        if any(len(frame) != expected for frame in frames):
            raise WireError("record_frames_wrong_size", expected=expected, size=RECORD.itemsize)
        return b"".join(frames)


def records_frame(frames: list[zmq.Frame]) -> Any:
    """The records, the one frame behind a header of segments in memory."""
    if len(frames) != 2:
        raise WireError("record_frames_miscounted", count=len(frames) - 1)
    return frames[1].buffer


def _count(packed: bytes) -> int | None:
    """The count that is all of `packed`, or None."""
    try:
        number = msgpack.unpackb(packed)
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return number if number.__class__ is int and 0 <= number < 2**63 else None
