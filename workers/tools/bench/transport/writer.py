"""The writing process of the transport benchmarks: does on request what an actor does, or the bare primitive.

Started as `python -m workers.tools.bench.transport.writer LOAD ROUTE IPC`; told by lines on its standard input
(`same_node 100`), each answered with a line when it is done. In flows: those lines. Out flows: segments, or bare
messages.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import zmq

from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route
from protocol.transport.sockets import open_context
from workers import freeze_startup_objects
from workers.rollout.report import ActorReport
from workers.tools.bench.transport.load import ACTOR, POLICY, TransportLoad, fill

_PATIENCE_MS = 20_000
_NAMES = ActorReport.names([POLICY])


class Writer:
    """One way out for segments and, beside it, the raw sockets."""

    def __init__(self, load: TransportLoad, route: Route, ipc: str) -> None:
        self._load, self._route = load, route
        self._context = open_context(load.keys, "actor")
        self._ring = Ring.create(load.ring, load.layout, load.slots)
        self._counters = Counters(None, *_NAMES)
        self._filled = 0
        """Blocks that were written; all of them were once: what only travels need not be written anew."""
        credit = CreditWindow(load.blocks, load.credits, 1, "stream", "block")
        connections = ConnectionPool(self._context)
        self._sender = ExperienceSender(connections, ACTOR, POLICY, self._ring, credit, self._counters)
        self._push = self._raw(zmq.PUSH, f"{ipc}-there")
        self._back = self._raw(zmq.PULL, f"{ipc}-back")
        self._stream = self._raw(zmq.PUSH, route.experience.replace(str(port_of(route)), str(port_of(route) + 4)))

    def serve(self) -> None:
        """Does what the lines on standard input ask for until they end."""
        todo: dict[str, Callable[[int], None]] = {
            "same_node": self.same_node,
            "same_node_floor": self.same_node_floor,
            "tcp": self.tcp,
            "tcp_floor": self.tcp_floor,
        }
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        for line in sys.stdin:
            name, count = line.split()
            todo[name](int(count))
            sys.stdout.write("done\n")
            sys.stdout.flush()
        self._sender.close()
        self._context.destroy(linger=0)

    def same_node(self, count: int) -> None:
        """`count` messages as an actor on the learner's node sends them, every byte written."""
        self._sender.route(self._route, inline=False)
        self._ship(count, write=True)

    def tcp(self, count: int) -> None:
        """`count` messages as an actor on another node sends them."""
        self._sender.route(self._route, inline=True)
        self._ship(count, write=False)

    def same_node_floor(self, count: int) -> None:
        """The same bytes written to the same slots, one bare message a block."""
        columns, free = self._ring.columns, self._load.credits
        for index in range(count):
            while not free or self._back.poll(0):
                free += self._freed()
            fill(columns, self._load.block(index), index)
            self._push.send(index.to_bytes(4, "little"))
            free -= 1
        while free < self._load.credits:
            free += self._freed()

    def tcp_floor(self, count: int) -> None:
        """The same columns as bare multipart frames without a copy."""
        columns, free = self._ring.columns, self._load.credits
        for index in range(count):
            while not free or self._back.poll(0):
                free += self._freed()
            slots = self._load.block(index)
            frames = [column[slots].reshape(-1).view(np.uint8).data for column in columns.values()]
            self._stream.send_multipart(frames, copy=False)
            free -= 1
        while free < self._load.credits:
            free += self._freed()

    def _ship(self, count: int, write: bool) -> None:
        sender, fields, columns = self._sender, self._ring.fields, self._ring.columns
        length = self._load.layout.length
        streams = np.arange(self._load.segments, dtype=np.uint64)
        for index in range(count):
            slots = sender.take(_nothing)
            if write or self._filled < self._load.blocks:
                fill(columns, slots, index)
                self._filled += 1
            fields["stream"][slots] = streams
            fields["stream_sequence"][slots] = index
            fields["version_min"][slots] = 1
            fields["version_max"][slots] = 1
            sender.finish(slots, length, 0)
        if not sender.drain(_PATIENCE_MS / 1000, _nothing):
            raise SystemExit("the reader did not take what was sent; run the benchmark again")

    def _freed(self) -> int:
        if not self._back.poll(_PATIENCE_MS):
            raise SystemExit("the reader does not answer; run the benchmark again")
        self._back.recv()
        return 1

    def _raw(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(address)
        return socket


def port_of(route: Route) -> int:
    """The port that takes experience."""
    return int(route.experience.rpartition(":")[2])


def _nothing() -> None:
    """Waits need no interruption here: the parent kills this process if it has to."""


def main() -> None:
    """Entry of the process."""
    load, route, ipc = sys.argv[1:]
    Writer(TransportLoad.from_json(load), Route.model_validate_json(route), ipc).serve()


if __name__ == "__main__":
    freeze_startup_objects()
    main()
