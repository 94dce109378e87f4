"""Experience on its way in: announced segments of all actors, for a learner.

The receiver hands the learner `Arrival`s: records that point into a ring, be it the actor's own memory or, for an actor
that does not share memory, the policy's pool, into which the frames were copied once. What arrives is checked before it
is believed, and taken only when all that was announced before it has come. The other end is `protocol/experience.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.acknowledgements import AckSender, Key
from protocol.codec import decode
from protocol.common import Common
from protocol.compression import unpacked
from protocol.counters import Counters
from protocol.errors import RookeryError, SharedMemoryError, WireError
from protocol.intake import ActionCheck, check_final_rows, read_columns, read_records
from protocol.layout import Layout
from protocol.ledger import Ledger
from protocol.memory import PREFIX
from protocol.messages import Segments
from protocol.pool import POOL, Pool
from protocol.ring import Ring
from protocol.salvage import Roll, finished_beyond
from protocol.shelf import Lease, Shelf
from protocol.sockets import arrived, peer_host

__all__ = ["Arrival", "ExperienceReceiver"]

log = logging.getLogger(__name__)

_AT_ONCE = 1000
_PARKED = 4
"""Pools that segments waiting for room may fill; actors that keep to their credit need less than one."""
_BYTES_AT_ONCE = 2**20
"""Bytes that are copied before the learner is given what came: settling it keeps the next ones coming meanwhile."""


@dataclass(slots=True)
class Arrival:
    """Announced segments: where they lie and their records as announced. `owned` slots go back to the pool, used.
    `common`: where the moments of their actor lie, where agents see something in common."""

    actor: str
    incarnation: int
    ring: Ring
    records: NDArray[np.void]
    owned: bool
    common: Common | None = None


@dataclass(frozen=True, slots=True)
class _Parcel:
    """Checked inline segments; `columns` are views on the frames that brought them."""

    key: Key
    records: NDArray[np.void]
    columns: dict[str, NDArray]
    common: Common | None
    lease: Lease | None


@dataclass(slots=True)
class _Intake:
    """One policy's."""

    name: str
    layout: Layout
    ledger: Ledger
    pool: Pool
    check: ActionCheck | None
    announced: dict[Key, int]
    settled: dict[Key, int]
    arrivals: deque[Arrival] = field(default_factory=deque)
    parked: deque[_Parcel] = field(default_factory=deque)
    rings: dict[Key, Ring] = field(default_factory=dict)
    leases: dict[int, Lease] = field(default_factory=dict)
    """By slot of the pool: the moments that the segment there refers to."""
    left: list[Ring] = field(default_factory=list)
    """Rings whose actors are announced in others since: of a relay that was started again."""


