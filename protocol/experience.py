"""Experience from actor to learner: the pair of ends of the segments' way.

The sender owns the ring an actor writes in place; it announces finished blocks and keeps them until they are settled.
The receiver hands the learner `Arrival`s: records that point into a ring, be it the actor's own memory or, for an actor
that does not share memory, the policy's pool, into which the frames were copied once.
Legend: `n` segments of a message.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.codec import decode, encode
from protocol.counters import Counters
from protocol.credit import Block, Credit
from protocol.errors import RookeryError, SharedMemoryError, WireError
from protocol.intake import check_final_rows, read_columns, read_records
from protocol.layout import Layout
from protocol.ledger import Ledger
from protocol.memory import PREFIX
from protocol.messages import Ack, Route, Segments
from protocol.ring import FINISHED, Ring
from protocol.sockets import connect, poll

__all__ = ["Arrival", "ExperienceReceiver", "ExperienceSender", "ack_topic"]

log = logging.getLogger(__name__)

_ACK_TOPIC = re.compile(rb"a/([\w.-]{1,128})/(\w[\w.-]{0,127})/([1-9][0-9]{0,17})/")
_WAIT_MS = 50
_RESEND_AFTER = 2.5
"""Seconds, more than two beacons."""


def ack_topic(policy: str, actor: str, incarnation: int) -> bytes:
    """The topic of one actor incarnation's acknowledgements."""
    return f"a/{policy}/{actor}/{incarnation}/".encode()


