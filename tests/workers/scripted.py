"""A world, a performer and a sender whose every number can be worked out by hand.

Observation `t` of copy `c` is (c, t); what the action on it brings is the reward 10 * c + t. Where an episode was
truncated after it, its true last observation is (c, t + 0.5).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.network import CellCore
from protocol.config.run import IQN, PPO, PolicyConfig
from protocol.errors import WireError
from protocol.experience.layout import Layout, common_layout, segment_layout
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Records, Ring
from protocol.experience.shared_obs import SharedObs, SharedObsWriter
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from protocol.weights.manifest import Version, pack
from workers.environments.base import AgentTimeStep
from workers.learning.report import LearnerReport
from workers.planning.rate_limiter import RateLimiter
from workers.policies.interface import Interface
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.segment_block import Rows

AGENT = Agent(name="one", observation=Box(shape=(2,)), action=Discrete(n=5))
WORLD = World(id="scripted", agents=(AGENT,))
SHARING = World(id="sharing", population=DictPopulation(agents=(AGENT,), common=Box(shape=(1,), dtype="int32")))
"""The same with a common observation: 1000 * c + t, and 1000 * c + t - 1 with what was seen last of an episode."""


def config(algorithm: PPO | IQN, length: int = 4) -> PolicyConfig:
    """A policy with segments of `length`."""
    return PolicyConfig(algorithm=algorithm, segment_length=length)


def layout_of(policy: PolicyConfig, world: World = WORLD) -> Layout:
    """The layout of its segments."""
    core = policy.network.core
    return segment_layout(world, world.places[0], policy, state=core.state if isinstance(core, CellCore) else 0)


def common_of(copies: int, blocks: int, moments: int = 4, turns: int | None = 1) -> SharedObsWriter:
    """Room for what agents of SHARING see in common; they come and go at will unless `turns` is None."""
    layout = common_layout(Box(shape=(1,), dtype="int32"), copies, moments)
    return SharedObsWriter(Ring.create(None, layout, blocks), turns)


def tell(common: SharedObsWriter, t: int) -> None:
    """The moment of turn `t`."""
    common.write((1000 * np.arange(common.copies) + t)[:, None])


class Performer:
    """Acts t mod 5 on observation t and remembers what it saw; `packed_version` stands in the rows."""

    def __init__(self, world: World = WORLD, agent: int = 0) -> None:
        self.interface = Interface.at(world, world.places[agent])
        self.packed_version = np.uint64(pack(Version(1, 1)))
        self.state = 0
        self.seen: list[NDArray] = []

    def act(
        self, observation: NDArray, noise: object, greedy: bool = False, legal: object = None, state: object = None
    ) -> dict[str, NDArray]:
        """[E, 2] or, stacked, [E, F, 2]."""
        self.seen.append(observation.copy())
        t = observation.reshape(len(observation), -1)[:, -1]
        return {"action": (t % 5).astype(np.int64), "log_probability": -t, "value": 2 * t}


class Sender:
    """Gives blocks of `block` slots in turn and keeps the records of finished ones."""

    def __init__(self, layout: Layout, block: int, blocks: int) -> None:
        self.ring = Ring.create(None, layout, block * blocks)
        self.finished: list[Records] = []
        self._block, self._blocks, self._taken, self._number = block, blocks, 0, 1

    def take(self, on_wait: Callable[[], None]) -> slice:
        """The next block."""
        at = self._taken % self._blocks * self._block
        self._taken += 1
        slots = slice(at, at + self._block)
        self.ring.begin(slots)
        return slots

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """Numbers the segments on; slots without a row are none."""
        self._number += self.ring.finish(slots, self._number, valid, before)
        self.finished.append(self.ring.segments(slots))


def present(t: int, copies: int, terminated: Sequence[int] = (), truncated: Sequence[int] = ()) -> AgentTimeStep:
    """Observation `t` in all copies; `terminated` and `truncated` name the copies whose episode ended before it."""
    numbers = np.arange(copies, dtype=np.float32)
    ended = np.zeros((2, copies), np.bool_)
    ended[0, list(terminated)] = True
    ended[1, list(truncated)] = True
    cut = np.flatnonzero(ended[1])
    return AgentTimeStep(
        agent=0,
        observation=np.stack([numbers, np.full(copies, t, np.float32)], 1),
        reward=(10 * numbers + (t - 1)).astype(np.float32) if t else np.zeros(copies, np.float32),
        terminated=ended[0],
        truncated=ended[1],
        final_index=cut,
        final_observation=np.stack([cut, np.full(len(cut), t - 0.5)], 1).astype(np.float32) if len(cut) else None,
    )


def seat(
    sender: Sender, performer: Performer, copies: int, first_stream: int = 0, common: SharedObsWriter | None = None
) -> AgentCollector:
    """A seat of `copies` copies."""
    noise: Any = np.random.default_rng(0)
    streams = range(first_stream, first_stream + copies)
    return AgentCollector("one", performer, sender, streams, noise, common=common)  # type: ignore[arg-type]


def never() -> None:
    """Nothing waits here."""


class Source:
    """Arrivals that a test puts in, and what the learner said about them."""

    def __init__(self) -> None:
        self.queue: deque[Arrival] = deque()
        self.settled: list[tuple[int, int]] = []
        """(highest number, segments) of each settlement."""
        self.given_back: list[int] = []

    def arrive(
        self,
        ring: Ring,
        records: Records,
        owned: bool = False,
        actor: str = "actor-0",
        common: SharedObs | None = None,
    ) -> None:
        """One announcement."""
        self.queue.append(Arrival(actor, 1, ring, records.copy(), owned, common))

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What is there."""
        return self.queue

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """Noted."""
        self.settled.append((upto, count))

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Noted."""
        self.given_back += [int(slot) for slot in slots]

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """Nobody is told."""

    def flush_acks(self) -> None:
        """Nobody waits for it."""


def unpaced(samples_per_insert: float, start: int, batch: int, insertion: int) -> RateLimiter:
    """A rate limiter that lets any rows come in."""
    rate_limiter = RateLimiter(samples_per_insert, start, batch, insertion)
    rate_limiter._max_diff = math.inf
    return rate_limiter


def counters() -> Counters:
    """A learner's page for the policy "one"."""
    return Counters(None, *LearnerReport.names(["one"]))


def acted(policy: PolicyConfig, segments: int, copies: int = 1, blocks: int | None = None) -> Sender:
    """A sender after `segments` segments of each copy."""
    sender = Sender(layout_of(policy), copies, segments + 1 if blocks is None else blocks)
    chair = seat(sender, Performer(), copies)
    for t in range(segments * policy.segment_length + 1):
        chair.act(present(t, copies), never)
    return sender
