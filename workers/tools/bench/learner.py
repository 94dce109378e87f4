"""What a learner costs beside the bare update on data that are there: segments in rings, and policies in a cohort.

Out flow: figures by key. `learner.ratio_to_bare`: seconds of a bare update on resident data over those of a member that
takes the same segments out of a ring, looks after their health and publishes. `cohort.speedup`: seconds of 16 policies
with 16 rows each, one by one and eager, over those of the same policies stacked. A policy has the default network and
sees 64 numbers.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import torch

from protocol.config.run import Run, parse_run
from protocol.memory.counters import Counters
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.update import update_each
from workers.algorithms.group_update import GroupUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.learning.report import LearnerReport
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.policies.build import build
from workers.tools.bench.ring_feed import WORLD, RingFeed, member_of

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