class ExperienceReceiver:
    """The learner's end for all policies it serves and all actors: one PULL socket in, arrivals out, one XPUB socket
    for acknowledgements back."""

    def __init__(
        self, pull: zmq.Socket[bytes], acks: zmq.Socket[bytes], run: str, incarnation: int, counters: Counters
    ):
        self._pull, self._run, self._counters = pull, run, counters
        self._acks = AckSender(acks, incarnation, self._state, counters)
        self.sockets = [pull, acks]
        """What to wait on."""
        self._intakes: dict[str, _Intake] = {}
        self._roll = Roll(run)
        self._shelf = Shelf(run)
        self._quarantined: set[str] = set()
        self._copied = 0

    def add_policy(
        self, policy: str, layout: Layout, ledger: Ledger, pool_slots: int, check: ActionCheck | None = None
    ) -> None:
        """Accepts segments of `policy` whose actions pass `check`; a pool of `pool_slots` slots is made when the first
        remote actor sends some."""
        settled = ledger.entries()
        pool = Pool(layout, pool_slots)
        self._intakes[policy] = _Intake(policy, layout, ledger, pool, check, dict(settled), settled)

    def add_common(self, layout: Layout, blocks: int) -> None:
        """Accepts common observations of `layout`, and `blocks` blocks of them from actors that do not share memory."""
        self._shelf.expect(layout, blocks)

    def receive(self) -> int:
        """Takes in waiting messages, a bounded number at once, never waits; returns how many segments arrived."""
        self._acks.subscriptions()
        count = self._copied = 0
        for intake in self._intakes.values():
            while intake.parked and intake.pool.free >= len(intake.parked[0].records):
                count += self._store(intake, intake.parked.popleft())
        for _ in range(_AT_ONCE):  # a flood of garbage must not keep the learner from training
            frames = arrived(self._pull, copy=False) if self._copied < _BYTES_AT_ONCE else None
            if frames is None:
                break
            try:
                count += self._accept(frames)
            except RookeryError as fault:
                self._quarantine(fault, peer_host(frames[0]))
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
        self._acks.send(policy, key)

    def give_back(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are no longer needed."""
        intake = self._intakes[policy]
        intake.pool.give_back(slots)
        if intake.leases:
            for slot in slots.tolist():
                self._shelf.give_back(intake.leases.pop(slot))

    def living(self, actors: set[Key]) -> None:
        """Who is a member now. What a dead actor on this node finished and could not announce any more is taken from
        its ring; its memory is let go once everything in it was used."""
        attached = {policy: intake.rings for policy, intake in self._intakes.items()}
        self._shelf.living(actors)
        for policy, key, path in self._roll.call(actors, attached):
            self._salvage(self._intakes[policy], key, path)

    def forget(self, policy: str, actor: str, incarnation: int) -> None:
        """Lets go of a dead actor's ring."""
        ring = self._intakes[policy].rings.pop((actor, incarnation), None)
        if ring is not None:
            ring.remove()
        if not any((actor, incarnation) in other.rings for other in self._intakes.values()):
            self._shelf.forget((actor, incarnation))

    def let_go(self, policy: str, used: Callable[[Ring], bool]) -> None:
        """Lets go of rings that nothing more will be announced in, once all that was is copied, and they are not
        `used`."""
        intake = self._intakes[policy]
        waiting = {id(arrival.ring) for arrival in intake.arrivals}
        for key, ring in list(intake.rings.items()):
            if key not in self._roll and id(ring) not in waiting and not used(ring):
                self.forget(policy, *key)
        for ring in list(intake.left):
            if id(ring) not in waiting and not used(ring):
                intake.left.remove(ring)
                ring.remove()

    def is_living(self, actor: str, incarnation: int) -> bool:
        """Whether this actor incarnation is a member, as far as is known."""
        return (actor, incarnation) in self._roll

    def rings(self, policy: str) -> dict[Key, Ring]:
        """The attached rings by (actor, incarnation)."""
        return self._intakes[policy].rings

    def beacon(self, now: float) -> None:
        """Once a second repeats every listener's cumulative acknowledgement, so that a lost one stalls nobody."""
        self._acks.beacon(now)

    def close(self) -> None:
        """Lets go of all memory; the sockets belong to the caller."""
        for intake in self._intakes.values():
            intake.arrivals.clear()
            intake.parked.clear()
            for ring in [*intake.rings.values(), *intake.left]:
                ring.remove()
            intake.rings.clear()
            intake.left.clear()
            intake.pool.close()
        self._shelf.close()

    def _state(self, policy: str, key: Key) -> tuple[int, int] | None:
        intake = self._intakes.get(policy)
        return None if intake is None else (intake.settled.get(key, 0), intake.announced.get(key, 0))

    def _accept(self, frames: list[zmq.Frame]) -> int:
        header, rest = decode(frames)
        if not isinstance(header, Segments):
            raise WireError(f"a {header.type} message where segments are expected")
        intake = self._intake_of(header)
        layout, key = intake.layout, (header.actor, header.incarnation)
        fields = len(layout.fields)
        expected = 1 + (fields + self._shelf.frames(header.common) if header.inline else 0)
        if len(rest) != expected:
            raise WireError(f"{len(rest)} frames after a header of segments, expected {expected}")
        records = read_records(rest[0], header.count, layout)
        if header.inline:
            packed = rest[1 : fields + 1]
            columns = read_columns(unpacked(packed, header.compressed, header.count, layout), header.count, layout)
            if intake.check is not None:
                intake.check(columns, records, layout)
            common = self._shelf.put(key, header.common, rest[fields + 1 :])
            return self._accept_inline(intake, key, header, records, columns, common)
        ring = self._ring(intake, key, header)
        if int(records["slot"].max()) >= ring.slots or bool((records["sequence"] & np.uint64(1)).any()):
            raise WireError(f"a record of a slot that is unfinished or beyond the {ring.slots} of its ring")
        if "final_row" in ring.columns:
            check_final_rows(ring.columns["final_row"][records["slot"]], layout)
        _check_in_place(intake, ring, records)
        common = self._shelf.near(key, header.common)
        records = self._fresh(intake, key, header.after, records)
        return self._queue(intake, Arrival(*key, ring, records, False, common))

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
        if header.inline and header.count > intake.pool.slots:
            raise WireError(
                f"{header.count} segments in a message, the pool has {intake.pool.slots}; send fewer at once"
            )
        return intake

    def _ring(self, intake: _Intake, key: Key, header: Segments) -> Ring:
        """The actor's, or that of a relay, which many actors share; each has an attachment of its own."""
        known = intake.rings.get(key)
        if known is not None and known.nonce == header.nonce:
            return known
        path = Path(header.ring)
        if not path.name.startswith(PREFIX):
            raise SharedMemoryError(f"{header.ring!r} is no ring's name; use the same release")
        ring = Ring.attach(path, intake.layout, self._counters)
        if ring.nonce != header.nonce:
            ring.close()
            raise SharedMemoryError(f"{header.ring} is not the memory that {header.actor} writes; set transport: tcp")
        if known is not None:
            intake.left.append(known)
        intake.rings[key] = ring
        return ring

    def _accept_inline(
        self,
        intake: _Intake,
        key: Key,
        header: Segments,
        records: NDArray[np.void],
        columns: dict[str, NDArray],
        common: Common | None,
    ) -> int:
        """Copies the columns to the pool; where that has no room, the frames wait, announced all the same."""
        if sum(len(parcel.records) for parcel in intake.parked) > _PARKED * intake.pool.slots:
            raise WireError(
                f"more than {_PARKED} times the pool's {intake.pool.slots} segments wait for room; keep to the credit"
            )
        known = int((records["number"] <= intake.announced.get(key, 0)).sum())
        columns = {name: column[known:] for name, column in columns.items()}
        if common is not None and not self._shelf.holds(key, columns, records[known:], intake.layout):
            self._counters.add("out_of_turn", len(records) - known)  # the message that brought the moments was lost
            return 0
        fresh = self._fresh(intake, key, header.after, records)
        if len(fresh) == 0:
            return 0
        lease = None if common is None else self._shelf.lend(key, columns, fresh, intake.layout)
        parcel = _Parcel(key, fresh, columns, common, lease)
        if intake.parked or intake.pool.free < len(fresh):
            intake.parked.append(parcel)
            self._counters.add(f"parked.{intake.name}", len(fresh))
            return 0
        return self._store(intake, parcel)

    def _store(self, intake: _Intake, parcel: _Parcel) -> int:
        records = intake.pool.store(parcel.records, parcel.columns)
        self._copied += len(records) * intake.layout.segment_bytes
        if parcel.lease is not None:
            intake.leases.update(dict.fromkeys(records["slot"].tolist(), parcel.lease))
        return self._queue(intake, Arrival(*parcel.key, intake.pool.ring, records, True, parcel.common))

    def _fresh(self, intake: _Intake, key: Key, after: int, records: NDArray[np.void]) -> NDArray[np.void]:
        """The records (always the last ones) that were not announced before; from now on they are. None at all if
        something announced before them has not come: their actor will announce both again."""
        known = intake.announced.get(key, 0)
        fresh = records[records["number"] > known]
        self._counters.add("repeated_headers", len(records) - len(fresh))
        if after > known:
            self._counters.add("out_of_turn", len(fresh))
            return fresh[:0]
        intake.announced[key] = max(known, int(records["number"][-1]))
        return fresh

    def _queue(self, intake: _Intake, arrival: Arrival) -> int:
        if len(arrival.records):
            intake.arrivals.append(arrival)
        return len(arrival.records)

    def _salvage(self, intake: _Intake, key: Key, path: Path | None) -> None:
        try:
            if path is not None:
                intake.rings[key] = Ring.attach(path, intake.layout, self._counters)
            ring = intake.rings[key]
            if ring.path is not None and ring.path.suffix == POOL:
                return  # a relay's: what it received it announces itself
            common = self._shelf.left(key)
            records = finished_beyond(ring, intake.announced.get(key, 0), intake.layout)
            if len(records):
                _check_in_place(intake, ring, records)
                fresh = self._fresh(intake, key, 0, records)
                count = self._queue(intake, Arrival(*key, ring, fresh, False, common))
                self._counters.add("salvaged", count)
                log.info("event=salvaged policy=%s actor=%s incarnation=%d segments=%d", intake.name, *key, count)
        except RookeryError as fault:
            self._quarantine(fault)

    def _quarantine(self, fault: RookeryError, host: str = "here") -> None:
        self._counters.add("quarantined_messages")
        reason = str(fault)
        if reason not in self._quarantined and len(self._quarantined) < 100:
            self._quarantined.add(reason)
            log.warning("event=message_refused host=%s reason=%s", host, reason)


def _check_in_place(intake: _Intake, ring: Ring, records: NDArray[np.void]) -> None:
    """The actions in an actor's own memory, before they become indices."""
    if intake.check is not None:
        columns = {name: ring.columns[name][records["slot"]] for name in intake.check.columns}
        intake.check(columns, records, intake.layout)
