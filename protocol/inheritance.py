"""What an earlier incarnation of an actor finished and nobody took, sent by its successor.

A learner that shares the memory takes it from the ring itself (`protocol/salvage.py`); for any other the actor that
returns under the same name does this. In flows: ring files of the name, the learner's acknowledgements. Out flow: the
segments nobody has, under the numbers they were given.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import zmq

from protocol.acknowledgements import ack_topic
from protocol.codec import decode
from protocol.common import COMMON, CommonWriter
from protocol.counters import Counters
from protocol.credit import Block, Credit
from protocol.errors import RookeryError, SharedMemoryError, WireError
from protocol.experience import LARGEST_ACK, ExperienceSender
from protocol.intake import shown
from protocol.layout import Layout
from protocol.memory import PREFIX, files, memory_dir
from protocol.messages import Ack, Route
from protocol.ring import Ring
from protocol.salvage import finished_beyond
from protocol.sockets import arrived, connect, poll

__all__ = ["deliver_inheritance", "rings_of"]

log = logging.getLogger(__name__)


def rings_of(run: str, actor: str, before: int, policy: str) -> list[tuple[int, Path]]:
    """(incarnation, file) of the rings that incarnations of `actor` earlier than `before` left on this node."""
    name = re.compile(re.escape(f"{PREFIX}{run}-{actor}.") + r"(\d+)-" + re.escape(policy) + r"\.ring")
    matches = ((name.fullmatch(path.name), path) for path in files(run))
    found = [(int(match[1]), path) for match, path in matches if match is not None]
    return sorted((incarnation, path) for incarnation, path in found if incarnation < before)


def deliver_inheritance(
    context: zmq.Context[zmq.Socket[bytes]],
    run: str,
    actor: str,
    before: int,
    route: Route,
    layout: Layout,
    block: int,
    counters: Counters,
    seconds: float,
    on_wait: Callable[[], None],
    common: Layout | None = None,
) -> int:
    """Sends what the rings of earlier incarnations hold beyond what the learner at `route` settled, and removes them.
    `counters` are not the present incarnation's, whose levels would be mixed up. `common`: the layout of what agents
    see in common, if they do; its rings stay, as other policies' segments refer to them too.

    Returns how many segments it delivered; what cannot be delivered in `seconds` stays where it is, and is told.
    """
    delivered = 0
    for incarnation, path in rings_of(run, actor, before, route.policy):
        end = time.monotonic() + seconds
        try:
            ring = Ring.attach(path, layout)
        except RookeryError as fault:  # taken by a sweep, or damaged by the death: nothing to save in it
            log.warning(
                "event=inheritance_lost policy=%s incarnation=%d reason=%s", route.policy, incarnation, fault.coded
            )
            continue
        settled = _settled(context, route, actor, incarnation, seconds, on_wait)
        blocks = _blocks(ring, settled or 0, layout, block)
        try:
            moments = _moments(run, actor, incarnation, common, ring, blocks, block)
        except RookeryError as fault:
            log.warning(
                "event=inheritance_lost policy=%s incarnation=%d reason=%s", route.policy, incarnation, fault.coded
            )
            ring.remove()
            continue
        count = sum(each.segments for each in blocks)
        credit = Credit.of_flight(ring.slots // block, blocks)
        sender = ExperienceSender(
            context, run, actor, incarnation, route.policy, ring, credit, block, counters, common=moments
        )
        whole = False
        try:
            if settled is not None:
                sender.route(route, inline=True)
                whole = sender.drain(max(0.0, end - time.monotonic()), on_wait)
        finally:  # what nobody took stays for a later incarnation
            sender.close() if whole else sender.detach()
            if moments is not None:
                moments.ring.close()
        if whole:
            delivered += count
        else:
            log.warning("event=undelivered policy=%s incarnation=%d segments=%d", route.policy, incarnation, count)
    return delivered


def _moments(
    run: str, actor: str, incarnation: int, common: Layout | None, ring: Ring, blocks: list[Block], size: int
) -> CommonWriter | None:
    """The moments that `blocks` refer to, held for them; None where nothing is common. Raises RookeryError if they are
    not all there."""
    if common is None:
        return None
    path = memory_dir() / f"{PREFIX}{run}-{actor}.{incarnation}-{COMMON}.ring"
    moments = CommonWriter.inherited(Ring.attach(path, common))
    for block in blocks:
        slots = slice(block.index * size, (block.index + 1) * size)
        records = ring.segments(slots)
        referred = ring.columns["moment"][records["slot"]][shown(records, ring.layout)]
        oldest, newest = int(referred.min()), int(referred.max())
        if not moments.has(oldest, newest):
            moments.ring.close()
            raise SharedMemoryError("inherited_moments_missing", file=path, oldest=oldest, newest=newest)
        moments.hold((ring.nonce, slots.start), oldest, newest)
    return moments


def _blocks(ring: Ring, settled: int, layout: Layout, block: int) -> list[Block]:
    """The blocks of whole segments beyond number `settled`, in order."""
    records = finished_beyond(ring, settled, layout)
    index = records["slot"] // block
    numbers = {int(i): records["number"][index == i] for i in dict.fromkeys(index.tolist())}
    return sorted((Block(i, int(n[0]), int(n[-1])) for i, n in numbers.items()), key=lambda each: each.first)


def _settled(
    context: zmq.Context[zmq.Socket[bytes]],
    route: Route,
    actor: str,
    incarnation: int,
    seconds: float,
    on_wait: Callable[[], None],
) -> int | None:
    """What the learner has of this incarnation, which it says to every subscriber at once; None if it does not."""
    end = time.monotonic() + seconds
    socket = connect(context, zmq.SUB, route.acknowledgements, largest=LARGEST_ACK)
    socket.setsockopt(zmq.SUBSCRIBE, ack_topic(route.policy, actor, incarnation))
    try:
        while time.monotonic() < end:
            poll([socket], 50)
            on_wait()
            frames = arrived(socket)
            if frames is None:
                continue
            try:
                ack, _ = decode(frames[1:])
            except WireError as fault:
                log.warning("event=message_refused policy=%s reason=%s", route.policy, fault.coded)
                continue
            if isinstance(ack, Ack) and (ack.actor, ack.incarnation) == (actor, incarnation):
                return ack.settled
        return None
    finally:
        socket.close(linger=0)
