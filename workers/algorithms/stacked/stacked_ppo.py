"""PPO and IMPALA of several policies of one kind as one computation.

In flows: their updates, and a batch for each. Out flow: what each update alone would have done, to within the order of
sums; metrics of each, or why it has none. A policy whose loss or gradient is no number stops where it would have
stopped alone, and the others do not notice.

Legend: `K` policies, `P` parameters of each, `T` segment length, `B` segments of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from protocol.config.run import Streamed
from protocol.errors import TrainingFault
from workers.algorithms.common.adam import non_finite_update
from workers.algorithms.common.batches import SegmentBatch, concatenate
from workers.algorithms.common.time_major import TimeMajorBatch, to_time_major
from workers.algorithms.common.update import Outcome, update_each
from workers.algorithms.ppo import PPOUpdate, objective
from workers.algorithms.stacked.stacked_adam import StackedAdam
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.tensors.scratch import ScratchBuffers

__all__ = ["PPOStack", "minibatch_orders", "normalize"]


class PPOStack:
    """Of `updates`, whose policies and algorithms are of one kind (workers/planning/cohorts.py)."""

    def __init__(self, updates: Sequence[PPOUpdate]) -> None:
        self._updates, self._algorithm = updates, updates[0].algorithm
        policies = [update.policy for update in updates]
        self._policy = StackedActorCritic([policy for policy in policies if isinstance(policy, ActorCritic)])
        self._adam = StackedAdam([update.optimizer for update in updates], self._policy.weights)
        self._scratch, self._arithmetic = ScratchBuffers(), updates[0].arithmetic

    def update(self, given: Sequence[SegmentBatch], progress: Sequence[float]) -> list[Outcome]:
        """What `PPOUpdate.update` does, for each. Batches with rows that are not real are trained on one by one."""
        if not all(bool((segments.valid == segments.action.shape[1]).all()) for segments in given):
            return update_each(self._updates, given, progress)
        try:
            batch = to_time_major(concatenate(given, torch.cat))
        except TrainingFault:  # of one of them, who then is told by himself
            return update_each(self._updates, given, progress)
        scheduled = [update.scheduled(part) for update, part in zip(self._updates, progress, strict=True)]
        self._policy.weights.load()
        rates = [one["learning_rate"] for one in scheduled]
        self._adam.gather(rates, [update.config.max_grad_norm for update in self._updates])
        return self._train(batch, scheduled)

    def _train(self, batch: TimeMajorBatch, scheduled: Sequence[Mapping[str, float]]) -> list[Outcome]:
        entropy_weight = batch.reward.new_tensor([one["entropy_coefficient"] for one in scheduled])
        faults: dict[int, TrainingFault] = {}
        before = self._policy.weights.parameters.clone()
        many, (length, columns) = len(self._updates), batch.reward.shape
        records, names, targets = [], [], []
        for epoch in range(self._algorithm.epochs):
            order = minibatch_orders(self._updates, columns // many).to(batch.mask.device)
            for index in order.tensor_split(self._algorithm.parts(columns // many, length), 1):
                if not index.numel():
                    continue
                minibatch = batch.minibatch(index.flatten(), self._scratch, members=many)
                with self._arithmetic.autocast(batch.mask.device):
                    found = objective(self._policy, minibatch, self._algorithm, entropy_weight)
                norm = self._adam.backward(found.loss)
                self._stop(found.loss, norm, faults)
                self._adam.step()
                names = [*found.metrics, "grad_norm"]
                records.append(torch.stack([*found.metrics.values(), norm]))
                if epoch == 0:
                    targets.append(found.target.view(length, many, -1))
        delta = torch.linalg.vector_norm(self._policy.weights.parameters - before, dim=1)
        normalize(self._policy, self._algorithm, batch, torch.cat(targets, 2))
        for member in set(range(many)) - faults.keys():
            self._scatter(member)
        reward = batch.reward.view(length, many, -1).mean((0, 2))
        numbers = torch.cat([torch.stack(records).mean(0), torch.stack([delta, reward])]).T.tolist()
        names = [*names, "weight_delta", "reward_mean"]
        rows = float(batch.rows // many)
        return [
            faults.get(i) or {**dict(zip(names, row, strict=True)), **told, "rows": rows}
            for i, (row, told) in enumerate(zip(numbers, scheduled, strict=True))
        ]

    def _stop(self, loss: Tensor, norm: Tensor, faults: dict[int, TrainingFault]) -> None:
        """Policies whose `loss` or `norm` [K] is no number keep what they are before this step."""
        for member, (one, other) in enumerate(torch.stack([loss.detach(), norm], 1).tolist()):
            if member not in faults and not (math.isfinite(one) and math.isfinite(other)):
                faults[member] = non_finite_update(one, other)
                self._scatter(member)

    def _scatter(self, member: int) -> None:
        self._policy.weights.store(member)
        self._adam.scatter(member)


def minibatch_orders(updates: Sequence[PPOUpdate], each: int) -> Tensor:
    """[K, B]: the segments of each policy, of `each` of them, in an order of its own."""
    found = [torch.randperm(each, generator=update.generator) for update in updates]
    return torch.stack(found) + each * torch.arange(len(found))[:, None]


def normalize(policy: StackedActorCritic, algorithm: Streamed, batch: TimeMajorBatch, targets: Tensor) -> None:
    """Statistics after an update, as `PPOUpdate` does; `targets` [T, K, B]."""
    many = policy.members
    if algorithm.normalize_return:
        policy.update_returns(targets.transpose(1, 2).reshape(-1, many))
    if policy.observations is not None:
        seen = batch.observation[:, :-1].reshape(many, -1, *policy.observations.mean.shape[1:])
        policy.observations.update(seen.transpose(0, 1).to(torch.float32))
