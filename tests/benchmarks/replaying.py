"""Actors that act no more: they send segments again that a real one had recorded, so that hundreds fit on two cores.

    python -m tests.benchmarks.replaying COORDINATOR RECORDED.npz ACTORS SECONDS_PER_BLOCK

In flows: what an actor is told, acknowledgements. Out flow: heartbeats and segments, as from actors on other machines:
each has a membership, connections, a ring and a credit of its own. Ends when all have made their steps and delivered,
or in order at SIGTERM.
"""

from __future__ import annotations

import logging
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.config.run import Run
from protocol.control.client import ControlClient
from protocol.control.heartbeat import Report
from protocol.experience.connections import ConnectionPool
from protocol.experience.proof import ActorIdentity
from protocol.experience.sender import ExperienceSender
from protocol.memory.shared_file import Counters
from protocol.spaces import parse_world
from protocol.transport.sockets import open_context
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.rollout.report import ActorReport
from workers.runtime.process import run_dir_of

__all__ = ["Replaying", "main"]

Recorded = dict[str, NDArray]
"""Column -> a block of segments."""
_PATIENCE, _AT_ONCE = 120.0, 25
"""Seconds for what others have to do; actors that leave at the same time."""


class Replaying:
    """One actor, whose block of each policy is `recorded`, one each `period` seconds."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, recorded: dict[str, Recorded], period: float
    ) -> None:
        self._client = ControlClient(context, coordinator, "actor")
        welcome = self._client.join(_PATIENCE)
        run, world = Run.model_validate_json(welcome.config), parse_world(welcome.world)
        self._plans = plan_policies(run, world)
        self._recorded, self._period, self._quota = recorded, period, welcome.quota
        folder = run_dir_of(welcome)
        path = folder / "counters" / f"{welcome.name}.{welcome.incarnation}" if folder else None
        self._counters = Counters(path, *ActorReport.names(list(self._plans)))
        connections = ConnectionPool(context)
        me = ActorIdentity(welcome.run, welcome.name, welcome.incarnation, welcome.proof)
        self._senders = {
            name: ExperienceSender(
                connections, me, name, plan.ring(None, self._counters), plan.credit(), self._counters
            )
            for name, plan in self._plans.items()
        }
        self._seen: object = None
        self._due = time.monotonic() + period * np.random.default_rng(welcome.index).random()
        self._made = 0
        self._client.start(lambda: Report("acting", counters=self._counters.snapshot()))

    @property
    def over(self) -> bool:
        """Whether all its steps are made, or the run wants no more."""
        return self._made >= self._quota or self._client.command in ("drain", "stop")

    def turn(self, now: float) -> None:
        """Whatever is due; never waits for long."""
        self._follow()
        for sender in self._senders.values():
            sender.pump()
        if now < self._due or self._seen is None or self.over:
            return
        self._due = max(self._due + self._period, now)
        for name, sender in self._senders.items():
            self._send(self._plans[name], sender, self._recorded[name])
        self._counters.set("agent_steps", self._made)
        self._counters.set("env_steps", self._made // len(self._plans))

    def end(self) -> None:
        """Delivers what is on its way, and leaves."""
        for sender in self._senders.values():
            assert sender.drain(_PATIENCE, self._follow)
            sender.close(linger=1.0)
        self._client.leave()
        self._client.close()

    def _send(self, plan: PolicyPlan, sender: ExperienceSender, recorded: Recorded) -> None:
        slots = sender.take(self._follow)
        for field, column in recorded.items():
            sender.ring.columns[field][slots] = column
        sender.finish(slots, plan.layout.length, 0)
        self._made += plan.block * plan.layout.length

    def _follow(self) -> None:
        status = self._client.status
        if status is None or status is self._seen or len(status.routes) < len(self._senders):
            return
        self._seen = status
        for route in status.routes:
            self._senders[route.policy].route(route, inline=True)


def read(path: Path) -> dict[str, Recorded]:
    """Policy -> its block; arrays are called POLICY/COLUMN."""
    found: dict[str, Recorded] = {}
    with np.load(path, allow_pickle=False) as arrays:
        for key in arrays.files:
            policy, _, column = key.partition("/")
            found.setdefault(policy, {})[column] = arrays[key]
    return found


def main() -> None:
    """Until all have delivered."""
    logging.basicConfig(level=logging.ERROR)
    coordinator, recorded, actors, period = sys.argv[1:]
    blocks, context = read(Path(recorded)), open_context("", "actor")
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: told.append(number))
    herd = [Replaying(context, coordinator, blocks, float(period)) for _ in range(int(actors))]
    while not told and not all(actor.over for actor in herd):
        start = time.monotonic()
        for actor in herd:
            actor.turn(start)
        time.sleep(max(0.0, 0.02 - (time.monotonic() - start)))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        list(pool.map(Replaying.end, herd))


if __name__ == "__main__":
    main()