class ExperienceSender:
    """One actor's segments of one policy."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        run: str,
        actor: str,
        incarnation: int,
        policy: str,
        ring: Ring,
        credit: Credit,
        block: int,
        counters: Counters,
    ) -> None:
        self._context = context
        self._run, self._actor, self._incarnation, self._policy = run, actor, incarnation, policy
        self.ring = ring
        self._credit = credit
        self._block = block
        self._counters = counters
        self._next = 1
        self._route: Route | None = None
        self._inline = False
        self._push: zmq.Socket[bytes] | None = None
        self._acks: zmq.Socket[bytes] | None = None
        self._stalled = ((0, 0), 0.0)

    def take(self, on_wait: Callable[[], None]) -> slice:
        """The slots of a block to write. Without credit it waits (flow `block`), calling `on_wait` at least twenty
        times a second, which may raise to end the waiting."""
        self._receive_acks(0)
        index = self._credit.take()
        if index is None:
            start = time.monotonic()
            try:
                while (index := self._credit.take()) is None:
                    self._receive_acks(_WAIT_MS)
                    on_wait()
            finally:
                self._counters.add(f"waits.credit.{self._policy}", time.monotonic() - start)
        self._levels()
        slots = slice(index * self._block, (index + 1) * self._block)
        self.ring.begin(slots)
        return slots

    def finish(self, slots: slice, valid: int, before: int) -> None:
        """The block in `slots` is whole; its segments get the next numbers and are announced as credit allows."""
        first, last = self._next, self._next + self._block - 1
        self._next = last + 1
        self.ring.finish(slots, np.arange(first, last + 1, dtype=np.uint64), valid, before)
        self._counters.add(f"produced.{self._policy}", self._block)
        self._credit.finish(Block(slots.start // self._block, first, last))
        self.pump()

    def route(self, route: Route, inline: bool) -> None:
        """Where the learner is now. A new incarnation or address: everything unacknowledged is announced again."""
        if self._route == route and self._inline == inline:
            return
        self.disconnect()
        self._route, self._inline = route, inline
        self._push = connect(self._context, zmq.PUSH, route.experience)
        self._acks = connect(self._context, zmq.SUB, route.acknowledgements)
        self._acks.setsockopt(zmq.SUBSCRIBE, ack_topic(self._policy, self._actor, self._incarnation))
        for block in self._credit.flight:
            self._announce(block, resent=True)
        self.pump()

    def pump(self) -> None:
        """Takes in acknowledgements and announces what credit allows; never waits."""
        self._receive_acks(0)
        if self._push is not None:
            for block in self._credit.announce():
                self._announce(block, resent=False)
        self._levels()

    def drain(self, seconds: float, on_wait: Callable[[], None]) -> bool:
        """Announces and waits until everything is acknowledged; False if that took longer than `seconds`."""
        end = time.monotonic() + seconds
        self.pump()
        while not self._credit.idle and time.monotonic() < end:
            self._receive_acks(_WAIT_MS)
            self.pump()
            on_wait()
        return self._credit.idle

    def disconnect(self) -> None:
        """Closes the sockets; the ring stays."""
        for socket in (self._push, self._acks):
            if socket is not None:
                socket.close(linger=0)
        self._push = self._acks = None

    def close(self, linger: float = 0.0) -> None:
        """Closes the sockets, giving queued headers up to `linger` seconds; removes the ring unless others hold it."""
        if self._push is not None:
            self._push.close(linger=int(linger * 1000))
            self._push = None
        self.disconnect()
        self.ring.remove()

    def _announce(self, block: Block, resent: bool) -> None:
        assert self._push is not None
        slots = slice(block.index * self._block, (block.index + 1) * self._block)
        ring = self.ring
        header = Segments(
            run=self._run,
            actor=self._actor,
            incarnation=self._incarnation,
            policy=self._policy,
            layout=ring.layout.hash,
            count=self._block,
            inline=self._inline,
            ring="" if self._inline else str(ring.path),
            nonce="" if self._inline else ring.nonce,
            resent=resent,
        )
        frames: list[bytes | memoryview] = [encode(header), ring.table[slots].tobytes()]
        if self._inline:  # without a copy: a block in flight is never overwritten
            frames += [_bytes_of(ring.columns[field.name][slots]) for field in ring.layout.fields]
        try:
            self._push.send_multipart(frames, zmq.NOBLOCK, copy=not self._inline)
        except zmq.Again:  # cannot happen below the high-water mark; the stall check announces it again
            self._counters.add("push_full")
            return
        if resent:
            self._counters.add(f"resent.{self._policy}", self._block)

    def _receive_acks(self, milliseconds: int) -> None:
        if self._acks is None:
            if milliseconds:
                time.sleep(milliseconds / 1000)
            return
        if milliseconds:
            poll([self._acks], milliseconds)
        freed = 0
        while True:
            try:
                frames = self._acks.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            try:
                ack, _ = decode(frames[1:])
            except WireError as fault:
                log.warning("event=message_refused policy=%s reason=%s", self._policy, fault)
                continue
            if isinstance(ack, Ack) and ack.actor == self._actor and ack.incarnation == self._incarnation:
                freed += self._credit.acknowledge(ack.settled)
                self._recover(ack)
        if freed and self._push is not None:
            for block in self._credit.announce():
                self._announce(block, resent=False)

    def _recover(self, ack: Ack) -> None:
        """Announces again what, as acknowledgements keep saying for longer than a beacon takes, never arrived."""
        lost = [block for block in self._credit.flight if block.last > ack.announced]
        state, now = (ack.announced, lost[0].last if lost else 0), time.monotonic()
        if not lost or state != self._stalled[0]:
            self._stalled = (state, now)
        elif now - self._stalled[1] > _RESEND_AFTER:
            for block in lost:
                self._announce(block, resent=True)
            self._stalled = (state, now)

    def _levels(self) -> None:
        flight = self._credit.flight
        prefix = self._policy
        self._counters.set(f"backlog.{prefix}", self._credit.backlog)
        self._counters.set(f"flight.{prefix}", sum(block.segments for block in flight))
        self._counters.set(f"flight_first.{prefix}", flight[0].first if flight else 0)
        self._counters.set(f"flight_last.{prefix}", flight[-1].last if flight else 0)
        for cause, count in self._credit.dropped.items():
            self._counters.set(f"dropped.{cause}.{prefix}", count)


@dataclass(slots=True)
class Arrival:
    """Announced segments: where they lie and their records as announced. `owned` slots go back to the pool, used."""

    actor: str
    incarnation: int
    ring: Ring
    records: NDArray[np.void]
    owned: bool


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Checked inline segments; `columns` are views on the frames that brought them."""

    key: tuple[str, int]
    records: NDArray[np.void]
    columns: dict[str, NDArray]


