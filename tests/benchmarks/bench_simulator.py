"""How fast simulators are given actions, beside a bare ROUTER that answers the same messages with the same bytes.

    python -m tests.benchmarks.bench_simulator [--rounds 5]

Prints one JSON object: figures by key. One simulator: the median of a round trip. 32 simulators of two client
processes: actions a second, of which `simulator.ratio_to_echo` is the share of what the bare sockets answer.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import zmq

from protocol.config.run import parse_run
from tests.benchmarks.simulator_driver import ANSWER
from workers.environments.simulators.endpoint import SimulatorEndpoint
from workers.environments.simulators.environment import SimulatorEnvironment
from workers.tools.bench.rollout import ActorLoop

__all__ = ["measure"]

_MANY, _PROCESSES = 32, 2
_SECONDS = 0.8
_PATIENCE = 60.0
Figures = dict[str, float]


def measure(rounds: int) -> Figures:
    """Medians over `rounds` interleaved pairs; ratios pair by pair."""
    alone, bare_alone, many, bare = [], [], [], []
    for _ in range(rounds):
        bare_alone.append(_echoed(1, 1))
        alone.append(_served(1, 1))
        bare.append(_echoed(_MANY, _PROCESSES))
        many.append(_served(_MANY, _PROCESSES))
    pairs = list(zip(many, bare, strict=True))
    return {
        "simulator.round_trip_us": statistics.median(one["p50_us"] for one in alone),
        "simulator.round_trip_p99_us": statistics.median(one["p99_us"] for one in alone),
        "simulator.echo_round_trip_us": statistics.median(one["p50_us"] for one in bare_alone),
        "simulator.actions_per_second": statistics.median(one["rate"] for one in many),
        "simulator.many_p50_us": statistics.median(one["p50_us"] for one in many),
        "simulator.many_p99_us": statistics.median(one["p99_us"] for one in many),
        "simulator.echoes_per_second": statistics.median(one["rate"] for one in bare),
        "simulator.ratio_to_echo": statistics.median(ours["rate"] / theirs["rate"] for ours, theirs in pairs),
    }


def _served(count: int, processes: int) -> Figures:
    """By an actor's loop with an MLP of 64x64."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    settings = {"world": "gymnasium:CartPole-v1", "rate": 1_000_000}
    run = parse_run(
        {
            "environment": {"id": "external", "copies": count, "settings": settings},
            "policy": {"algorithm": {"segments": 32}, "network": {"hidden": [64, 64]}},
        }
    )
    outside = SimulatorEndpoint(context, "127.0.0.1", 0, "", "bench", "actor-0", 0, None)
    acting = ActorLoop(run, outside=outside)
    external = acting.environment.inner
    assert isinstance(external, SimulatorEnvironment)
    try:
        return _driven("ours", external.address, count, processes, lambda: acting.run(50))
    finally:
        acting.close()
        context.destroy(linger=0)


def _echoed(count: int, processes: int) -> Figures:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")

    def answer() -> None:
        for _ in range(50):
            if not socket.poll(50):
                return
            route, *_ = socket.recv_multipart()
            socket.send_multipart([route, *ANSWER])

    try:
        return _driven("echo", f"tcp://127.0.0.1:{port}", count, processes, answer)
    finally:
        context.destroy(linger=0)


def _driven(kind: str, address: str, count: int, processes: int, serve: Callable[[], object]) -> Figures:
    """What the processes measured while this one served; `rate` of all together."""
    module = [sys.executable, "-m", "tests.benchmarks.simulator_driver", kind, address]
    drivers = [
        subprocess.Popen(
            [*module, str(count // processes), str(number), str(_SECONDS)], stdout=subprocess.PIPE, text=True
        )
        for number in range(processes)
    ]
    end = time.monotonic() + _PATIENCE
    try:
        while any(driver.poll() is None for driver in drivers) and time.monotonic() < end:
            serve()
        told = [json.loads(driver.communicate(timeout=1)[0]) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
            driver.wait()
    return {
        "rate": sum(one["answers"] / one["seconds"] for one in told),
        "p50_us": statistics.median(one["p50_us"] for one in told),
        "p99_us": max(one["p99_us"] for one in told),
    }


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    print(json.dumps(measure(parser.parse_args().rounds), indent=2))


if __name__ == "__main__":
    main()
