"""Experience on its way out: one actor's segments of one policy.

The sender owns the ring an actor writes in place; it announces finished blocks and keeps them until they are settled.
The other end is `protocol/experience/receiver.py`.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.ack_publisher import ack_topic
from protocol.experience.connections import Connection, ConnectionPool
from protocol.experience.flow_control import ActorPacer, Block, CreditWindow, SendCoalescer
from protocol.experience.proof import ActorIdentity
from protocol.experience.ring_buffer import Ring
from protocol.experience.shared_obs import SharedObsWriter
from protocol.memory.shared_file import Counters
from protocol.messages import compression
from protocol.messages.codec import around, decode, encode, packed
from protocol.messages.core import Ack, Route, Segments
from protocol.messages.versioning import spoken_with
from protocol.transport.sockets import connect, poll, send_nowait, try_receive

log = logging.getLogger(__name__)

_WAIT_MS = 50
LARGEST_ACK = 4096
"""Bytes of the largest frame that a learner's acknowledgement may have."""
_AT_ONCE = 1000
_LOOK_EVERY = 0.1
"""Seconds from one look for acknowledgements to the next while there is plenty of credit."""
_RESEND_AFTER = 2.5
"""Seconds, more than two beacons, until what was announced is taken for lost."""
_MOST_PATIENCE = 160.0
"""Seconds; each time that nothing came of announcing again, the next time is twice as far: a slow network has time."""


