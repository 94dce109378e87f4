"""Replay of pictures: bytes that a frame takes, and drawing a batch beside gathering the same bytes from one array.

    python -m tests.benchmarks.bench_replay [--frames 1000000] [--batch 32] [--rounds 200]

Frames are Atari's, 84x84 bytes, in stacks of four, with all other defaults of DQN; a batch holds two stacks of each
transition. The plain gather knows neither episodes nor actors. Both are timed in turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import numpy as np
import psutil

from protocol.config.run import DQN, parse_run
from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import Ring
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version, pack
from tests.workers import scripted
from workers.environments.registry import describe
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.report import LearnerReport
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.runtime.torch_setup import configure_torch

FRAME = 84 * 84
COPIES = 8


def main() -> None:
    """Prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    configure_torch()
    json.dump(measured(arguments.frames, arguments.batch, arguments.rounds), sys.stdout, indent=2)
    sys.stdout.write("\n")


def planned(frames: int, batch: int) -> PolicyPlan:
    """A policy that replays `frames` frames, stacked by four."""
    settings = {"agents": 1, "image": [84, 84, 1], "actions": 6, "episode_steps": 27_000}
    keys = {"name": "dqn", "frames": 4, "buffer_capacity": frames, "batch_size": batch}
    environment = {"id": "synthetic", "copies": COPIES, "settings": settings}
    run = parse_run({"environment": environment, "policy": {"algorithm": keys}, "steps": 10**9})
    (plan,) = plan_policies(run, describe(run.environment)).values()
    return plan


def measured(frames: int, batch: int, rounds: int) -> dict[str, float]:
    """Memory a frame over its own bytes, and microseconds of a batch both ways: medians of `rounds`."""
    plan, mine = planned(frames, batch), psutil.Process().memory_info
    before = mine().rss
    replay = _filled(plan)
    memory = (mine().rss - before) / replay.rows / FRAME
    rng, now = np.random.default_rng(0), Version(1, 2)
    plain = rng.integers(0, 256, (min(replay.rows, 200_000), 84, 84), np.uint8)
    ours, theirs = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        drawn = replay.next_batch(now)
        ours.append(time.perf_counter() - start)
        assert drawn is not None
        assert drawn.observation.nbytes == batch * 4 * FRAME
        index = rng.integers(4, len(plain), (2, batch, 1)) - np.arange(4)
        start = time.perf_counter()
        _, _ = plain[index[0]], plain[index[1]]
        theirs.append(time.perf_counter() - start)
    us, plain_us = (statistics.median(times) * 1e6 for times in (ours, theirs))
    return {
        "frames": replay.rows,
        "segment_length": plan.layout.length,
        "bytes_over_frame": round(memory, 3),
        "batch_us": round(us, 1),
        "plain_gather_us": round(plain_us, 1),
        "speed_over_plain": round(plain_us / us, 3),
    }


def _filled(plan: PolicyPlan) -> ReplayBuffer:
    """Whole of what one actor made."""
    counters, source = Counters(None, *LearnerReport.names([plan.name])), scripted.Source()
    algorithm, ring = plan.config.algorithm, plan.ring(None, counters)
    assert isinstance(algorithm, DQN)
    limiter = scripted.unpaced(1e9, 1, algorithm.batch_size, plan.block * plan.layout.length)
    room = ReplayRoom(plan.kept_rows, plan.kept_blocks, plan.block)
    context = BufferContext(plan.name, plan.layout, source, counters)
    replay = ReplayBuffer(context, plan.interface, algorithm, room, limiter, 0)
    number = 1
    for block in range(plan.kept_blocks):
        slots = slice(block * plan.block, (block + 1) * plan.block)
        ring.begin(slots)
        _play(ring, plan.layout, slots)
        number += ring.finish(slots, number, plan.layout.length, plan.layout.before)
        source.arrive(ring, ring.segments(slots))
        replay.fill()
    return replay


def _play(ring: Ring, layout: Layout, slots: slice) -> None:
    for field in layout.fields:
        ring.columns[field.name][slots] = 1 if field.name.startswith("observation") else 0
    ring.columns["version"][slots], ring.columns["final_row"][slots] = pack(Version(1, 1)), -1


if __name__ == "__main__":
    main()
