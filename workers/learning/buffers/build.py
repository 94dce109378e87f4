"""What feeds a member: the stage, sightings or replay that its algorithm asks for, on what its source has."""

from __future__ import annotations

import torch

from protocol.config.run import RND, Run, Streamed
from protocol.memory.counters import Counters
from workers.learning.buffers.batch_assembler import BatchAssembler, ObservationAssembler
from workers.learning.buffers.replay_buffer import ReplayBuffer
from workers.learning.datasets.source import DatasetSource
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan
from workers.runtime.seeds import seed_of

__all__ = ["Buffer", "build_buffer"]

Buffer = BatchAssembler | ObservationAssembler | ReplayBuffer


def build_buffer(
    plan: TrainingPlan, run: Run, source: SegmentSource, counters: Counters, incarnation: int, device: torch.device
) -> Buffer:
    """The stage of a policy that uses each segment once, as an auxiliary uses what was sighted, or the replay of one
    that samples them: of the newest that actors sent, at the rate limiter's pace, or of a whole dataset."""
    algorithm, largest = plan.config.algorithm, plan.config.largest_number
    if isinstance(algorithm, Streamed):
        shape = plan.interface, plan.layout, plan.batch_segments
        privileged = plan.interface.privileged if algorithm.central_critic else None
        return BatchAssembler(plan.name, *shape, source, counters, device, algorithm.max_lag, privileged, largest)
    if isinstance(algorithm, RND):
        return ObservationAssembler(plan.name, plan.layout, plan.batch_segments, source, counters, device, largest)
    rows, blocks, block, rate_limiter = plan.kept_rows, plan.kept_blocks, plan.block, None
    if isinstance(source, DatasetSource):
        rows, blocks, block = source.ring.slots * plan.layout.length, source.ring.slots, 1
    else:
        rate_limiter = plan.rate_limiter()
    seed = seed_of(run.seed, "replay", plan.name, 1 if run.lockstep else incarnation)
    form = plan.interface, plan.layout, algorithm
    return ReplayBuffer(plan.name, *form, source, counters, rate_limiter, seed, rows, blocks, block, device, largest)
