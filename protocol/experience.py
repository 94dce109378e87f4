"""Experience on its way out: one actor's segments of one policy.

The sender owns the ring an actor writes in place; it announces finished blocks and keeps them until they are settled.
The other end is `protocol/arrivals.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.codec import decode, encode
from protocol.counters import Counters
from protocol.credit import Block, Credit
from protocol.errors import WireError
from protocol.messages import Ack, Route, Segments
from protocol.ring import Ring
from protocol.sockets import connect, poll

__all__ = ["ExperienceSender", "ack_topic"]

log = logging.getLogger(__name__)

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


def _bytes_of(array: NDArray) -> Any:
    """The memory of a contiguous array as a frame."""
    return array.reshape(-1).view(np.uint8).data
