"""How fast segments travel, beside the limit of the same run: two processes, the same memory, only the messages differ.

In flow: nothing but time to spend. Out flow: a dictionary of ratios (1 is the limit) and of absolute rates.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import zmq
from numpy.typing import NDArray

from protocol.arrivals import ExperienceReceiver
from protocol.counters import Counters
from protocol.credit import Credit
from protocol.experience import ExperienceSender
from protocol.ledger import Ledger
from protocol.memory import memory_dir
from protocol.messages import Route
from protocol.ring import Ring
from protocol.security import new_keys
from protocol.sockets import Ports, open_context, poll
from protocol.version import Version
from workers.bench.load import ACTOR, POLICY, RUN, Load, copy_out, fill
from workers.learning.stage import Stage
from workers.reporting import ActorReport, LearnerReport

__all__ = ["measure"]

_PATIENCE = 30.0
_RAW = 4
_SMALL, _MIDDLE, _LARGE = 240, 1008, 4032
"""float32 of an observation: segments of 64 steps and a bootstrap row that have about 64 KiB, 256 KiB and 1 MiB."""
_BLOCKS = 6
_RING_BYTES = 160 << 20
"""More than four times a last-level cache of 32 MiB; larger caches make it grow."""


class Reader:
    """The reading process: this one. `receiver` and `stage` are what a learner has."""

    def __init__(self, load: Load, context: zmq.Context[zmq.Socket[bytes]], ipc: str) -> None:
        self.load = load
        self._ports = Ports(context, "127.0.0.1", 0)
        raw = {} if load.keys else {_RAW + 1: zmq.PULL}
        addresses = self._ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB, **raw})
        self.route = Route(
            policy=POLICY,
            learner="learner",
            incarnation=1,
            experience=addresses[1],
            weights=addresses[2],
            acknowledgements=addresses[3],
        )
        self._counters = Counters(None, *LearnerReport.names([POLICY]))
        sockets = self._ports.sockets
        self._receiver = ExperienceReceiver(sockets[1], sockets[3], RUN, 1, self._counters)
        self._receiver.add_policy(POLICY, load.layout, Ledger(None), load.slots)
        cpu = torch.device("cpu")
        self._stage = Stage(POLICY, load.layout, load.segments, self._receiver, self._counters, cpu)
        self._there = context.socket(zmq.PULL)
        self._there.bind(f"{ipc}-there")
        self._back = context.socket(zmq.PUSH)
        self._back.bind(f"{ipc}-back")
        self._stream = sockets.get(_RAW + 1)
        columns = load.layout.columns(memoryview(bytearray(load.layout.offsets(load.segments)[1])), load.segments)
        self._batch: dict[str, NDArray] = {n: c for n, c in columns.items() if n != "version"}
        self._private = {n: c.reshape(-1).view(np.uint8) for n, c in columns.items()}
        self._ring: Ring | None = None

    def attach(self) -> None:
        """Maps the writer's ring."""
        self._ring = Ring.attach(self.load.ring, self.load.layout)

    def close(self) -> None:
        """Lets go of everything."""
        if self._ring is not None:
            self._ring.close()
        self._receiver.close()
        for socket in (self._there, self._back):
            socket.close(linger=0)
        self._ports.close()

    def same_node(self, count: int) -> float:
        """Seconds a message until its segments are in the batch and settled."""

        def step() -> int:
            self._receiver.receive()
            if not self._stage.fill(Version(1, 1)):
                return 0
            self._stage.take()
            return 1

        return self._clock(count, step, self._wait)

    def tcp(self, count: int) -> float:
        """Seconds a message until its segments are in this process's pool and settled."""

        def step() -> int:
            self._receiver.receive()
            arrivals, done = self._receiver.arrivals(POLICY), 0
            while arrivals:
                arrival = arrivals.popleft()
                slots = arrival.records["slot"]
                self._receiver.give_back(POLICY, slots)
                self._receiver.settle(POLICY, arrival, int(arrival.records["number"][-1]), len(slots))
                done += 1
            return done

        return self._clock(count, step, self._wait)

    def same_node_floor(self, count: int) -> float:
        """Seconds a message for the same copies with one bare message a block."""
        assert self._ring is not None
        columns, batch, load = self._ring.columns, self._batch, self.load
        there, back = self._there, self._back

        def step() -> int:
            index = there.recv()
            copy_out(columns, load.block(int.from_bytes(index, "little")), batch)
            back.send(index)
            return 1

        return self._clock(count, step, lambda: bool(there.poll(1000)))

    def tcp_floor(self, count: int) -> float:
        """Seconds a message for bare frames, each copied once into private memory."""
        private, stream, back = self._private, self._stream, self._back
        assert stream is not None

        def step() -> int:
            frames = stream.recv_multipart(copy=False)
            for frame, target in zip(frames, private.values(), strict=True):
                target[:] = np.frombuffer(frame.buffer, np.uint8)
            back.send(b"")
            return 1

        return self._clock(count, step, lambda: bool(stream.poll(1000)))

    def memcpy(self, count: int) -> float:
        """Seconds a message for one thread that copies the same pieces, segment by segment, walking the ring."""
        assert self._ring is not None
        source, target, load = self._ring.columns["observation"], self._batch["observation"], self.load
        started = time.perf_counter()
        for index in range(count):
            first = load.block(index).start
            for segment in range(load.segments):
                np.copyto(target[segment], source[first + segment])
        return (time.perf_counter() - started) / count

    def _clock(self, count: int, step: Callable[[], int], wait: Callable[[], bool]) -> float:
        done, first, end = 0, 0.0, time.monotonic() + _PATIENCE
        while done < count:
            moved = step() if done or wait() else 0
            done += moved
            if moved:
                first = first or time.perf_counter()
                continue
            wait()
            if time.monotonic() > end:
                raise SystemExit("nothing that the writer sends arrives; see the messages above")
        return (time.perf_counter() - first) / (count - 1)

    def _wait(self) -> bool:
        self._receiver.beacon(time.monotonic())
        return poll(self._receiver.sockets, 1000)


