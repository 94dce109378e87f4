"""What feeds a member: the stage, sightings or replay that its algorithm asks for, on what its source has."""

from __future__ import annotations

from typing import Any

import torch

from protocol.config.run import RND, Run, Streamed
from protocol.memory.shared_file import Counters
from workers.learning.buffers.batch_assembler import BatchAssembler, ObservationAssembler
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.buffers.sequence_replay import SequenceReplay
from workers.learning.datasets.source import DatasetSource
from workers.learning.source import SegmentSource
from workers.planning.policy_plan import TrainingPlan
from workers.runtime.seeds import seed_of

Buffer = BatchAssembler | ObservationAssembler | ReplayBuffer[Any]


def build_buffer(
    plan: TrainingPlan, run: Run, source: SegmentSource, counters: Counters, incarnation: int, device: torch.device
) -> Buffer:
    """The stage of a policy that uses each segment once, as an auxiliary uses what was sighted, or the replay of one
    that samples them: of the newest that actors sent, at the rate limiter's pace, or of a whole dataset."""
    algorithm = plan.config.algorithm
    context = BufferContext(plan.name, plan.layout, source, counters, device, plan.config.largest_number)
    if isinstance(algorithm, Streamed):
        privileged = plan.interface.privileged if algorithm.central_critic else None
        return BatchAssembler(context, plan.interface, plan.batch_segments, algorithm.max_lag, privileged)
    if isinstance(algorithm, RND):
        return ObservationAssembler(context, plan.interface.observation_encoding, plan.batch_segments)
    if isinstance(source, DatasetSource):
        slots, rate_limiter = source.ring.slots, None
        room = ReplayRoom(slots * plan.layout.length, slots)
    else:
        room, rate_limiter = ReplayRoom(plan.kept_rows, plan.kept_blocks, plan.block), plan.rate_limiter()
    seed = seed_of(run.seed, "replay", plan.name, 1 if run.lockstep else incarnation)
    kind: type[ReplayBuffer[Any]] = SequenceReplay if plan.config.network.core is not None else ReplayBuffer
    return kind(context, plan.interface, algorithm, room, rate_limiter, seed)
