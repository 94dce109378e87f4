"""Experience on its way in: announced segments of all actors, for a learner.

The receiver hands the learner `Arrival`s: records that point into a ring, be it the actor's own memory or, for an actor
that does not share memory, the policy's pool, into which the frames were copied once. What arrives is checked before it
is believed. The other end is `protocol/experience.py`.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.codec import decode, encode
from protocol.counters import Counters
from protocol.errors import RookeryError, SharedMemoryError, WireError
from protocol.experience import ack_topic
from protocol.intake import check_final_rows, read_columns, read_records
from protocol.layout import Layout
from protocol.ledger import Ledger
from protocol.memory import PREFIX, files
from protocol.messages import Ack, Segments
from protocol.ring import FINISHED, Ring

__all__ = ["Arrival", "ExperienceReceiver"]

log = logging.getLogger(__name__)

_AT_ONCE = 1000
_ACK_TOPIC = re.compile(rb"a/([\w.-]{1,128})/(\w[\w.-]{0,127})/([1-9][0-9]{0,17})/")


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
        self._strangers: set[tuple[str, tuple[str, int]]] = set()
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
        """Takes in waiting messages, a bounded number at once, never waits; returns how many segments arrived."""
        self._subscriptions()
        count = 0
        for intake in self._intakes.values():
            while intake.parked and self._room(intake, intake.parked[0]):
                count += self._unpack(intake, intake.parked.popleft())
        for _ in range(_AT_ONCE):  # a flood of garbage must not keep the learner from training
            try:
                frames = self._pull.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            try:
                count += self._accept(frames)
            except RookeryError as fault:
                self._quarantine(fault)
        return count

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
        lost, self._living = self._living - actors, set(actors)
        strangers = set()
        for policy, intake in self._intakes.items():
            for key, path in self._left_behind(policy, intake):
                if (policy, key) in self._strangers or key in lost:  # told twice: it was not just about to join
                    self._attempt(policy, intake, key, path)
                strangers.add((policy, key))
            for key in lost & intake.rings.keys():
                self._attempt(policy, intake, key)
        self._strangers = strangers

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

    def _left_behind(self, policy: str, intake: _Intake) -> list[tuple[tuple[str, int], Path]]:
        """Rings of this policy on this node whose actor is no member and that were never announced to this learner:
        their actor died while no learner was there."""
        name = re.compile(re.escape(f"{PREFIX}{self._run}-") + r"(.+)\.(\d+)-" + re.escape(policy) + r"\.ring")
        found = []
        for path in files(self._run):
            match = name.fullmatch(path.name)
            if match is not None:
                key = (match[1], int(match[2]))
                if key not in self._living and key not in intake.rings:
                    found.append((key, path))
        return found

    def _attempt(self, policy: str, intake: _Intake, key: tuple[str, int], path: Path | None = None) -> None:
        try:
            if path is not None:
                intake.rings[key] = Ring.attach(path, intake.layout)
            self._salvage(policy, intake, key)
        except RookeryError as fault:
            self._quarantine(fault)

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