def measure(rounds: int = 9) -> dict[str, float]:
    """All figures of the transport; `rounds` interleaved pairs, medians of the ratios pair by pair."""
    tcp = _tcp(rounds)
    curve = _curve(rounds, tcp["tcp.large_gib_per_second"])
    return {**_same_node(rounds), **tcp, **curve, **_header(rounds)}


def _same_node(rounds: int) -> dict[str, float]:
    large, small = _interleaved(rounds, _load(_LARGE, 64)), _interleaved(rounds, _load(_SMALL, 256))
    short = _interleaved(rounds, _load(_SMALL, 64))
    return {
        "same_node.large_ratio": large["floor"],
        "same_node.large_ratio_to_memcpy": large["memcpy"],
        "same_node.large_gib_per_second": large["rate"] / 2**30,
        "same_node.large_message_mib": large["message_bytes"] / 2**20,
        "same_node.short_message_ratio": short["floor"],
        "same_node.short_message_mib": short["message_bytes"] / 2**20,
        "same_node.small_ratio": small["memcpy"],
        "same_node.small_ratio_to_floor": small["floor"],
        "same_node.small_segments_per_second": small["rate"] / small["segment_bytes"],
        "same_node.small_segment_kib": small["segment_bytes"] / 2**10,
    }


def _interleaved(rounds: int, load: Load) -> dict[str, float]:
    """Ours against the floor and against one thread's memcpy, in turn: medians of the ratios pair by pair."""
    with _pair(load) as (reader, ask):
        floors, alone, rates = [], [], []
        count = 3 * reader.load.blocks
        for _ in range(rounds):
            floor = ask("same_node_floor", count)
            ours = ask("same_node", count)
            lone = reader.memcpy(count)
            floors.append(floor / ours)
            alone.append(lone / ours)
            rates.append(reader.load.message_bytes / ours)
        return {
            "floor": statistics.median(floors),
            "memcpy": statistics.median(alone),
            "rate": statistics.median(rates),
            "message_bytes": reader.load.message_bytes,
            "segment_bytes": reader.load.layout.segment_bytes,
        }


def _tcp(rounds: int) -> dict[str, float]:
    with _pair(_load(_MIDDLE, 64)) as (reader, ask):
        ratios, rates = [], []
        count = 30
        for _ in range(rounds):
            floor = ask("tcp_floor", count)
            ours = ask("tcp", count)
            ratios.append(floor / ours)
            rates.append(reader.load.message_bytes / ours)
        return {
            "tcp.large_ratio": statistics.median(ratios),
            "tcp.large_gib_per_second": statistics.median(rates) / 2**30,
            "tcp.large_message_mib": reader.load.message_bytes / 2**20,
        }


