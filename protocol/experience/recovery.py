"""Finished segments that a dead actor left in memory, and who takes them.

A learner that shares the memory takes them from the ring itself: `MemberTracker` finds rings that nobody announced, and
records of whole segments in them. For any other learner, the actor that returns under the same name sends what its
predecessor finished and nobody took, under the numbers that it was given.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Set
from dataclasses import replace
from pathlib import Path

import numpy as np
import zmq

from protocol.errors import RookeryError, SharedMemoryError, WireError
from protocol.experience.ack_publisher import ack_topic
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import Block, CreditWindow
from protocol.experience.layout import Layout
from protocol.experience.proof import ActorIdentity
from protocol.experience.ring_buffer import FINISHED, Records, Ring
from protocol.experience.sender import LARGEST_ACK, ExperienceSender
from protocol.experience.shared_obs import COMMON, SharedObsWriter
from protocol.experience.validation import check_final_rows, observed_rows, read_records
from protocol.memory.shared_file import PREFIX, Counters, files, memory_dir
from protocol.messages.codec import decode
from protocol.messages.core import Ack, Route
from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import connect, poll, try_receive

log = logging.getLogger(__name__)


def ring_path(actor: ActorIdentity, policy: str) -> Path:
    """The file of `actor`'s ring for segments of `policy`."""
    return memory_dir() / f"{PREFIX}{actor.run}-{actor.name}.{actor.incarnation}-{policy}.ring"


def rings_before(actor: ActorIdentity, policy: str) -> list[tuple[int, Path]]:
    """(incarnation, file) of the rings that earlier incarnations of `actor` left on this node."""
    found = [(number, path) for (name, number), path in _rings(actor.run, policy) if name == actor.name]
    return sorted(one for one in found if one[0] < actor.incarnation)


def resend_predecessor(
    context: zmq.Context[zmq.Socket[bytes]],
    actor: ActorIdentity,
    route: Route,
    layout: Layout,
    block: int,
    counters: Counters,
    seconds: float,
    on_wait: Callable[[], None],
    common: Layout | None = None,
) -> int:
    """Sends what the rings of `actor`'s earlier incarnations hold beyond what the learner at `route` settled, and
    removes them. `counters` are not its own, whose levels would be mixed up. `common`: the layout of what agents see in
    common, if they do; its rings stay, as other policies' segments refer to them too.

    Returns how many segments it delivered; what cannot be delivered in `seconds` stays where it is, and is told.
    """
    delivered = 0
    for incarnation, path in rings_before(actor, route.policy):
        before = replace(actor, incarnation=incarnation)
        end = time.monotonic() + seconds
        try:
            ring = Ring.attach(path, layout)
        except RookeryError as fault:  # taken by a sweep, or damaged by the death: nothing to save in it
            log.warning(
                "event=predecessor_lost policy=%s incarnation=%d reason=%s", route.policy, incarnation, fault.coded
            )
            continue
        settled = _settled(context, route, before, seconds, on_wait)
        try:
            blocks = _blocks(ring, settled or 0, layout, block)
            moments = None if common is None else _moments(before, common, ring, blocks, block)
        except RookeryError as fault:
            log.warning(
                "event=predecessor_lost policy=%s incarnation=%d reason=%s", route.policy, incarnation, fault.coded
            )
            ring.remove()
            continue
        count = sum(each.segments for each in blocks)
        credit = CreditWindow.of_flight(ring.slots // block, blocks)
        connections = ConnectionPool(context)
        sender = ExperienceSender(connections, before, route.policy, ring, credit, counters, common=moments)
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


def _moments(actor: ActorIdentity, common: Layout, ring: Ring, blocks: list[Block], size: int) -> SharedObsWriter:
    """The moments that `blocks` refer to, held for them. Raises RookeryError if they are not all there."""
    path = ring_path(actor, COMMON)
    moments = SharedObsWriter.inherited(Ring.attach(path, common))
    for block in blocks:
        slots = slice(block.index * size, (block.index + 1) * size)
        records = ring.segments(slots)
        referred = ring.columns["moment"][records["slot"]][observed_rows(records, ring.layout)]
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
    actor: ActorIdentity,
    seconds: float,
    on_wait: Callable[[], None],
) -> int | None:
    """What the learner has of `actor`, which it says to every subscriber at once; None if it does not."""
    end, refusals = time.monotonic() + seconds, RefusalLog()
    socket = connect(context, zmq.SUB, route.acknowledgements, largest=LARGEST_ACK)
    socket.setsockopt(zmq.SUBSCRIBE, ack_topic(route.policy, actor.name, actor.incarnation))
    try:
        while time.monotonic() < end:
            poll([socket], 50)
            on_wait()
            frames = try_receive(socket)
            if frames is None:
                continue
            try:
                ack, _ = decode(frames[1:])
            except WireError as fault:
                refusals.tell("message_refused", fault.kind, fault.coded, policy=route.policy)
                continue
            if isinstance(ack, Ack) and (ack.actor, ack.incarnation) == (actor.name, actor.incarnation):
                return ack.acknowledged
        return None
    finally:
        socket.close(linger=0)


