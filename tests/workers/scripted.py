"""A world, a performer and a sender whose every number can be worked out by hand.

Observation `t` of copy `c` is (c, t); what the action on it brings is the reward 10 * c + t. Where an episode was
truncated after it, its true last observation is (c, t + 0.5).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.arrivals import Arrival
from protocol.config import IQN, PPO, PolicyConfig
from protocol.counters import Counters
from protocol.layout import Layout, segment_layout
from protocol.ring import Ring
from protocol.spaces import Agent, Box, Discrete, World
from protocol.version import Version, pack
from workers.acting.seat import Rows, Seat
from workers.environments.base import Present
from workers.reporting import LearnerReport

AGENT = Agent(name="one", observation=Box(shape=(2,)), action=Discrete(n=5))
WORLD = World(id="scripted", agents=(AGENT,))


def config(algorithm: PPO | IQN, length: int = 4) -> PolicyConfig:
    """A policy with segments of `length`."""
    return PolicyConfig(algorithm=algorithm, segment_length=length)


def layout_of(policy: PolicyConfig) -> Layout:
    """The layout of its segments."""
    return segment_layout(WORLD, AGENT, policy)


class Performer:
    """Acts t mod 5 on observation t, and remembers what it saw; `word` is the version that stands in the rows."""

    def __init__(self) -> None:
        self.word = np.uint64(pack(Version(1, 1)))
        self.seen: list[NDArray] = []

    def act(self, observation: NDArray, noise: object, greedy: bool = False) -> dict[str, NDArray]:
        """[E, 2] or, stacked, [E, F, 2]."""
        self.seen.append(observation.copy())
        t = observation.reshape(len(observation), -1)[:, -1]
        return {"action": (t % 5).astype(np.int64), "log_probability": -t, "value": 2 * t}


class Sender:
    """Gives blocks of `block` slots in turn and keeps the records of finished ones."""

    def __init__(self, layout: Layout, block: int, blocks: int) -> None:
        self.ring = Ring.create(None, layout, block * blocks)
        self.finished: list[NDArray[np.void]] = []
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
        self._number += self.ring.finish_block(slots, self._number, valid, before)
        self.finished.append(self.ring.segments(slots))


def present(t: int, copies: int, terminated: Sequence[int] = (), truncated: Sequence[int] = ()) -> Present:
    """Observation `t` in all copies; `terminated` and `truncated` name the copies whose episode ended before it."""
    numbers = np.arange(copies, dtype=np.float32)
    ended = np.zeros((2, copies), np.bool_)
    ended[0, list(terminated)] = True
    ended[1, list(truncated)] = True
    cut = np.flatnonzero(ended[1])
    return Present(
        agent=0,
        observation=np.stack([numbers, np.full(copies, t, np.float32)], 1),
        reward=(10 * numbers + (t - 1)).astype(np.float32) if t else np.zeros(copies, np.float32),
        terminated=ended[0],
        truncated=ended[1],
        final_index=cut,
        final_observation=np.stack([cut, np.full(len(cut), t - 0.5)], 1).astype(np.float32) if len(cut) else None,
    )


def seat(sender: Sender, performer: Performer, copies: int, first_stream: int = 0) -> Seat:
    """A seat of `copies` copies."""
    return Seat("one", performer, sender, copies, first_stream, np.random.default_rng(0))  # type: ignore[arg-type]


def never() -> None:
    """Nothing waits here."""


class Source:
    """Arrivals that a test puts in, and what the learner said about them."""

    def __init__(self) -> None:
        self.queue: deque[Arrival] = deque()
        self.settled: list[tuple[int, int]] = []
        """(highest number, segments) of each settlement."""
        self.given_back: list[int] = []

    def arrive(self, ring: Ring, records: NDArray[np.void], owned: bool = False, actor: str = "actor-0") -> None:
        """One announcement."""
        self.queue.append(Arrival(actor, 1, ring, records.copy(), owned))

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What is there."""
        return self.queue

    def settle(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """Noted."""
        self.settled.append((upto, count))

    def give_back(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Noted."""
        self.given_back += [int(slot) for slot in slots]


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
