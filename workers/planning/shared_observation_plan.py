"""How much memory an actor's common observations need, so that none is overwritten that a segment refers to. Pure.

In flows: the plans of all policies, their world. Out flow: a `SharedObservationPlan`, or None where nothing is common.
Legend: `T` segment length; a *moment* is a turn of one group of copies; `P` moments from an agent's action to its next.

A segment of T rows refers to at most `P * (T + before + 2)` moments: its history, its rows, the one behind them and one
that was open when it began. Where P is known every agent finishes a block in that time, and blocks are written anew in
the order in which they were finished: what a policy refers to is its newest moments, as long as its ring lasts, and
policies share them. But blocks in flight to a learner that is away stay as they are while the others go on
(`drop_oldest`), as does a backlog of which the newest is dropped (`drop_newest`): those may be islands. Where P is not
known, segments end after T moments for each group, what is older is written anew when a block is begun, and each block
may be an island.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import Ring
from protocol.experience.shared_obs import SharedObsWriter
from protocol.spaces import World
from workers.planning.policy_plan import TrainingPlan


@dataclass(frozen=True, slots=True)
class SharedObservationPlan:
    """A ring of `blocks` blocks of `layout.rows` moments each for one actor; room for `pool` blocks at a learner that
    serves all policies."""

    layout: Layout
    blocks: int
    pool: int
    turns: int | None

    def writer(self, path: Path | None) -> SharedObsWriter:
        """A writer into a new ring, at `path` or private to this process."""
        return SharedObsWriter(Ring.create(path, self.layout, self.blocks, checksums=False), self.turns)


def plan_common(plans: Mapping[str, TrainingPlan], world: World) -> SharedObservationPlan | None:
    """The plan for one actor that writes the segments of all of `plans`."""
    every = [plan for plan in plans.values() if plan.common is not None]
    layout = every[0].common if every else None
    if layout is None:
        return None
    period = world.action_period
    if period is None:
        needed = sum(plan.blocks * _most(plan, world) for plan in every)
    else:
        lasting = (-(-plan.blocks // plan.open_blocks) + 1 for plan in every)
        lasting_moments = (count * _span(plan, world) for count, plan in zip(lasting, every, strict=True))
        needed = -(-max(lasting_moments) // layout.rows) + 1 + sum(_islands(p) * _most(p, world) for p in every)
    pooled = sum(-(-plan.pool_slots // plan.block) * _most(plan, world) for plan in every)
    turns = every[0].groups if period is None else None
    return SharedObservationPlan(layout, needed + 1, pooled + every[0].actors * (needed + 1), turns)


def _span(plan: TrainingPlan, world: World) -> int:
    """The most moments from the oldest to the newest that a block of `plan` refers to."""
    rows = plan.layout.length + plan.layout.before + 2
    if world.action_period is not None:
        return plan.groups * world.action_period * rows
    written_anew = plan.groups * len(world.agents) * (plan.layout.before + 1)  # in one turn, by all seats at most
    return 2 * plan.groups * rows + written_anew


def _most(plan: TrainingPlan, world: World) -> int:
    """The most blocks of moments that a block of `plan` touches."""
    assert plan.common is not None
    return -(-_span(plan, world) // plan.common.rows) + 1


def _islands(plan: TrainingPlan) -> int:
    """Blocks of `plan` that may be older than those that are written one after another."""
    return {"block": 0, "drop_oldest": plan.credit_blocks, "drop_newest": plan.blocks}[plan.flow]
