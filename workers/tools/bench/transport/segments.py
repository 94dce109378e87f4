"""How fast segments travel, beside the limit of the same run: two processes, the same memory, only the messages differ;
and what announcing a segment costs an actor's thread: `take`, the records, `finish`, the message, its acknowledgement.

In flow: nothing but time to spend. Out flow: ratios (1 is the limit), absolute rates, microseconds a segment at 64
streams.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import zmq

from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.memory.shared_file import Counters, memory_dir
from protocol.transport.curve import new_keys
from protocol.transport.sockets import Ports
from workers.learning.report import LearnerReport
from workers.rollout.report import ActorReport
from workers.tools.bench.transport.load import ACTOR, POLICY, RUN, SECRET, TransportLoad, fill
from workers.tools.bench.transport.reader import PATIENCE, route_to, settle_all, two_processes

_STREAMS = 64


def microseconds(times: int) -> float:
    """A segment's share of what a block costs, median of `times`; both ends are in this process."""
    load = TransportLoad(floats=4, segments=_STREAMS, blocks=8, folder=str(memory_dir()))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    addresses = ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB})
    receiver = ExperienceReceiver(
        ports.sockets[1], ports.sockets[3], RUN, SECRET, 1, Counters(None, *LearnerReport.names([POLICY]))
    )
    receiver.add_policy(POLICY, load.layout, ReceiptLog(None), load.slots)
    ring = Ring.create(load.ring, load.layout, load.slots)
    credit = CreditWindow(load.blocks, load.credits, 1, "stream", "block")
    counters = Counters(None, *ActorReport.names([POLICY]))
    sender = ExperienceSender(ConnectionPool(context), ACTOR, POLICY, ring, credit, counters)
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


_FLOATS = 240
"""float32 of an observation: segments of 64 steps and a bootstrap row that have about 64 KiB."""
_SEGMENTS = {1: 16, 4: 64, 16: 256, 64: 1024}
"""Segments of a message by its size in MiB."""
_LEAST_BLOCKS = 8
_RING_BYTES = 160 << 20
"""More than four times a last-level cache of 32 MiB; larger caches make it grow."""
_SAME_NODE_BYTES, _TCP_BYTES = 480 << 20, 192 << 20
"""What one measurement moves at least."""
_WHOLE = 4
"""Counts of messages are multiples of it: whole batches."""


def measure(rounds: int = 9) -> dict[str, float]:
    """All figures of the transport; `rounds` interleaved pairs, medians of the ratios pair by pair.

    The promised ratios are taken at the smallest size they are promised for, the others show what larger messages do.
    """
    near: dict[int, dict[str, float]] = {}
    far: dict[int, dict[str, float]] = {}
    for mib, segments in _SEGMENTS.items():
        few = rounds if mib == 1 else -(-rounds // 3)
        near[mib], far[mib] = _compared(rounds if mib == 4 else few, few, _load(segments))
    curve = _encrypted(rounds)
    return {
        "same_node.large_ratio": near[1]["floor"],
        "same_node.large_ratio_to_memcpy": near[1]["memcpy"],
        "same_node.large_gib_per_second": near[1]["rate"] / 2**30,
        "same_node.large_message_mib": near[1]["message_bytes"] / 2**20,
        **{f"same_node.ratio_at_mib.{mib}": near[mib]["floor"] for mib in (4, 16, 64)},
        "same_node.small_ratio": near[4]["memcpy"],
        "same_node.small_ratio_to_floor": near[4]["floor"],
        "same_node.small_segments_per_second": near[4]["rate"] / near[4]["segment_bytes"],
        "same_node.small_segment_kib": near[4]["segment_bytes"] / 2**10,
        "tcp.large_ratio": far[1]["floor"],
        "tcp.large_gib_per_second": far[1]["rate"] / 2**30,
        "tcp.large_message_mib": near[1]["message_bytes"] / 2**20,
        **{f"tcp.ratio_at_mib.{mib}": far[mib]["floor"] for mib in (4, 16, 64)},
        "tcp.curve_ratio": curve / far[1]["rate"],
        "tcp.curve_gib_per_second": curve / 2**30,
        "header.us_per_segment": microseconds(100 * rounds),
    }


def _compared(near_rounds: int, far_rounds: int, load: TransportLoad) -> tuple[dict[str, float], dict[str, float]]:
    """On one node and over TCP: ours against the floor, and on one node against one thread's memcpy, in turn; medians
    of the ratios pair by pair."""
    with two_processes(load) as (reader, ask):
        floors, alone, rates = [], [], []
        count = _count(_SAME_NODE_BYTES, load)
        for _ in range(near_rounds):
            floor, ours = ask("same_node_floor", count), ask("same_node", count)
            floors.append(floor / ours)
            alone.append(reader.memcpy(count) / ours)
            rates.append(load.message_bytes / ours)
        near = {
            "floor": statistics.median(floors),
            "memcpy": statistics.median(alone),
            "rate": statistics.median(rates),
            "message_bytes": load.message_bytes,
            "segment_bytes": load.layout.segment_bytes,
        }
        floors, rates = [], []
        count = _count(_TCP_BYTES, load)
        for _ in range(far_rounds):
            floor, ours = ask("tcp_floor", count), ask("tcp", count)
            floors.append(floor / ours)
            rates.append(load.message_bytes / ours)
        return near, {"floor": statistics.median(floors), "rate": statistics.median(rates)}


def _encrypted(rounds: int) -> float:
    """Bytes a second at the smallest size with every connection encrypted and authenticated."""
    with tempfile.TemporaryDirectory() as folder:
        new_keys(Path(folder) / "keys")
        load = replace(_load(_SEGMENTS[1]), keys=f"{folder}/keys")
        with two_processes(load) as (_, ask):
            return statistics.median(load.message_bytes / ask("tcp", 2 * _LEAST_BLOCKS) for _ in range(rounds))


def _load(segments: int) -> TransportLoad:
    probe = TransportLoad(_FLOATS, segments, _WHOLE, str(memory_dir()))
    blocks = max(_LEAST_BLOCKS, -(-max(_RING_BYTES, 4 * _cache_bytes()) // probe.message_bytes))
    return replace(probe, blocks=-(-blocks // _WHOLE) * _WHOLE)


def _count(nbytes: int, load: TransportLoad) -> int:
    """Messages that are `nbytes` at least."""
    return max(2 * _LEAST_BLOCKS, -(-nbytes // (load.message_bytes * _WHOLE)) * _WHOLE)


def _cache_bytes() -> int:
    """The largest cache that Linux tells of; 0 where it tells none."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes)