@dataclass(slots=True)
class _Intake:
    layout: Layout
    ledger: Ledger
    pool_slots: int
    arrivals: deque[Arrival]
    announced: dict[tuple[str, int], int]
    settled: dict[tuple[str, int], int]
    rings: dict[tuple[str, int], Ring]
    parked: deque[_Parcel]
    listeners: set[tuple[str, int]]
    """Actor incarnations that subscribe to their acknowledgements."""
    pool: Ring | None = None
    free: list[int] | None = None


class ExperienceReceiver:
    """The learner's end for all policies it serves and all actors: one PULL socket in, arrivals out, one XPUB socket
    for acknowledgements back."""

    def __init__(
        self, pull: zmq.Socket[bytes], acks: zmq.Socket[bytes], run: str, incarnation: int, counters: Counters
    ):
        self._pull = pull
        self._acks = acks
        self._run = run
        self._incarnation = incarnation
        self._counters = counters
        self._intakes: dict[str, _Intake] = {}
        self._living: set[tuple[str, int]] = set()
        self._beacon_at = 0.0
        self._quarantined: set[str] = set()

    def add_policy(self, policy: str, layout: Layout, ledger: Ledger, pool_slots: int) -> None:
        """Accepts segments of `policy`; a pool of `pool_slots` slots is made when the first remote actor sends some."""
        settled = ledger.entries()
        self._intakes[policy] = _Intake(
            layout, ledger, pool_slots, deque(), dict(settled), dict(settled), {}, deque(), set()
        )

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return [self._pull, self._acks]

    def receive(self) -> int:
        """Takes in every waiting message, never waits; returns how many segments arrived."""
        self._subscriptions()
        count = 0
        for intake in self._intakes.values():
            while intake.parked and self._room(intake, intake.parked[0]):
                count += self._unpack(intake, intake.parked.popleft())
        while True:
            try:
                frames = self._pull.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return count
            try:
                count += self._accept(frames)
            except RookeryError as fault:
                self._quarantine(fault)

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What is there to be used, oldest first; the caller takes from the left."""
        return self._intakes[policy].arrivals

    def settle(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """`count` more segments of this actor, up to number `upto`, are in the learner's hands: ledger, then answer."""
        intake = self._intakes[policy]
        key = (arrival.actor, arrival.incarnation)
        intake.ledger.settle(*key, upto, count)
        intake.settled[key] = max(upto, intake.settled.get(key, 0))
        self._send_ack(policy, key)

    def give_back(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are no longer needed."""
        intake = self._intakes[policy]
        assert intake.free is not None
        intake.free.extend(int(slot) for slot in slots)

    def living(self, actors: set[tuple[str, int]]) -> None:
        """Who is a member now. What a dead actor on this node finished and could not announce any more is taken from
        its ring; its memory is let go once everything in it was used."""
        for key in self._living - actors:
            for policy, intake in self._intakes.items():
                if key in intake.rings:
                    try:
                        self._salvage(policy, intake, key)
                    except RookeryError as fault:
                        self._quarantine(fault)
        self._living = set(actors)

    def forget(self, policy: str, actor: str, incarnation: int) -> None:
        """Lets go of a dead actor's ring."""
        ring = self._intakes[policy].rings.pop((actor, incarnation), None)
        if ring is not None:
            ring.remove()

    def is_living(self, actor: str, incarnation: int) -> bool:
        """Whether this actor incarnation is a member, as far as is known."""
        return (actor, incarnation) in self._living

    def rings(self, policy: str) -> dict[tuple[str, int], Ring]:
        """The attached rings by (actor, incarnation)."""
        return self._intakes[policy].rings

    def beacon(self, now: float) -> None:
        """Once a second repeats every listener's cumulative acknowledgement, so that a lost one stalls nobody."""
        self._subscriptions()
        if now - self._beacon_at < 1.0:
            return
        self._beacon_at = now
        for policy, intake in self._intakes.items():
            for key in intake.listeners:
                self._send_ack(policy, key)

    def close(self) -> None:
        """Lets go of all memory; the sockets belong to the caller."""
        for intake in self._intakes.values():
            intake.arrivals.clear()
            for ring in intake.rings.values():
                ring.remove()
            intake.rings.clear()
            if intake.pool is not None:
                intake.pool.close()

    def _accept(self, frames: list[zmq.Frame]) -> int:
        header, rest = decode(frames)
        if not isinstance(header, Segments):
            raise WireError(f"a {header.type} message where segments are expected")
        intake = self._intake_of(header)
        layout, key = intake.layout, (header.actor, header.incarnation)
        expected = 1 + (len(layout.fields) if header.inline else 0)
        if len(rest) != expected:
            raise WireError(f"{len(rest)} frames after a header of segments, expected {expected}")
        records = read_records(rest[0], header.count, layout)
        if header.inline:
            return self._accept_inline(intake, key, records, read_columns(rest[1:], header.count, layout))
        ring = self._ring(intake, key, header)
        if int(records["slot"].max()) >= ring.slots or bool((records["sequence"] & np.uint64(1)).any()):
            raise WireError(f"a record of a slot that is unfinished or beyond the {ring.slots} of its ring")
        if "final_row" in ring.columns:
            check_final_rows(ring.columns["final_row"][records["slot"]], layout)
        records = self._fresh(intake, key, records)
        return self._queue(intake, Arrival(*key, ring, records, owned=False))

    def _intake_of(self, header: Segments) -> _Intake:
        if header.run != self._run:
            raise WireError(
                f"segments of run {header.run!r} at a learner of run {self._run!r}; check the coordinator's address"
            )
        intake = self._intakes.get(header.policy)
        if intake is None:
            raise WireError(f"segments of policy {header.policy!r}, which this learner does not serve")
        if header.layout != intake.layout.hash:
            raise WireError(
                f"segments of layout {header.layout}, expected {intake.layout.hash}; "
                "use the same configuration and release"
            )
        if header.inline and header.count > intake.pool_slots:
            raise WireError(
                f"{header.count} segments in a message, the pool has {intake.pool_slots}; send fewer at once"
            )
        return intake

    def _ring(self, intake: _Intake, key: tuple[str, int], header: Segments) -> Ring:
        known = intake.rings.get(key)
        path = Path(header.ring)
        if known is None and not path.name.startswith(PREFIX):
            raise SharedMemoryError(f"{header.ring!r} is no ring's name; use the same release")
        ring = Ring.attach(path, intake.layout) if known is None else known
        if ring.nonce != header.nonce:
            if known is None:
                ring.close()
            raise SharedMemoryError(f"{header.ring} is not the memory that {header.actor} writes; set transport: tcp")
        intake.rings[key] = ring
        return ring

    def _accept_inline(
        self, intake: _Intake, key: tuple[str, int], records: NDArray[np.void], columns: dict[str, NDArray]
    ) -> int:
        """Copies the columns to the pool; where that has no room, the frames wait, announced all the same."""
        fresh = self._fresh(intake, key, records)
        if len(fresh) == 0:
            return 0
        parcel = _Parcel(key, fresh, {name: column[len(records) - len(fresh) :] for name, column in columns.items()})
        if intake.parked or not self._room(intake, parcel):
            intake.parked.append(parcel)
            return 0
        return self._unpack(intake, parcel)

    def _unpack(self, intake: _Intake, parcel: _Parcel) -> int:
        pool, free = self._pool(intake)
        records = parcel.records
        slots = np.sort(np.array([free.pop() for _ in range(len(records))], np.int64))
        pool.begin(slots)
        for name, column in parcel.columns.items():
            pool.columns[name][slots] = column
        table = pool.table
        for name in ("number", "stream", "stream_sequence", "version_min", "version_max", "valid", "before"):
            table[name][slots] = records[name]
        table["state"][slots] = FINISHED
        table["sequence"][slots] += np.uint64(1)
        return self._queue(intake, Arrival(*parcel.key, pool, table[slots].copy(), owned=True))

    def _fresh(self, intake: _Intake, key: tuple[str, int], records: NDArray[np.void]) -> NDArray[np.void]:
        """The records (always the last ones) that were not announced before; from now on they are."""
        known = intake.announced.get(key, 0)
        fresh = records[records["number"] > known]
        self._counters.add("repeated_headers", len(records) - len(fresh))
        intake.announced[key] = max(known, int(records["number"][-1]))
        return fresh

    def _queue(self, intake: _Intake, arrival: Arrival) -> int:
        if len(arrival.records):
            intake.arrivals.append(arrival)
        return len(arrival.records)

    def _salvage(self, policy: str, intake: _Intake, key: tuple[str, int]) -> None:
        ring = intake.rings[key]
        table = ring.table.copy()
        table["slot"] = np.arange(ring.slots)
        records = table[(table["state"] == FINISHED) & (table["sequence"] % 2 == 0)]
        records = np.sort(records[records["number"] > intake.announced.get(key, 0)], order="number")
        if len(records):
            records = read_records(records.tobytes(), len(records), intake.layout)
            if "final_row" in ring.columns:
                check_final_rows(ring.columns["final_row"][records["slot"]], intake.layout)
            count = self._queue(intake, Arrival(*key, ring, self._fresh(intake, key, records), owned=False))
            self._counters.add("salvaged", count)
            log.info("event=salvaged policy=%s actor=%s incarnation=%d segments=%d", policy, *key, count)

    def _pool(self, intake: _Intake) -> tuple[Ring, list[int]]:
        if intake.pool is None or intake.free is None:
            intake.pool = Ring.create(None, intake.layout, intake.pool_slots, checksums=False)
            intake.free = list(range(intake.pool_slots - 1, -1, -1))
        return intake.pool, intake.free

    def _room(self, intake: _Intake, parcel: _Parcel) -> bool:
        return len(self._pool(intake)[1]) >= len(parcel.records)

    def _quarantine(self, fault: RookeryError) -> None:
        self._counters.add("quarantined_messages")
        reason = str(fault)
        if reason not in self._quarantined and len(self._quarantined) < 100:
            self._quarantined.add(reason)
            log.warning("event=message_refused reason=%s", reason)

    def _send_ack(self, policy: str, key: tuple[str, int]) -> None:
        intake = self._intakes[policy]
        ack = Ack(
            policy=policy,
            learner_incarnation=self._incarnation,
            actor=key[0],
            incarnation=key[1],
            settled=intake.settled.get(key, 0),
            announced=intake.announced.get(key, 0),
        )
        self._acks.send_multipart([ack_topic(policy, *key), encode(ack)], zmq.NOBLOCK)

    def _subscriptions(self) -> None:
        """A new subscriber gets its current acknowledgement at once."""
        while True:
            try:
                event = self._acks.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            topic = _ACK_TOPIC.fullmatch(event, 1)
            if topic is None or (policy := topic[1].decode()) not in self._intakes:
                continue
            key = (topic[2].decode(), int(topic[3]))
            if event[:1] == b"\x01":
                self._intakes[policy].listeners.add(key)
                self._send_ack(policy, key)
            elif event[:1] == b"\x00":
                self._intakes[policy].listeners.discard(key)


def _bytes_of(array: NDArray) -> Any:
    """The memory of a contiguous array as a frame."""
    return array.reshape(-1).view(np.uint8).data
