"""DQN and IQN of several policies of one kind as one computation.

In flows: their updates, and transitions for each. Out flow: what each update alone would have done, to within the
order of sums; metrics of each, or why it has none. A policy whose loss or gradient is no number stays as it is, and the
others do not notice. Target networks and exploration rates follow at each one's own steps.

Legend: `K` policies, `B` transitions of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from workers.algorithms.common.adam import learning_rate_of, non_finite_update
from workers.algorithms.common.batches import TransitionBatch, concatenate, non_tensor_field
from workers.algorithms.common.update import Outcome, update_each
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.off_policy import Drawn, Loss
from workers.algorithms.stacked.stacked_adam import StackedAdam
from workers.policies.networks.q_network import DQNPolicy
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.stacked.stacked_q_networks import StackedQuantiles, StackedValues

__all__ = ["StackedQLearning", "stack_policies", "stacked_loss", "stacked_noise"]


class StackedQLearning:
    """Of `updates`, whose policies and algorithms are of one kind (workers/planning/cohorts.py)."""

    def __init__(self, updates: Sequence[DQNUpdate | IQNUpdate]) -> None:
        self._updates = updates
        self._policy = stack_policies(updates)
        self._adam = StackedAdam([update.optimizer for update in updates], self._policy.weights)

    def update(self, given: Sequence[TransitionBatch], progress: Sequence[float]) -> list[Outcome]:
        """What `OffPolicyUpdate.update` does, for each."""
        if any(non_tensor_field(one) for one in given) or len({one.rows for one in given}) != 1 or not given[0].rows:
            return update_each(self._updates, given, progress)
        pairs = zip(self._updates, progress, strict=True)
        rates = [learning_rate_of(update.config, update.algorithm, part) for update, part in pairs]
        weights, batch = self._policy.weights, concatenate(given, torch.stack)
        weights.load()
        self._adam.gather(rates, [update.config.max_grad_norm for update in self._updates])
        drawn = stacked_noise(self._updates, batch.action.shape[1])
        with self._updates[0].arithmetic.autocast(batch.reward.device):
            asked = stacked_loss(self._updates[0], self._policy, batch, drawn)
        norm = self._adam.backward(asked.loss)
        before = weights.parameters.clone()
        self._adam.step()
        numbers = {
            "loss": asked.loss.detach(),
            **asked.numbers,
            "grad_norm": norm,
            "weight_delta": torch.linalg.vector_norm(weights.parameters - before, dim=1),
            self._updates[0].errors_are: asked.errors.mean(1),
            "reward_mean": batch.reward.mean(1),
        }
        rows = torch.stack([*numbers.values()]).T.tolist()
        outcomes: list[Outcome] = []
        for member, (row, rate, part) in enumerate(zip(rows, rates, progress, strict=True)):
            said = dict(zip(numbers, row, strict=True))
            if not (math.isfinite(said["loss"]) and math.isfinite(said["grad_norm"])):
                outcomes.append(non_finite_update(said["loss"], said["grad_norm"]))
                continue
            followed = self._settle(member, asked.errors[member], part)
            outcomes.append({**said, **followed, "learning_rate": rate, "rows": float(batch.action.shape[1])})
        return outcomes

    def _settle(self, member: int, errors: Tensor, progress: float) -> dict[str, float]:
        """One policy takes its step over; what follows it at `progress` of the run."""
        self._policy.weights.store(member)
        self._adam.scatter(member)
        update = self._updates[member]
        update.errors = errors
        return {name: number.item() for name, number in update.after_step(progress).items()}


def stack_policies(updates: Sequence[DQNUpdate | IQNUpdate]) -> StackedValues | StackedQuantiles:
    """The policies of `updates` of one kind as one."""
    policies = [update.policy for update in updates]
    values = [policy for policy in policies if isinstance(policy, DQNPolicy)]
    quantiles = [policy for policy in policies if isinstance(policy, IQNPolicy)]
    return StackedValues(values) if values else StackedQuantiles(quantiles)


def stacked_noise(updates: Sequence[DQNUpdate | IQNUpdate], rows: int) -> Drawn:
    """What each drew for an update of so many rows, [K, ...]."""
    return tuple(_stacked(column) for column in zip(*[update.draw(rows) for update in updates], strict=True))


def stacked_loss(
    first: DQNUpdate | IQNUpdate, policy: StackedValues | StackedQuantiles, batch: TransitionBatch, drawn: Drawn
) -> Loss:
    """What `batch` asks of all policies at once, which have the formula of the `first`."""
    if isinstance(first, IQNUpdate):
        assert isinstance(policy, StackedQuantiles)
        return first.ask(policy, batch, drawn)
    assert isinstance(policy, StackedValues)
    return first.ask(policy, batch, drawn)


def _stacked(column: Sequence[Tensor | None]) -> Tensor | None:
    """[K, ...] of what each has, if any has."""
    there = [part for part in column if part is not None]
    return torch.stack(there) if there else None