class MemberTracker:
    """Who is a member, as far as is known, and whose rings are to be looked through because they are none any more:
    those of actors that this learner `concerns`."""

    def __init__(self, run: str, concerns: Callable[[str], bool] = lambda actor: True) -> None:
        self._run, self._concerns = run, concerns
        self._living: set[tuple[str, int]] = set()
        self._strangers: set[tuple[str, tuple[str, int]]] = set()

    def __contains__(self, key: object) -> bool:
        return key in self._living

    def call(
        self, actors: Set[tuple[str, int]], attached: Mapping[str, Container[tuple[str, int]]]
    ) -> list[tuple[str, tuple[str, int], Path | None]]:
        """The members now, and the rings `attached` by policy; returns those to be looked through as (policy, (actor,
        incarnation), file), the file None for one that is attached.

        The ring of an actor that was never a member is taken for a dead one's when it is told twice: its actor was not
        just about to join.
        """
        lost, self._living = self._living - actors, set(actors)
        found: list[tuple[str, tuple[str, int], Path | None]] = []
        strangers = set()
        for policy, rings in attached.items():
            for key, path in rings_left_behind(self._run, policy, self._living, rings):
                if not self._concerns(key[0]):
                    continue
                strangers.add((policy, key))
                if (policy, key) in self._strangers or key in lost:
                    found.append((policy, key, path))
            found += [(policy, key, None) for key in lost if key in rings]
        self._strangers = strangers
        return found


def rings_left_behind(
    run: str, policy: str, living: Container[tuple[str, int]], attached: Container[tuple[str, int]]
) -> list[tuple[tuple[str, int], Path]]:
    """Rings of `policy` on this node as ((actor, incarnation), file) whose actor is not `living` and that are not
    `attached`: their actor died while no learner was there."""
    return [(key, path) for key, path in _rings(run, policy) if key not in living and key not in attached]


def _rings(run: str, policy: str) -> Iterator[tuple[tuple[str, int], Path]]:
    """((actor, incarnation), file) of all rings for segments of `policy` on this node."""
    name = re.compile(re.escape(f"{PREFIX}{run}-") + r"(.+)\.(\d+)-" + re.escape(policy) + r"\.ring")
    for path in files(run):
        if (match := name.fullmatch(path.name)) is not None:
            yield (match[1], int(match[2])), path


def finished_beyond(ring: Ring, number: int, layout: Layout) -> Records:
    """Records of the whole segments in a dead actor's ring with numbers beyond `number`, in order, checked like all
    that arrives (WireError). SharedMemoryError where somebody made it shorter: its actor may have died of that."""
    ring.check_whole()
    table = ring.table.copy()
    table["slot"] = np.arange(ring.slots)  # nobody believes what a slot says of its own place
    records = table[(table["state"] == FINISHED) & (table["sequence"] % 2 == 0)]
    records = np.sort(records[records["number"] > number], order="number")
    if len(records):
        records = read_records(records.tobytes(), len(records), layout)
        if "final_row" in ring.columns:
            check_final_rows(ring.columns["final_row"][records["slot"]], layout)
    return records
