"""One of the subscribing processes of the weights benchmark: `python -m workers.tools.bench.transport.subscriber JSON`.
No torch.

In flows: a byte on stdin that says what comes next, then the weights. Out flows: on stdout a dot once it waits, then an
`ADOPTED` record: when it had them in private memory, and their first and last byte.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from pathlib import Path

import numpy as np
import zmq

from protocol.memory.shared_file import SharedFile
from protocol.messages.core import Route
from protocol.weights.manifest import NOTHING, Entry, Manifest
from protocol.weights.publisher import WeightSubscriber
from workers import freeze_startup_objects

ADOPTED = struct.Struct("<qBB")
"""Nanoseconds of the monotonic clock, which all processes of a machine share; two bytes of the weights."""
_PATIENCE = 30.0


def manifest_of(nbytes: int) -> Manifest:
    """A policy of one float32 parameter of `nbytes` bytes."""
    return Manifest([Entry("parameter", "<f4", (nbytes // 4,), 0)])


class Subscriber:
    """Waits for weights of one size, the real way or the raw one; both end in the same private array."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], route: Route, nbytes: int, raw: Path, ipc: str) -> None:
        self._subscriber = WeightSubscriber(context, route.policy, manifest_of(nbytes), "memory")
        self._subscriber.route(route)
        self._have = NOTHING
        self._memory = SharedFile.attach(raw)
        self._shared = np.ndarray((nbytes,), np.uint8, buffer=self._memory.buffer)
        self._out = np.zeros(nbytes, np.uint8)
        self._bell = context.socket(zmq.SUB)
        self._bell.setsockopt(zmq.RCVTIMEO, int(_PATIENCE * 1000))
        self._bell.setsockopt(zmq.SUBSCRIBE, f"{nbytes}/".encode())
        self._bell.connect(ipc)

    def ours(self) -> None:
        """Through `WeightSubscriber`."""
        version = self._subscriber.wait(self._out, _PATIENCE, lambda: None, self._have)
        if version is None:
            raise SystemExit("no weights came; run the benchmark again")
        self._have = version

    def raw(self) -> None:
        """Plain memcpy after a bare ZeroMQ message."""
        self._bell.recv()
        np.copyto(self._out, self._shared)

    def bare(self) -> None:
        """Plain memcpy after a byte in a pipe, the cheapest there is."""
        if not os.read(0, 1):
            raise SystemExit(0)
        np.copyto(self._out, self._shared)

    def adopted(self) -> bytes:
        """The record of now."""
        return ADOPTED.pack(time.monotonic_ns(), self._out[0], self._out[-1])

    def close(self) -> None:
        """Lets go of memory and sockets."""
        self._subscriber.close()
        self._bell.close(linger=0)
        self._shared = self._out
        self._memory.close()


def main() -> None:
    """Does what it is told until stdin ends."""
    orders = json.loads(sys.argv[1])
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    adopters = [
        Subscriber(context, Route.model_validate(route), nbytes, Path(raw), orders["ipc"])
        for route, nbytes, raw in orders["sizes"]
    ]
    try:
        while len(order := os.read(0, 1)):
            adopter = adopters[order[0] >> 2]
            wait = (adopter.ours, adopter.raw, adopter.bare)[order[0] & 3]
            os.write(1, b".")
            wait()
            os.write(1, adopter.adopted())
    finally:
        for adopter in adopters:
            adopter.close()
        context.destroy(linger=0)


if __name__ == "__main__":
    freeze_startup_objects()
    main()