class ExperienceSender:
    """Segments of `policy` that `actor` writes to `ring`, in blocks as `credit` allows. The fields `compress` travel
    compressed; `common`: what segments refer to."""

    def __init__(
        self,
        connections: ConnectionPool,
        actor: ActorIdentity,
        policy: str,
        ring: Ring,
        credit: CreditWindow,
        counters: Counters,
        compress: Sequence[str] = (),
        common: SharedObsWriter | None = None,
    ) -> None:
        compression.check_fields(compress, ring.layout)
        compression.check_package(compress)
        self._connections, self._actor, self._policy = connections, actor, policy
        self.ring, self._credit, self._counters = ring, credit, counters
        self._pace = ActorPacer(time.monotonic()) if credit.paced else None
        self._block = ring.slots // credit.blocks
        kinds = ("produced", "backlog", "flight", "refused_messages", *(f"dropped.{cause}" for cause in credit.dropped))
        self._named = {kind: f"{kind}.{policy}" for kind in kinds}
        self._compress = list(compress)
        self._common = common
        alone = common is not None  # a message brings the moments of its block
        self._held = SendCoalescer(credit, self._block, self._block * ring.layout.segment_bytes, alone)
        self._route: Route | None = None
        self._inline = False
        self._outlet: Connection | None = None
        self._generation = 0
        """Of the outlet, when everything was sent that may have been lost with an earlier one."""
        self._acks: zmq.Socket[bytes] | None = None
        self._heard = 0
        """The highest number that the learner said it had heard of."""
        self._heard_at = 0.0
        self._looked_at = 0.0
        self._patience = 0.0
        self._refused = (0, 0)
        """The learner's incarnation that told it last, and how many messages that one has refused."""
        self._header: Segments | None = None
        self._said: dict[tuple[int, bool], tuple[bytes, bytes]] = {}
        """What comes before and behind `after` in a header, by its `count` and `resent`."""
        bounds = credit.bounds(self._block)
        log.info(
            "event=ring policy=%s segments=%d most_in_flight=%d most_behind=%d mebibytes=%.1f",
            policy,
            bounds.ring,
            bounds.flight,
            bounds.behind,
            bounds.ring * ring.layout.segment_bytes / 2**20,
        )

    def take(self, on_wait: Callable[[], None]) -> slice:
        """The slots of a block to write. Without credit it waits (flow `block`, and in replay for as long as its
        learner is heard of), calling `on_wait` at least twenty times a second, which may raise to end the waiting."""
        self._check_whole()
        if self._credit.short or time.monotonic() - self._looked_at > _LOOK_EVERY:
            self._receive_acks(0)
        if self._pace is not None and self._credit.backlog:
            self._keep_pace(self._pace, on_wait)
        index = self._credit.take()
        if index is None:
            start = time.monotonic()
            try:
                while (index := self._credit.take()) is None:
                    self._send(self._held.runs())
                    self._receive_acks(_WAIT_MS)
                    on_wait()
                    self._check_whole()
                    start = self._count_wait(start)  # whoever looks sees what is waited for
            finally:
                self._count_wait(start)
        slots = slice(index * self._block, (index + 1) * self._block)
        self.ring.begin(slots)
        self._held.begin(slots, time.monotonic())
        return slots

    def _keep_pace(self, pace: ActorPacer, on_wait: Callable[[], None]) -> None:
        """Waits for credit as long as the rate limiter may be what is waited for."""
        start = time.monotonic()
        try:
            while self._credit.backlog and (seconds := pace.wait(start)):
                self._send(self._held.runs())
                self._receive_acks(min(_WAIT_MS, math.ceil(1000 * seconds)))
                on_wait()
                start = self._count_wait(start)
        finally:
            self._count_wait(start)
        if self._credit.backlog:
            pace.went_on(start)

    def _count_wait(self, since: float) -> float:
        """Counts the seconds since then; returns the time."""
        now = time.monotonic()
        self._counters.add(f"waits.credit.{self._policy}", now - since)
        return now

    def finish(self, slots: slice, valid: int | NDArray[np.int64], before: int | NDArray[np.int64]) -> None:
        """The block in `slots` is whole, with so many rows and rows of history, one number for all or one a slot.

        Its segments get the next numbers and are announced as credit allows; slots without a row are no segments."""
        count = self.ring.finish(slots, self._credit.next, valid, before)
        self._credit.finish(slots.start // self._block, count)
        self._held.finish(slots, time.monotonic())
        if count:
            self._counters.add(self._named["produced"], count)
            self._announce_new()
            if not self._held.waits:
                self._send(self._held.runs())
            if self._credit.backlog:
                self._receive_acks(0)  # credit may be back already
            self._levels()

    def route(self, route: Route, inline: bool) -> None:
        """Where the learner is now. A new incarnation or address, or one more or less relay on the way: everything
        unacknowledged is announced again."""
        if self._route is not None and _way(self._route) == _way(route) and self._inline == inline:
            return
        self._check_whole()
        self.disconnect()
        self._route, self._inline = route, inline
        self._held.travel(inline)
        self._header = self._describe(route, inline)
        self._said.clear()
        self._acks = connect(self._connections.context, zmq.SUB, route.acknowledgements, largest=LARGEST_ACK)
        self._acks.setsockopt(zmq.SUBSCRIBE, ack_topic(self._policy, self._actor.name, self._actor.incarnation))
        self._outlet, self._heard = self._connections.take(route), 0
        self._announce_again(0)
        self._patience = _RESEND_AFTER
        self.pump()

    def pump(self) -> None:
        """Takes in acknowledgements and announces what credit allows; never waits."""
        self._check_whole()
        self._receive_acks(0)
        self._announce_new()
        self._send(self._held.runs())
        self._levels()

    def drain(self, seconds: float, on_wait: Callable[[], object]) -> bool:
        """Announces and waits until everything is acknowledged; False if that took longer than `seconds`."""
        start = time.monotonic()
        self.pump()
        try:
            while not self._credit.idle and time.monotonic() < start + seconds:
                self._receive_acks(_WAIT_MS)
                self.pump()
                on_wait()
        finally:
            self._counters.add(f"waits.drain.{self._policy}", time.monotonic() - start)
        return self._credit.idle

    def disconnect(self, linger: float = 0.0) -> None:
        """Closes the sockets, giving queued headers up to `linger` seconds; the ring stays."""
        self._send(self._held.runs())
        if self._outlet is not None:
            self._connections.leave(self._outlet, int(linger * 1000))
        if self._acks is not None:
            self._acks.close(linger=0)
        self._outlet = self._acks = None

    @property
    def owed(self) -> int:
        """Segments that are finished and not acknowledged."""
        return self._credit.backlog + self._credit.travelling

    def detach(self, linger: float = 0.0) -> None:
        """`disconnect`, and lets go of the ring, which stays where it is."""
        self.disconnect(linger)
        self.ring.close()

    def close(self, linger: float = 0.0) -> None:
        """`disconnect`, and removes the ring unless others hold it."""
        self.disconnect(linger)
        self.ring.remove()

    def _check_whole(self) -> None:
        """SharedMemoryError where somebody made our memory shorter: a learner refuses all that lies there, and who
        waits for it to be settled would wait for ever."""
        self.ring.check_whole()
        if self._common is not None:
            self._common.ring.check_whole()

    def _announce_new(self) -> None:
        if self._outlet is None:
            return
        if self._credit.travelling == 0:
            self._heard_at = time.monotonic()  # nothing was missing until now
        if self._outlet.generation != self._generation:  # another policy's sender made the connection anew
            self._announce_again(self._heard)
        self._held.add(self._credit.announce())

    def _announce_again(self, beyond: int) -> None:
        """Everything in flight with numbers beyond `beyond`, in order, over a connection in which nothing of it waits,
        so that a queue never holds more than the credit."""
        assert self._outlet is not None
        self._generation = self._outlet.generation
        self._heard_at = time.monotonic()
        self._held.runs()  # they are in flight, too
        again = self._credit.again(beyond)
        self._send(((block, block) for block in again), resent=True)
        self._counters.add(f"resent.{self._policy}", sum(block.segments for block in again))

    def _send(self, runs: Iterable[tuple[Block, Block]], resent: bool = False) -> None:
        """A message for each run of blocks that lie side by side, told by the first and the last of them."""
        ring = self.ring
        for first, last in runs:
            assert self._outlet is not None
            assert self._header is not None
            slots = slice(first.index * self._block, (last.index + 1) * self._block)
            whole = last.last - first.first + 1 == slots.stop - slots.start
            records = ring.table[slots] if whole else ring.segments(slots)
            moments: list[Any] = []
            if self._common is not None and self._inline:
                place, moments = self._outlet.common(self._common, (ring.nonce, slots.start))
                update = {"after": first.after, "resent": resent, "count": len(records), "common": place}
                header = encode(self._header.model_copy(update=update))
            else:
                header = self._head(first.after, resent, len(records))
            frames: list[bytes | memoryview] = [header, records.tobytes()]
            if self._inline:  # without a copy, as a block in flight is never overwritten, unless some are no segments
                where = slots if whole else records["slot"]
                columns = ((field.name, _bytes_of(ring.columns[field.name][where])) for field in ring.layout.fields)
                frames += [compression.compress(data) if name in self._compress else data for name, data in columns]
                frames += moments
            try:
                send_nowait(self._outlet.socket, frames, copy=not self._inline)
            except zmq.Again:  # cannot be: fewer messages are in flight than a queue holds
                self._counters.add("push_full")

    def _head(self, after: int, resent: bool, count: int) -> bytes:
        """The header of a message, of which only the number `after` is encoded each time."""
        assert self._header is not None
        said = self._said.get((count, resent))
        if said is None:
            header = self._header.model_copy(update={"resent": resent, "count": count})
            said = self._said[count, resent] = around(header, "after")
        return said[0] + packed(after) + said[1]

    def _describe(self, route: Route, inline: bool) -> Segments:
        """What the headers of all messages to this learner have in common."""
        ring = self.ring
        return Segments(
            schema_number=spoken_with(route),
            run=self._actor.run,
            actor=self._actor.name,
            incarnation=self._actor.incarnation,
            proof=self._actor.proof,
            policy=self._policy,
            layout=ring.layout.hash,
            count=self._block,
            inline=inline,
            ring="" if inline else str(ring.path),
            nonce="" if inline else ring.nonce,
            compressed=self._compress if inline else [],
            common=None if self._common is None or inline else self._common.place,
        )

    def _receive_acks(self, milliseconds: int) -> None:
        acks, self._looked_at = self._acks, time.monotonic()
        if acks is None:
            if milliseconds:
                time.sleep(milliseconds / 1000)
            return
        if milliseconds:
            poll([acks], milliseconds)
        newest = None
        for _ in range(_AT_ONCE):
            frames = try_receive(acks)
            if frames is None:
                break
            newest = self._ack(frames) or newest
        if newest is not None:  # cumulative: the newest says it all
            blocks = self._credit.acknowledge(newest.acknowledged)
            if self._pace is not None:
                self._pace.heard(self._looked_at, blocks)
            self._note_refusals(newest)
            self._recover(newest.announced)
            self._announce_new()
            if not self._held.waits:
                self._send(self._held.runs())
            self._levels()

    def _ack(self, frames: list[bytes]) -> Ack | None:
        """The acknowledgement in a message, or None: one that cannot be believed is counted and told once."""
        try:
            ack, _ = decode(frames[1:])
            mine = (self._actor.name, self._actor.incarnation)
            if not isinstance(ack, Ack) or (ack.actor, ack.incarnation) != mine:
                raise WireError("message_not_an_acknowledgement", message=ack.type)
            if ack.acknowledged >= self._credit.next:
                raise WireError("acknowledgement_never_announced", value=ack.acknowledged)
        except WireError as fault:
            self._counters.add("refused_acks")
            self._connections.refusals.tell("message_refused", fault.kind, fault.coded, policy=self._policy)
            return None
        return ack

    def _note_refusals(self, ack: Ack) -> None:
        """Counts what the learner refused, and tells each reason once."""
        before = self._refused[1] if self._refused[0] == ack.learner_incarnation else 0
        self._refused = ack.learner_incarnation, max(before, ack.refused)
        if ack.refused > before:
            self._counters.add(self._named["refused_messages"], ack.refused - before)
            kind = WireError.heard(ack.reason).kind
            self._connections.refusals.tell("segments_refused", kind, ack.reason, policy=self._policy)

    def _recover(self, heard: int) -> None:
        """Announces again what, as acknowledgements keep saying for longer than a beacon takes, never arrived."""
        now = time.monotonic()
        if heard != self._heard:
            self._heard, self._heard_at, self._patience = heard, now, _RESEND_AFTER
        elif self._held or self._credit.newest <= heard:
            self._heard_at = now  # nothing is missing
        elif now - self._heard_at > self._patience:
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
            if self._outlet is not None:
                self._outlet.renew()
                self._announce_again(heard)

    def _levels(self) -> None:
        credit, counters, named = self._credit, self._counters, self._named
        counters.set(named["backlog"], credit.backlog)
        counters.set(named["flight"], credit.travelling)
        for cause, count in credit.dropped.items():
            if count:
                counters.set(named[f"dropped.{cause}"], count)


def _bytes_of(array: NDArray) -> Any:
    """The memory of a contiguous array as a frame."""
    return array.reshape(-1).view(np.uint8).data


def _way(route: Route) -> tuple[object, ...]:
    """All of a route that segments and their acknowledgements depend on."""
    schemas = (route.oldest_schema, route.newest_schema)
    return route.learner, route.incarnation, route.experience, route.experience_relay, route.acknowledgements, schemas
