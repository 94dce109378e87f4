"""The reading end of the transport benchmarks: this process, which takes in what
`workers/tools/bench/transport/writer.py` sends.

In flows: segments, or bare messages. Out flow: seconds a message, of ours and of the bare primitives.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.experience.ack_publisher import Window
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route
from protocol.transport.sockets import Ports, open_context, poll
from protocol.weights.manifest import Version
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.report import LearnerReport
from workers.tools.bench.transport.load import POLICY, RUN, SECRET, TransportLoad, copy_out

PATIENCE = 30.0
"""Seconds after which a benchmark in which nothing happens ends."""
_STARVED_MS = 10
"""Milliseconds that a learner sleeps where nothing comes."""
_RAW = 4


class Reader:
    """What a learner has, `receiver` and `stage`, and beside it the raw sockets."""

    def __init__(self, load: TransportLoad, context: zmq.Context[zmq.Socket[bytes]], ipc: str) -> None:
        self.load = load
        self._ports = Ports(context, "127.0.0.1", 0)
        raw = {} if load.keys else {_RAW + 1: zmq.PULL}
        self.route = route_to(self._ports.bind({1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB, **raw}))
        self._counters = Counters(None, *LearnerReport.names([POLICY]))
        sockets = self._ports.sockets
        self._receiver = ExperienceReceiver(sockets[1], sockets[3], RUN, SECRET, 1, self._counters)
        window = Window(load.credits, load.credits * load.segments)
        check = ActionCheck(load.interface.place)
        self._receiver.add_policy(POLICY, load.layout, ReceiptLog(None), load.slots, check, window)
        fed = BufferContext(POLICY, load.layout, self._receiver, self._counters)
        self._stage = BatchAssembler(fed, load.interface, load.batch)
        self._there = context.socket(zmq.PULL)
        self._there.bind(f"{ipc}-there")
        self._back = context.socket(zmq.PUSH)
        self._back.bind(f"{ipc}-back")
        self._stream = sockets.get(_RAW + 1)
        columns = load.layout.columns(memoryview(bytearray(load.layout.offsets(load.batch)[1])), load.batch)
        self._batch: dict[str, NDArray] = {n: c for n, c in columns.items() if n != "version"}
        self._private = {n: c[: load.segments].reshape(-1).view(np.uint8) for n, c in columns.items()}
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
        messages = self.load.batch // self.load.segments

        def step() -> int:
            self._receiver.receive()
            if not self._stage.fill(Version(1, 1)):
                return 0
            self._stage.take_batch()
            return messages

        return self._clock(count, step, self._wait)

    def tcp(self, count: int) -> float:
        """Seconds a message until its segments are in this process's pool and settled."""

        def step() -> int:
            self._receiver.receive()
            return settle_all(self._receiver) // self.load.segments

        return self._clock(count, step, self._wait)

    def same_node_floor(self, count: int) -> float:
        """Seconds a message for the same copies with one bare message a block."""
        assert self._ring is not None
        columns, batch, load = self._ring.columns, self._batch, self.load
        there, back = self._there, self._back

        def step() -> int:
            message = there.recv()
            index = int.from_bytes(message, "little")
            copy_out(columns, load.block(index), batch, load.place(index))
            back.send(message)
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
            first, to = load.block(index).start, load.place(index).start
            for segment in range(load.segments):
                np.copyto(target[to + segment], source[first + segment])
        return (time.perf_counter() - started) / count

    def _clock(self, count: int, step: Callable[[], int], wait: Callable[[], bool]) -> float:
        """From the first messages that were moved to the last of `count`."""
        done = at_first = 0
        first, end = 0.0, time.monotonic() + PATIENCE
        while done < count:
            moved = step() if done or wait() else 0
            done += moved
            if moved:
                if not first:
                    first, at_first = time.perf_counter(), moved
                continue
            wait()
            if time.monotonic() > end:
                raise SystemExit("nothing that the writer sends arrives; see the messages above")
        seconds = (time.perf_counter() - first) / (count - at_first)
        self._receiver.flush_acks()
        return seconds

    def _wait(self) -> bool:
        self._receiver.beacon(time.monotonic())
        return poll(self._receiver.sockets, _STARVED_MS)


def route_to(addresses: dict[int, str]) -> Route:
    """To a learner at these addresses, by offset from its base port."""
    return Route(
        policy=POLICY,
        learner="learner",
        incarnation=1,
        experience=addresses[1],
        weights=addresses[2],
        acknowledgements=addresses[3],
    )


def settle_all(receiver: ExperienceReceiver) -> int:
    """Settles what has arrived, gives its slots back and tells how many segments that were."""
    arrivals, count = receiver.arrivals(POLICY), 0
    while arrivals:
        arrival = arrivals.popleft()
        if arrival.owned:
            receiver.release(POLICY, arrival.records["slot"])
        receiver.acknowledge(POLICY, arrival, int(arrival.records["number"][-1]), len(arrival.records))
        count += len(arrival.records)
    return count


@contextmanager
def two_processes(load: TransportLoad) -> Iterator[tuple[Reader, Callable[[str, int], float]]]:
    """A reader, its writer, and a way to let a measurement run: its name and number of messages -> seconds a
    message."""
    context = open_context(load.keys, "learner")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # TMPDIR may be longer than a socket's path
        ipc = f"ipc://{folder}/raw"
        reader = Reader(load, context, ipc)
        command = [sys.executable, "-P", "-m", "workers.tools.bench.transport.writer", load.to_json()]
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
