"""How fast weights reach four processes of this node, beside the same copies made by hand.

In flow: nothing but time to spend. Out flow: a dictionary of ratios (1 is the limit, more is slower) and milliseconds.

A pair of measurements takes turns in the same processes with the same private arrays: once through `WeightPublisher`,
mailbox and `WeightSubscriber`, once by a numpy copy into shared memory, a bare notification (for large weights a byte
in a pipe, for small ones a ZeroMQ message over ipc) and a numpy copy in each process. The time is from the
publisher's first instruction to the moment when the last process has all in private memory.
"""

from __future__ import annotations

import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import zmq

from protocol.memory.shared_file import PREFIX, Counters, SharedFile, memory_dir
from protocol.messages.core import Route
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Version
from protocol.weights.publisher import WeightPublisher
from workers.tools.bench.transport.subscriber import ADOPTED, manifest_of

_SUBSCRIBERS = 4
_SIZES = {"large": 64 << 20, "small": 1 << 20}
_PAIRS = {"large": 3, "small": 30}
"""Pairs of measurements a round."""
_OURS, _RAW, _BARE = 0, 1, 2
_FLOORS = {"large": _BARE, "small": _RAW}
_PATIENCE = 30.0
_SETTLE = 0.002
"""Seconds after the last process said that it waits until it really does."""


def measure(rounds: int = 9) -> dict[str, float]:
    """All figures of the weights: medians over `rounds` rounds of interleaved pairs."""
    times: dict[tuple[str, int], list[float]] = {}
    with ExitStack() as stack:
        bench = stack.enter_context(_bench())
        for _ in range(rounds):
            for size, pairs in _PAIRS.items():
                for pair in range(pairs):
                    ways = (_OURS, _FLOORS[size])
                    for way in ways if pair % 2 else reversed(ways):  # neither always comes first
                        times.setdefault((size, way), []).append(bench.time(size, way))
    figures = {}
    for size, floor in _FLOORS.items():
        ours, limit = (statistics.median(times[size, way]) for way in (_OURS, floor))
        figures[f"weights.{size}_ratio"] = ours / limit
        figures[f"weights.{size}_ms"] = ours * 1e3
        figures[f"weights.{size}_floor_ms"] = limit * 1e3
    return figures


class _Bench:
    """The publishing process: this one."""

    def __init__(self, folder: Path, ipc: Path) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
        self._ports = Ports(self._context, "127.0.0.1", 0)
        self._address = self._ports.bind({2: zmq.XPUB})[2]
        self._publisher = WeightPublisher(self._ports.sockets[2], Counters(None, WeightPublisher.COUNTERS))
        self._bell = self._context.socket(zmq.PUB)
        self._bell.bind(f"ipc://{ipc}")
        self._ipc = f"ipc://{ipc}"
        self._sources = {size: np.zeros(nbytes, np.uint8) for size, nbytes in _SIZES.items()}
        self._files: dict[str, SharedFile] = {}
        self._shared = {}
        for size, nbytes in _SIZES.items():
            file = self._files[size] = SharedFile.create(folder / f"{PREFIX}bench{os.getpid()}-raw-{size}", nbytes)
            self._shared[size] = np.ndarray((nbytes,), np.uint8, buffer=file.buffer)
            path = folder / f"{PREFIX}bench{os.getpid()}-{size}.weights"
            self._publisher.add_policy(size, manifest_of(nbytes), path, "snapshot")
        self._number = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Starts the subscribing processes, and lets every memory be touched once."""
        orders = {
            "ipc": self._ipc,
            "sizes": [(self._route(s).model_dump(), n, str(self._files[s].path)) for s, n in _SIZES.items()],
        }
        command = [sys.executable, "-m", "workers.tools.bench.transport.subscriber", json.dumps(orders)]
        for _ in range(_SUBSCRIBERS):
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
            )
        for size, floor in _FLOORS.items():
            for way in (_OURS, floor) * 2:
                self.time(size, way)

    def time(self, size: str, way: int) -> float:
        """Seconds from the first instruction until all processes have the weights."""
        self._number += 1
        mark = self._number % 251
        source = self._sources[size]
        source[0] = source[-1] = mark
        self._tell(bytes([list(_SIZES).index(size) << 2 | way]))
        for process in self._processes:
            self._hear(process, 1)
        time.sleep(_SETTLE)
        started = time.monotonic_ns()
        if way == _OURS:
            self._publisher.publish(size, source, Version(1, self._number))
        else:
            np.copyto(self._shared[size], source)
            if way == _BARE:
                self._tell(b"x")
            else:
                self._bell.send(f"{len(source)}/".encode())
        adopted = [ADOPTED.unpack(self._hear(process, ADOPTED.size)) for process in self._processes]
        if any((first, last) != (mark, mark) for _, first, last in adopted):
            raise SystemExit("a process has other weights than were published; this is a defect, please report it")
        return (max(when for when, _, _ in adopted) - started) / 1e9

    def close(self) -> None:
        """Ends the processes and lets go of memory and sockets."""
        for process in self._processes:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
            process.stdout.close()
        self._publisher.close()
        self._bell.close(linger=0)
        self._ports.close()
        self._context.destroy(linger=0)
        self._shared.clear()
        for file in self._files.values():
            file.remove()

    def _route(self, size: str) -> Route:
        return Route(
            policy=size,
            learner="learner",
            incarnation=1,
            experience=self._address,
            weights=self._address,
            acknowledgements=self._address,
        )

    def _tell(self, order: bytes) -> None:
        for process in self._processes:
            assert process.stdin is not None
            os.write(process.stdin.fileno(), order)

    def _hear(self, process: subprocess.Popen[bytes], count: int) -> bytes:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], _PATIENCE)
        heard = os.read(process.stdout.fileno(), count) if ready else b""
        if len(heard) != count:
            raise SystemExit("a subscribing process of the benchmark ended or hangs; run it again")
        return heard


@contextmanager
def _bench() -> Iterator[_Bench]:
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir="/tmp") as ipc:  # TMPDIR may be longer than a socket's path
        bench = _Bench(memory_dir(), Path(ipc) / "bell")
        try:
            bench.start()
            yield bench
        finally:
            bench.close()
