"""A ring that is full of segments, as a learner is fed by it in a benchmark.

Out flow: one batch after the other, announced, and a member that takes them.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch

from protocol.config.run import Run
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Ring
from protocol.memory.counters import Counters
from protocol.spaces import Agent, Box, Discrete, World
from protocol.weights.version import Version, pack
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import PolicyPlan

WORLD = World(id="bench", agents=(Agent(name="one", observation=Box(shape=(64,)), action=Discrete(n=4)),))
"""One agent, that sees 64 numbers."""


class RingFeed(SegmentSource):
    """A ring of whole segments, of which one batch after the other is announced."""

    def __init__(self, plan: PolicyPlan, counters: Counters, seed: int) -> None:
        self._ring = plan.ring(None, counters)
        self._blocks = [slice(i * plan.block, (i + 1) * plan.block) for i in range(2)]
        self._queue: deque[Arrival] = deque()
        noise = np.random.default_rng(seed)
        for number, slots in enumerate(self._blocks):
            self._ring.begin(slots)
            _fill(self._ring, slots, noise)
            self._ring.finish(slots, number * plan.block + 1, plan.layout.length, 0)
            self._ring.fields["version_min"][slots] = self._ring.fields["version_max"][slots] = pack(Version(1, 1))
        self._next = 0

    def announce(self) -> None:
        """The next batch has arrived."""
        records = self._ring.table[self._blocks[self._next]].copy()
        self._next = 1 - self._next
        self._queue.append(Arrival("actor-0", 1, self._ring, records, False, None))

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What was announced."""
        return self._queue


def _fill(ring: Ring, slots: slice, noise: np.random.Generator) -> None:
    """Rows as of a policy without experience, of episodes of about a hundred steps."""
    columns = ring.columns
    shape = columns["reward"][slots].shape
    columns["observation"][slots] = noise.standard_normal(columns["observation"][slots].shape, np.float32)
    columns["action"][slots] = noise.integers(0, 4, columns["action"][slots].shape)
    columns["reward"][slots] = noise.standard_normal(shape, np.float32)
    columns["value"][slots] = 0.1 * noise.standard_normal(shape, np.float32)
    columns["log_probability"][slots] = -np.log(4)
    columns["terminated"][slots] = noise.random(shape) < 0.01
    columns["truncated"][slots] = False
    columns["final_row"][slots] = -1
    columns["version"][slots] = pack(Version(1, 1))
    if "state" in columns:
        columns["state"][slots] = 0


def member_of(run: Run, plan: PolicyPlan, feed: RingFeed, counters: Counters, device: torch.device) -> PolicyLearner:
    """What learns from `feed`."""
    member = PolicyLearner(plan, 1.0, feed, LearnerContext(run, 1, device, counters, lambda *_: None))
    member.resume(None, Version(0, 0))
    return member
