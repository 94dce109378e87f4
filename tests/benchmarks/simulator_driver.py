"""A process that drives simulators as fast as they are answered, or bare sockets that say the same.

    python -P -m tests.benchmarks.simulator_driver {ours,echo} ADDRESS COUNT NUMBER SECONDS

In flow: answers. Out flow: one JSON object: answers, the seconds they took, and quantiles of a round trip in
microseconds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import zmq

from protocol.messages.codec import encode
from protocol.messages.simulator import Act, Observe
from protocol.simulator.client import Simulator
from workers import freeze_startup_objects

__all__ = ["ANSWER", "QUESTION", "main"]

OBSERVATION = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
QUESTION = [encode(Observe(number=1000, episode=100, agents=["agent"], rewards=[1.0])), OBSERVATION.tobytes()]
ANSWER = [encode(Act(answers=1000, episode=100, waited=0.001)), np.int64(1).tobytes()]
_WARM_SECONDS = 0.3
Half = Callable[[], Any]


def main(kind: str, address: str, count: int, number: int, seconds: float) -> dict[str, float]:
    """`count` of them in turn: each is asked again as soon as it was answered."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    halves = [(_ours if kind == "ours" else _echo)(context, address, f"sim-{number}-{k}") for k in range(count)]
    asked = [0.0] * count
    for k, (ask, _) in enumerate(halves):
        asked[k] = time.perf_counter()
        ask()
    begin = time.perf_counter() + _WARM_SECONDS
    trips: list[float] = []
    now = 0.0
    while now < begin + seconds:
        for k, (ask, answer) in enumerate(halves):
            answer()
            now = time.perf_counter()
            if now >= begin:
                trips.append(now - asked[k])
            asked[k] = now
            ask()
    context.destroy(linger=0)
    return {
        "answers": len(trips),
        "seconds": now - begin,
        "p50_us": float(np.quantile(trips, 0.5)) * 1e6,
        "p99_us": float(np.quantile(trips, 0.99)) * 1e6,
    }


def _ours(context: zmq.Context[zmq.Socket[bytes]], address: str, name: str) -> tuple[Half, Half]:
    sim = Simulator(address, name, context=context)
    sim.connect()
    state = {"agent": OBSERVATION}
    reward = {"agent": 0.0}

    def ask() -> None:
        sim.ask(state, reward)
        reward["agent"] = 1.0

    return ask, sim.answer


def _echo(context: zmq.Context[zmq.Socket[bytes]], address: str, name: str) -> tuple[Half, Half]:
    socket = context.socket(zmq.DEALER)
    socket.connect(address)
    return lambda: socket.send_multipart(QUESTION), socket.recv_multipart


if __name__ == "__main__":
    freeze_startup_objects()
    _kind, _address, _count, _number, _seconds = sys.argv[1:]
    sys.stdout.write(json.dumps(main(_kind, _address, int(_count), int(_number), float(_seconds))))