def _curve(rounds: int, plain: float) -> dict[str, float]:
    """The same with every connection encrypted and authenticated, as a share of `plain` (GiB/s)."""
    with tempfile.TemporaryDirectory() as folder:
        new_keys(Path(folder) / "keys")
        with _pair(replace(_load(_MIDDLE, 64), keys=f"{folder}/keys")) as (reader, ask):
            rate = statistics.median(reader.load.message_bytes / ask("tcp", 20) for _ in range(rounds))
    return {"tcp.curve_ratio": rate / 2**30 / plain, "tcp.curve_gib_per_second": rate / 2**30}


def _header(rounds: int) -> dict[str, float]:
    """What `take`, `finish`, the announcement and its acknowledgement cost the actor's thread at 64 streams."""
    load = Load(floats=4, segments=64, blocks=8, folder=str(memory_dir()))
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    addresses = ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB})
    receiver = ExperienceReceiver(
        ports.sockets[1], ports.sockets[3], RUN, 1, Counters(None, *LearnerReport.names([POLICY]))
    )
    receiver.add_policy(POLICY, load.layout, Ledger(None), load.slots)
    ring = Ring.create(load.ring, load.layout, load.slots)
    credit = Credit(load.blocks, load.blocks - 2, 1, "stream", "block")
    counters = Counters(None, *ActorReport.names([POLICY]))
    sender = ExperienceSender(context, RUN, ACTOR, 1, POLICY, ring, credit, load.segments, counters)
    route = Route(
        policy=POLICY,
        learner="learner",
        incarnation=1,
        experience=addresses[1],
        weights=addresses[2],
        acknowledgements=addresses[3],
    )
    streams, length = np.arange(load.segments, dtype=np.uint64), load.layout.length
    spent = []
    try:
        sender.route(route, inline=False)
        for index in range(rounds * 100):
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
            _settle_all(receiver)
    finally:
        sender.close()
        receiver.close()
        ports.close()
        context.destroy(linger=0)
    return {"header.us_per_segment": statistics.median(spent) * 1e6 / load.segments}


def _settle_all(receiver: ExperienceReceiver) -> None:
    """Waits for what was announced and settles it, so that the sender finds the acknowledgement."""
    arrivals, end = receiver.arrivals(POLICY), time.monotonic() + _PATIENCE
    while not arrivals:
        receiver.receive()
        receiver.beacon(time.monotonic())
        if time.monotonic() > end:
            raise SystemExit("what was announced does not arrive; see the messages above")
    while arrivals:
        arrival = arrivals.popleft()
        receiver.settle(POLICY, arrival, int(arrival.records["number"][-1]), len(arrival.records))
    time.sleep(0.001)


def _load(floats: int, segments: int) -> Load:
    probe = Load(floats, segments, 4, str(memory_dir()))
    blocks = max(_BLOCKS, -(-max(_RING_BYTES, 4 * _cache_bytes()) // probe.message_bytes))
    return Load(floats, segments, blocks, probe.folder)


def _cache_bytes() -> int:
    """The largest cache that Linux tells of; 0 where it tells none."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(int(text[:-1]) << {"K": 10, "M": 20}.get(text[-1], 0))
    return max(sizes)


@contextmanager
def _pair(load: Load) -> Iterator[tuple[Reader, Callable[[str, int], float]]]:
    """A reader and a way to let a measurement run: its name and number of messages -> seconds a message."""
    context = open_context(load.keys, "learner")
    with tempfile.TemporaryDirectory() as folder:
        ipc = f"ipc://{folder}/raw"
        reader = Reader(load, context, ipc)
        command = [sys.executable, "-P", "-m", "workers.bench.writer", load.to_json()]
        process = subprocess.Popen(
            [*command, reader.route.model_dump_json(), ipc], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        told, said = process.stdin, process.stdout

        def ask(name: str, count: int) -> float:
            told.write(f"{name} {count}\n")
            told.flush()
            seconds: float = getattr(reader, name)(count)
            if said.readline() != "done\n":
                raise SystemExit("the writing process ended early; see its message above")
            return seconds

        try:
            if said.readline() != "ready\n":
                raise SystemExit("the writing process did not start; see its message above")
            reader.attach()
            for name in ("same_node_floor", "same_node", "tcp_floor", "tcp") if not load.keys else ("tcp",):
                ask(name, 2 * load.blocks)  # every page touched, every code path warm
            yield reader, ask
        finally:
            told.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            said.close()
            reader.close()
            context.destroy(linger=0)
            load.ring.unlink(missing_ok=True)
