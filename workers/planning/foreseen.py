"""What a configuration lets a run come to, by arithmetic alone: found before the first step.

In flows: the plans of policies, the world and the run. Out flow: of each finding of a policy
(workers/metrics/diagnostics.py) the number and the limit that it is beyond.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.config.off_policy import Replayed, ValueBased
from protocol.config.offline import BC
from protocol.config.run import OnStream, Run
from protocol.spaces import World
from workers.planning.policy_plan import TrainingPlan
from workers.planning.schedules import exploration_rate

_RANDOM = 0.5
"""Share of actions that may still be random at the end."""
_KEPT = 0.8
"""Part of the rows that replay is to keep, of which whole blocks are kept."""


def expected_updates(plan: TrainingPlan, rows: float) -> float:
    """Optimiser steps that so many rows of the policy make, where none is lost."""
    algorithm = plan.config.algorithm
    if isinstance(algorithm, Replayed) and not plan.static:
        waits = max(algorithm.learning_starts, plan.batch_rows)
        return max(0.0, rows - waits) * algorithm.replay_ratio / plan.batch_rows
    if isinstance(algorithm, OnStream):
        return rows / (plan.batch_segments * plan.layout.length) * algorithm.passes * plan.minibatches
    return rows / plan.batch_rows if isinstance(algorithm, Replayed | BC) else 0.0


def expected_passes(plan: TrainingPlan, rows: float) -> float:
    """How often each of so many rows is trained on, in the mean."""
    algorithm = plan.config.algorithm
    if isinstance(algorithm, OnStream):
        return algorithm.passes
    return expected_updates(plan, rows) * plan.batch_rows / rows if isinstance(algorithm, Replayed | BC) else 1.0


def expected_lag(plan: TrainingPlan, rows: float) -> float:
    """Publications by which the oldest rows that are trained on are behind, where learners keep actors waiting or rows
    are kept; fewer where they do not."""
    algorithm = plan.config.algorithm
    if not plan.actors or plan.static:
        return 0.0
    if isinstance(algorithm, Replayed):
        made = min(plan.kept_rows, rows) * algorithm.replay_ratio / plan.batch_rows
        return made / plan.config.publish_interval
    steps = algorithm.passes * plan.minibatches if isinstance(algorithm, OnStream) else 1
    batches = (plan.open_blocks + plan.credit_blocks) * plan.block * plan.actors / max(1, plan.batch_segments)
    return (1 + batches) * min(1.0, steps / plan.config.publish_interval)


def foreseen(plans: Mapping[str, TrainingPlan], world: World, run: Run) -> dict[str, dict[str, tuple[float, float]]]:
    """policy -> what will be wrong in the run."""
    found: dict[str, dict[str, tuple[float, float]]] = {name: {} for name in plans}
    for name, plan in plans.items():
        algorithm = plan.config.algorithm
        rows = run.end * plan.fraction_of_steps(world)
        updates = expected_updates(plan, rows)
        if isinstance(algorithm, ValueBased):
            rate = exploration_rate(algorithm, int(updates), min(1.0, run.end / run.horizon))
            if rate > _RANDOM:
                found[name]["exploration_stays"] = rate, _RANDOM
            if algorithm.target_update == "hard" and algorithm.target_update_freq > updates:
                found[name]["target_never_updated"] = algorithm.target_update_freq, updates
        if (
            isinstance(algorithm, Replayed)
            and plan.actors
            and plan.kept_rows < _KEPT * min(rows, algorithm.buffer_capacity)
        ):
            found[name]["buffer_smaller"] = algorithm.buffer_capacity, plan.kept_rows
    return found
