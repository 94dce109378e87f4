"""Experience on its way in: announced segments of all actors, for a learner.

The receiver hands the learner `Arrival`s: records that point into a ring, be it the actor's own memory or, for an actor
that does not share memory, the policy's pool, into which the frames were copied once. What arrives is checked before it
is believed, and taken only when all that was announced before it has come. The other end is
`protocol/experience/sender.py`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import RookeryError, WireError
from protocol.experience.ack_publisher import AckSender, Key, Window
from protocol.experience.layout import Layout
from protocol.experience.policy_inbox import Arrival, HeaderBatch, HeaderDecoder, PolicyInbox
from protocol.experience.proof import ProofCheck
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.recovery import MemberTracker, finished_beyond
from protocol.experience.ring_buffer import Ring, place_of
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import Counters
from protocol.memory.shared_obs_store import SharedObsStore
from protocol.memory.slot_allocator import POOL, SlotPool
from protocol.messages.core import Segments
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import peer_host, try_receive

__all__ = ["Arrival", "ExperienceReceiver"]

log = logging.getLogger(__name__)

_AT_ONCE = 1000
_BYTES_AT_ONCE = 2**22
"""Bytes that are copied before the learner is given what came: settling it keeps the next ones coming meanwhile."""


class ExperienceReceiver:
    """The learner's end for all policies it serves and all actors that it `concerns`: one PULL socket in, arrivals out,
    one XPUB socket for acknowledgements back."""

    def __init__(
        self,
        pull: zmq.Socket[bytes],
        acks: zmq.Socket[bytes],
        run: str,
        secret: str,
        incarnation: int,
        counters: Counters,
        concerns: Callable[[str], bool] = lambda actor: True,
        guard: ByteGuard | None = None,
    ):
        self._guard = guard or ByteGuard()
        self._pull, self._counters, self._proven = pull, counters, ProofCheck(secret, run)
        self._acks = AckSender(acks, incarnation, self._state, counters, self._guard)
        self.sockets = [pull, acks]
        """What to wait on."""
        self._intakes: dict[str, PolicyInbox] = {}
        self._roll = MemberTracker(run, concerns)
        self._shelf = SharedObsStore(run)
        self._opener = HeaderDecoder()

    def add_policy(
        self,
        policy: str,
        layout: Layout,
        ledger: ReceiptLog,
        pool_slots: int,
        check: ActionCheck | None = None,
        window: Window = Window(),  # noqa: B008 - frozen
        most: int = 2**63 - 1,
    ) -> None:
        """Accepts segments of `policy` whose actions pass `check`; a pool of `pool_slots` slots is made when the first
        remote actor sends some. `window`: what one actor may have in flight, `most`: segments that it may make."""
        self._acks.expect(policy, window)
        settled = ledger.entries()
        pool = SlotPool(layout, pool_slots)
        self._intakes[policy] = PolicyInbox(
            policy, layout, ledger, pool, check, most, dict(settled), settled, self._shelf, self._acks, self._counters
        )

    def add_common(self, layout: Layout, blocks: int) -> None:
        """Accepts common observations of `layout`, and `blocks` blocks of them from actors that do not share memory."""
        self._shelf.expect(layout, blocks)

    def receive(self) -> int:
        """Takes in waiting messages, a bounded number at once, never waits; returns how many segments arrived."""
        count = copied = 0
        for intake in self._intakes.values():
            taken = intake.retry()
            count, copied = count + taken, copied + taken * intake.layout.segment_bytes
        piles: dict[tuple[str, str, int], HeaderBatch] = {}
        for _ in range(_AT_ONCE):  # a flood of garbage must not keep the learner from training
            frames = try_receive(self._pull, copy=False) if copied < _BYTES_AT_ONCE else None
            if frames is None:
                break
            self._guard.took(frames)
            header: Segments | None = None
            try:
                header, after = self._opener.open(frames)
                if header.refused:
                    self._refused_elsewhere(header)
                    continue
                way = (header.policy, header.actor, header.incarnation)
                pile = piles.get(way)
                if pile is not None and pile.header is not header:
                    count += self._take(piles.pop(way))
                    pile = None
                if header.inline:
                    intake = self._intake_of(header)
                    new = intake.accept_inline(header, after, frames[1:])
                    if new is None:
                        self._guard.in_vain(frames[0])
                        continue
                    count, copied = count + new, copied + new * intake.layout.segment_bytes
                else:
                    pile = piles.setdefault(way, HeaderBatch(header)) if pile is None else pile
                    pile.add(after, frames)
            except RookeryError as fault:
                self._quarantine(fault, peer_host(frames[0]), header)
                self._guard.in_vain(frames[0])
        return count + sum(self._take(pile) for pile in piles.values())

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What is there to be used, oldest first; the caller takes from the left."""
        return self._intakes[policy].arrivals

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """`count` more segments of this actor, up to number `upto`, are in the learner's hands: ledger, then answer."""
        intake = self._intakes[policy]
        key = (arrival.actor, arrival.incarnation)
        for gone in intake.ledger.acknowledge(*key, upto, count):
            intake.settled.pop(gone, None)
            intake.announced.pop(gone, None)
        intake.settled[key] = max(upto, intake.settled.get(key, 0))
        self._acks.settled(policy, key)

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """A segment of this actor incarnation was rejected: it is told with the next acknowledgement."""
        self._acks.refused(policy, actor, fault)

    def flush_acks(self) -> None:
        """What is settled is told to all actors; to be called before anything that takes long."""
        self._acks.answer()

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are no longer needed."""
        intake = self._intakes[policy]
        intake.pool.give_back(slots)
        if intake.leases:
            for slot in slots.tolist():
                self._shelf.give_back(intake.leases.pop(slot))

    def living(self, actors: set[Key], salvage: bool = True) -> None:
        """Who is a member now. What a dead actor on this node finished and could not announce any more is taken from
        its ring, if it is to be (`salvage`); its memory is let go once everything in it was used."""
        attached = {policy: intake.rings for policy, intake in self._intakes.items()}
        self._shelf.living(actors)
        self._acks.living(actors)
        for policy, key, path in self._roll.call(actors, attached):
            if salvage:
                self._salvage(self._intakes[policy], key, path)

    def forget(self, policy: str, actor: str, incarnation: int) -> None:
        """Lets go of a dead actor's ring."""
        self._acks.forget(policy, (actor, incarnation))
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
        for key, ring in list(intake.left):
            if id(ring) not in waiting and not used(ring):
                intake.left.remove((key, ring))
                ring.remove()

    def beacon(self, now: float) -> None:
        """To be called each turn. Answers new listeners at once, and once a second repeats every listener's cumulative
        acknowledgement, so that a lost one stalls nobody."""
        self._acks.beacon(now)

    def close(self) -> None:
        """Lets go of all memory; the sockets belong to the caller."""
        for intake in self._intakes.values():
            intake.arrivals.clear()
            intake.waiting_for_room.clear()
            for ring in [*intake.rings.values(), *(ring for _, ring in intake.left)]:
                ring.remove()
            intake.rings.clear()
            intake.left.clear()
            intake.pool.close()
        self._shelf.close()

    def _state(self, policy: str, key: Key) -> tuple[int, int] | None:
        intake = self._intakes.get(policy)
        return None if intake is None else (intake.settled.get(key, 0), intake.announced.get(key, 0))

    def _take(self, pile: HeaderBatch) -> int:
        """What came from one actor, as if it were one message where that comes to the same: what it costs to look at a
        message hardly depends on how many segments are in it. Where something is wrong each is looked at by itself."""
        intake = self._intakes.get(pile.header.policy)
        known = 0 if intake is None else intake.announced.get((pile.header.actor, pile.header.incarnation), 0)
        if len(pile.messages) > 1 and pile.afters[0] <= known:
            try:
                intake = self._intake_of(pile.header)
                return intake.queue(intake.accepted(pile))
            except RookeryError:
                log.debug("event=messages_split policy=%s actor=%s", pile.header.policy, pile.header.actor)
        count = 0
        for after, frames in zip(pile.afters, pile.messages, strict=True):
            try:
                intake = self._intake_of(pile.header)
                count += intake.queue(intake.accepted(HeaderBatch(pile.header, [after], [frames])))
            except RookeryError as fault:
                self._quarantine(fault, peer_host(frames[0]), pile.header)
                self._guard.in_vain(frames[0])
        return count

    def _refused_elsewhere(self, header: Segments) -> None:
        """A relay refused messages of an actor, which hears of it from its learner."""
        self._proven(header)
        if header.policy in self._intakes:
            key, fault = (header.actor, header.incarnation), WireError.heard(header.refused)
            self._acks.refused(header.policy, key, fault, header.count)

    def _intake_of(self, header: Segments) -> PolicyInbox:
        self._proven(header)
        intake = self._intakes.get(header.policy)
        if intake is None:
            raise WireError("segments_of_unserved_policy", policy=header.policy)
        if header.layout != intake.layout.hash:
            raise WireError("segments_layout_differs", value=header.layout, expected=intake.layout.hash)
        if header.inline and header.count > intake.pool.slots:
            raise WireError("segments_exceed_pool", count=header.count, limit=intake.pool.slots)
        return intake

    def _salvage(self, intake: PolicyInbox, key: Key, path: Path | None) -> None:
        try:
            if path is not None:
                intake.rings[key] = Ring.attach(path, intake.layout, self._counters)
            ring = intake.rings[key]
            if ring.path is not None and ring.path.suffix == POOL:
                return  # a relay's: what it received it announces itself
            common = self._shelf.left(key)
            records = finished_beyond(ring, intake.announced.get(key, 0), intake.layout)
            if len(records):
                intake.check_in_place(ring, records, place_of(records["slot"]))
                fresh = intake.fresh(key, 0, records)
                count = intake.queue(Arrival(*key, ring, fresh, False, common))
                self._counters.add("recovered", count)
                log.info("event=recovered policy=%s actor=%s incarnation=%d segments=%d", intake.name, *key, count)
        except RookeryError as fault:
            self._quarantine(fault)

    def _quarantine(self, fault: RookeryError, host: str = "here", header: Segments | None = None) -> None:
        """Counts and logs it; an actor is told, of what it was itself that sent."""
        self._counters.add("quarantined_messages")
        if header is not None and header.policy in self._intakes and self._proven.holds(header):
            self._acks.refused(header.policy, (header.actor, header.incarnation), fault)
        self._guard.refusals.tell("message_refused", fault.kind, fault.coded, host=host)
