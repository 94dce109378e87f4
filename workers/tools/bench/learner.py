"""What a learner costs beside the bare update on data that are there: segments in rings, and policies in a cohort.

Out flow: figures by key. `learner.ratio_to_bare`: seconds of a bare update on resident data over those of a member that
takes the same segments out of a ring, looks after their health and publishes. `cohort.speedup`: seconds of 16 policies
with 16 rows each, one by one and eager, over those of the same policies stacked. A policy has the default network and
sees 64 numbers.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import torch

from protocol.config.run import Run, parse_run
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import Counters
from protocol.spaces import Agent, Box, Discrete, World
from protocol.weights.manifest import Version, pack
from workers.algorithms.common.batches import SegmentBatch, update_each
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.learning.policy_learner import LearnerContext, PolicyLearner
from workers.learning.report import LearnerReport
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.policies.build import build

_POLICIES = 16
_WARM = 12
"""Updates before any is timed: a member looks closely at its first batches."""


def measure(rounds: int, device: str) -> dict[str, float]:
    """All figures, from `rounds` interleaved pairs."""
    there = torch.device(device)
    return {**_fed(rounds, there), **_cohort(rounds, there)}


def _run(copies: int, length: int, minibatches: int) -> Run:
    algorithm = {"name": "ppo", "epochs": 1, "minibatches": minibatches}
    policy = {"algorithm": algorithm, "segment_length": length, "credits": 2 * copies}
    return parse_run({"environment": {"copies": copies}, "policy": policy, "logging": False})


def _resident(run: Run, plan: PolicyPlan, device: torch.device, seed: int) -> SegmentBatch:
    """A batch of the same kind, where the update is."""
    counters = Counters(None, *LearnerReport.names([plan.name]))
    feed = RingFeed(plan, counters, seed)
    member = member_of(run, plan, feed, counters, device)
    feed.announce()
    member.take()
    batch = member.checked_batch()
    assert isinstance(batch, SegmentBatch)
    columns = {field.name: getattr(batch, field.name) for field in fields(SegmentBatch)}
    kept: dict[str, Any] = {name: None if column is None else column.clone() for name, column in columns.items()}
    return SegmentBatch(**kept)


def _bare(plan: PolicyPlan, device: torch.device, seed: int) -> PPOUpdate:
    policy = build(plan.interface, plan.config, seed).to(device)
    return PPOUpdate(policy, plan.config, seed)  # type: ignore[arg-type] # of ppo


def _fed(rounds: int, device: torch.device) -> dict[str, float]:
    run = _run(copies=64, length=64, minibatches=4)
    plan = plan_policies(run, WORLD)["one"]
    counters = Counters(None, *LearnerReport.names([plan.name]))
    feed = RingFeed(plan, counters, 0)
    member, bare, batch = (
        member_of(run, plan, feed, counters, device),
        _bare(plan, device, 0),
        _resident(run, plan, device, 0),
    )

    def fed() -> None:
        feed.announce()
        member.step()

    theirs, ours = _pairs(lambda: bare.update(batch), fed, rounds, device)
    rows = plan.batch_segments * plan.layout.length
    return {
        "learner.ratio_to_bare": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
        "learner.rows_per_second": rows / statistics.median(ours),
    }


def _cohort(rounds: int, device: torch.device) -> dict[str, float]:
    run = _run(copies=4, length=4, minibatches=1)
    plan = plan_policies(run, WORLD)["one"]
    alone, together = ([_bare(plan, device, seed) for seed in range(_POLICIES)] for _ in range(2))
    given = [_resident(run, plan, device, seed) for seed in range(_POLICIES)]
    stack, progress = GroupUpdate(together), [0.0] * _POLICIES

    def in_turn() -> None:
        update_each(alone, given, progress)

    theirs, ours = _pairs(in_turn, lambda: stack.update(given, progress), 3 * rounds, device)
    return {
        "cohort.speedup": statistics.median(a / b for a, b in zip(theirs, ours, strict=True)),
        "cohort.ms_in_turn": 1e3 * statistics.median(theirs),
        "cohort.ms_stacked": 1e3 * statistics.median(ours),
    }


def _pairs(
    one: Callable[[], object], other: Callable[[], object], rounds: int, device: torch.device
) -> tuple[list[float], list[float]]:
    """Seconds of both, again and again in turn."""
    for _ in range(_WARM):
        one()
        other()
    pairs = [(seconds(one, device), seconds(other, device)) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one go: on the CPU the time of this thread's processor, of which neighbours on the machine take none;
    elsewhere that of the clock, with nothing left to be done."""
    if device.type == "cpu":
        started = time.thread_time()
        work()
        return time.thread_time() - started
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


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
