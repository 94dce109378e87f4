"""Several policies in one process as one computation, whatever their algorithm and wherever they are.

In flow: their updates, and how to compute them. Out flow: an outcome of each update.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workers.algorithms.build import Update
from workers.algorithms.common.batches import Outcome, Replay, SegmentBatch, update_each
from workers.algorithms.cuda_graphs.branches import Branches, GraphableUpdate
from workers.algorithms.cuda_graphs.step_compiler import EAGER, StepCompiler
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stacked.stacked_ppo import StackedPPO
from workers.algorithms.stacked.stacked_q_learning import StackedQLearning
from workers.policies.backends.cuda_graphs import GraphCache
from workers.policies.networks.actor_critic import ActorCritic

Given = SegmentBatch | Replay


def graphable(update: Update) -> bool:
    """Whether the steps of `update` are recorded as CUDA graphs, or compiled, also where it is alone."""
    wanted = update.arithmetic.compiled or update.optimizer.parameters.device.type == "cuda"
    return wanted and _stackable(update)


def _stackable(update: Update) -> bool:
    """Whether its steps can be made together with those of others, and by this process alone."""
    if update.optimizer.held:
        return False
    if isinstance(update, DQNUpdate | IQNUpdate):
        return not update.policy.modular and update.algorithm.entry is None
    if not isinstance(update, PPOUpdate) or not isinstance(update.policy, ActorCritic) or update.ranks.size > 1:
        return False
    algorithm = update.algorithm
    plain = not update.policy.modular and algorithm.entry is None
    return plain and not algorithm.priority_alpha and algorithm.frames == 1


class GroupUpdate:
    """Of `updates`: of one kind (workers/planning/cohorts.py), or with `branches` of any. Of one it is that one.
    `compiler` is for those that are to be compiled."""

    def __init__(self, updates: Sequence[Update], branches: bool = False, compiler: StepCompiler = EAGER) -> None:
        self._updates: Sequence[Any] = updates
        self._branches: Branches | None = None
        if all(_stackable(update) for update in updates) and (len(updates) > 1 or branches or graphable(updates[0])):
            parts = [[update] for update in updates] if branches else [updates]
            recorder = GraphCache(updates[0].optimizer.parameters.device)
            self._branches = Branches([_stacked(part, compiler) for part in parts], recorder)

    def update(
        self, given: Sequence[Given], progress: Sequence[float], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Outcome]:
        """What becomes of the update of each, with the batch that is given to it; `meanwhile` is called while a device
        computes by itself, where it does."""
        if self._branches is not None:
            return self._branches.update(given, progress, meanwhile)
        return update_each(self._updates, given, progress)


def _stacked(updates: Sequence[Update], compiler: StepCompiler) -> GraphableUpdate:
    """Those of one kind."""
    compiler = compiler if updates[0].arithmetic.compiled else EAGER
    values = [update for update in updates if isinstance(update, DQNUpdate | IQNUpdate)]
    if values:
        return StackedQLearning(values, compiler)
    return StackedPPO(
        [update for update in updates if isinstance(update, PPOUpdate)], compiler, fixed=graphable(updates[0])
    )
