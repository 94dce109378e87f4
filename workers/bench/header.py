"""What announcing costs an actor: `take`, the records, `finish`, the message and its acknowledgement, in its thread.

Out flow: microseconds a segment at 64 streams.
"""

from __future__ import annotations

import statistics
import time

import numpy as np
import zmq

from protocol.arrivals import ExperienceReceiver
from protocol.counters import Counters
from protocol.credit import Credit
from protocol.experience import ExperienceSender
from protocol.ledger import Ledger
from protocol.memory import memory_dir
from protocol.ring import Ring
from protocol.sockets import Ports
from workers.bench.load import ACTOR, POLICY, RUN, Load, fill
from workers.bench.reader import PATIENCE, route_to, settle_all
from workers.metrics.reporting import ActorReport, LearnerReport

__all__ = ["microseconds"]

_STREAMS = 64


def microseconds(times: int) -> float:
    """A segment's share of what a block costs, median of `times`; both ends are in this process."""
    load = Load(floats=4, segments=_STREAMS, blocks=8, folder=str(memory_dir()))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    addresses = ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB})
    receiver = ExperienceReceiver(
        ports.sockets[1], ports.sockets[3], RUN, 1, Counters(None, *LearnerReport.names([POLICY]))
    )
    receiver.add_policy(POLICY, load.layout, Ledger(None), load.slots)
    ring = Ring.create(load.ring, load.layout, load.slots)
    credit = Credit(load.blocks, load.credits, 1, "stream", "block")
    counters = Counters(None, *ActorReport.names([POLICY]))
    sender = ExperienceSender(context, RUN, ACTOR, 1, POLICY, ring, credit, load.segments, counters)
    streams, length = np.arange(load.segments, dtype=np.uint64), load.layout.length
    spent = []
    try:
        sender.route(route_to(addresses), inline=False)
        for index in range(times):
            started = time.perf_counter()
            slots = sender.take(lambda: None)
            taken = time.perf_counter() - started
            fill(ring.columns, slots, index)
            started = time.perf_counter()
            ring.table["stream"][slots] = streams
            ring.table["stream_sequence"][slots] = index
            ring.table["version_min"][slots] = ring.table["version_max"][slots] = 1
            sender.finish(slots, length, 0)
            spent.append(taken + time.perf_counter() - started)
            _answer(receiver)
    finally:
        sender.close()
        receiver.close()
        ports.close()
        context.destroy(linger=0)
    return statistics.median(spent) * 1e6 / load.segments


def _answer(receiver: ExperienceReceiver) -> None:
    """Waits for what was announced and settles it, so that the sender finds the acknowledgement."""
    end = time.monotonic() + PATIENCE
    while not settle_all(receiver):
        receiver.receive()
        receiver.beacon(time.monotonic())
        if time.monotonic() > end:
            raise SystemExit("what was announced does not arrive; see the messages above")
    time.sleep(0.001)
