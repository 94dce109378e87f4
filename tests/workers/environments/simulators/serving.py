"""An actor's end for simulators, alive in a thread of this process, a seat's rules and a policy of arithmetic.

Out flow: what a learner would have been told: rows of each stream, in order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.spaces import Agent, Box, Discrete, World
from tests.waiting import until
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.environments.simulators.endpoint import SimulatorEndpoint
from workers.environments.simulators.environment import SimulatorEnvironment

__all__ = ["WALK", "Row", "Serving", "serving"]

WALK = World(id="walk", agents=(Agent(name="walker", observation=Box(shape=(2,)), action=Discrete(n=8)),))


@dataclass
class Row:
    """One step of a stream. `end`: empty while it goes on, else how its episode ended."""

    seen: Any
    action: Any
    reward: float = 0.0
    end: str = ""
    final: Any = None
    closed: bool = False


@dataclass
class Serving:
    """A served world: `address` to connect to, and by (agent, row) what became of each stream."""

    address: str
    external: SimulatorEnvironment
    environment: CheckedEnvironment
    streams: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    steps: int = 0
    empty: int = 0
    fault: BaseException | None = None
    orders: list[Callable[[], None]] = field(default_factory=list)
    """To be done between two turns, by the thread that plays."""

    def figures(self) -> dict[str, float]:
        """What the world counts."""
        return self.environment.metrics()

    def rows(self, agent: str = "walker", copy: int = 0) -> list[Row]:
        """Of one stream."""
        return self.streams.get((agent, copy), [])

    def leap(self, seconds: float) -> None:
        """So much time passes for the leases of simulators; those that have ended are seen."""
        server = self.external._server
        assert server is not None
        clock = server._clock
        server._clock = lambda: clock() + seconds
        now = server._clock()
        until(lambda: server._looked_at >= now, what="leases are looked at")

    def settle(self) -> None:
        """Waits until nothing is open any more."""
        until(lambda: all(rows and rows[-1].closed for rows in [*self.streams.values()]), what="all rows are closed")

    def take(self, told: AgentTimeStep | AgentOutcome) -> None:
        """As a seat does: rewards and ends go to the open row."""
        name = self.environment.world.agents[told.agent].name
        finals = iter(() if told.final_observation is None else told.final_observation)
        many = self.environment.world.places[told.agent].many
        rows = range(self.environment.copies * many) if told.copies is None else told.copies.tolist()
        for k, row in enumerate(rows):
            stream = self.streams.setdefault((name, row), [])
            last = stream[-1] if stream and not stream[-1].closed else None
            assert last is not None or isinstance(told, AgentTimeStep), "an outcome where nothing is open"
            if last is None:
                assert not told.reward[k]
                continue
            last.reward += float(told.reward[k])
            ended = bool(told.terminated[k] or told.truncated[k])
            last.end = "terminated" if told.terminated[k] else "truncated" if told.truncated[k] else ""
            last.final = next(finals).copy() if told.truncated[k] else None
            last.closed = ended or isinstance(told, AgentTimeStep)

    def play(self, policy: Callable[[AgentTimeStep], NDArray[Any]], stop: threading.Event) -> None:
        """Turn after turn."""
        try:
            turn = self.environment.reset(0)
            while not stop.is_set():
                self.steps += turn.env_steps
                self.empty += not turn.present
                while self.orders:
                    self.orders.pop(0)()
                actions = []
                everything: tuple[AgentTimeStep | AgentOutcome, ...] = (*turn.outcomes, *turn.present)
                for told in everything:
                    self.take(told)
                for present in turn.present:
                    chosen = policy(present)
                    name = self.environment.world.agents[present.agent].name
                    where = range(len(chosen)) if present.copies is None else present.copies.tolist()
                    for k, row in enumerate(where):
                        seen, action = present.observation[k].copy(), chosen[k].copy()
                        self.streams[name, row].append(Row(seen, action))
                    actions.append(chosen)
                turn = self.environment.step(actions)
        except BaseException as fault:
            self.fault = fault


def counted(present: AgentTimeStep) -> NDArray[np.int64]:
    """The action is the first number that is seen, up to 7."""
    return np.clip(present.observation[:, 0], 0, 7).astype(np.int64)


@contextmanager
def serving(
    world: World = WALK,
    copies: int = 2,
    policy: Callable[[AgentTimeStep], NDArray[Any]] = counted,
    context: zmq.Context[zmq.Socket[bytes]] | None = None,
    folder: Path | None = None,
    restarts: int = 3,
    **settings: Any,
) -> Iterator[Serving]:
    """Serves until the block ends."""
    own = context is None
    context = context or zmq.Context(1)
    outside = SimulatorEndpoint(context, "127.0.0.1", 0, "", "0123abcd", "actor-0", 0, folder)
    tree = world.model_dump(mode="json")
    config = EnvironmentConfig(id="external", copies=copies, restarts=restarts, settings={"world": tree, **settings})
    external = make(config, outside=outside)
    assert isinstance(external, SimulatorEnvironment)
    environment = CheckedEnvironment(external)
    served = Serving(external.address, external, environment)
    stop = threading.Event()
    thread = threading.Thread(target=served.play, args=(policy, stop))
    thread.start()
    try:
        yield served
    finally:
        stop.set()
        thread.join(60)
        environment.close()
        if own:
            context.destroy(linger=0)
    if served.fault is not None:
        raise served.fault
