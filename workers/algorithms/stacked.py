"""PPO and IMPALA of several policies of one kind as one computation.

In flows: their updates, and a batch for each. Out flow: what each update alone would have done, to within the order of
sums; metrics of each, or why it has none. A policy whose loss or gradient is no number stops where it would have
stopped alone, and the others do not notice.

Legend: `K` policies, `P` parameters of each, `T` segment length, `B` segments of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.adam import TINY, FlatAdam, broken
from workers.algorithms.ppo import PPOUpdate, entropy_weight_of, objective
from workers.algorithms.preparation import Batch, prepare
from workers.learning.batches import Segments
from workers.policies.actor_critic import ActorCritic
from workers.policies.stacked import StackedActorCritic
from workers.policies.workspace import Workspace

__all__ = ["Outcome", "PPOStack", "one_by_one"]

Outcome = dict[str, float] | TrainingFault
"""Metrics of an update, or why there was none."""


def one_by_one(updates: Sequence[PPOUpdate], given: Sequence[Segments], progress: Sequence[float]) -> list[Outcome]:
    """Each update by itself."""
    outcomes: list[Outcome] = []
    for update, segments, part in zip(updates, given, progress, strict=True):
        try:
            outcomes.append(update.update(segments, part))
        except TrainingFault as fault:
            outcomes.append(fault)
    return outcomes


class PPOStack:
    """Of `updates`, whose policies and algorithms are of one kind (workers/cohorts.py)."""

    def __init__(self, updates: Sequence[PPOUpdate]) -> None:
        self._updates, self._algorithm = updates, updates[0].algorithm
        policies = [update.policy for update in updates]
        self._policy = StackedActorCritic([policy for policy in policies if isinstance(policy, ActorCritic)])
        self._adam = _StackedAdam([update.optimizer for update in updates], self._policy)
        self._scratch = Workspace()

    def update(self, given: Sequence[Segments], progress: Sequence[float]) -> list[Outcome]:
        """What `PPOUpdate.update` does, for each. Batches with rows that are not real are trained on one by one."""
        if not all(bool((segments.valid == segments.action.shape[1]).all()) for segments in given):
            return one_by_one(self._updates, given, progress)
        try:
            batch = prepare(_joined(given))
        except TrainingFault:  # of one of them, who then is told by himself
            return one_by_one(self._updates, given, progress)
        rates = [self._rate(update, part) for update, part in zip(self._updates, progress, strict=True)]
        self._policy.gather()
        self._adam.gather(rates, [update.config.max_grad_norm for update in self._updates])
        entropy_weights = [entropy_weight_of(self._algorithm, part) for part in progress]
        return self._train(batch, rates, batch.reward.new_tensor(entropy_weights))

    def _rate(self, update: PPOUpdate, progress: float) -> float:
        return update.config.learning_rate * (1 - progress if self._algorithm.anneal_learning_rate else 1.0)

    def _train(self, batch: Batch, rates: Sequence[float], entropy_weight: Tensor) -> list[Outcome]:
        faults: dict[int, TrainingFault] = {}
        before = self._policy.parameters.clone()
        many, (length, columns) = len(self._updates), batch.reward.shape
        records, names, targets = [], [], []
        for epoch in range(self._algorithm.epochs):
            for index in (
                self._parts(columns // many).to(batch.mask.device).tensor_split(self._algorithm.minibatches, 1)
            ):
                if not index.numel():
                    continue
                minibatch = batch.minibatch(index.flatten(), self._scratch, members=many)
                found = objective(self._policy, minibatch, self._algorithm, entropy_weight)
                norm = self._adam.backward(found.loss)
                self._stop(found.loss, norm, faults)
                self._adam.step()
                names = [*found.metrics, "grad_norm"]
                records.append(torch.stack([*found.metrics.values(), norm]))
                if epoch == 0:
                    targets.append(found.target.view(length, many, -1))
        delta = torch.linalg.vector_norm(self._policy.parameters - before, dim=1)
        self._normalizers(batch, torch.cat(targets, 2))
        for member in set(range(many)) - faults.keys():
            self._scatter(member)
        reward = batch.reward.view(length, many, -1).mean((0, 2))
        numbers = torch.cat([torch.stack(records).mean(0), torch.stack([delta, reward])]).T.tolist()
        names = [*names, "weight_delta", "reward_mean"]
        rows = float(batch.rows // many)
        return [
            faults.get(i) or {**dict(zip(names, row, strict=True)), "learning_rate": rate, "rows": rows}
            for i, (row, rate) in enumerate(zip(numbers, rates, strict=True))
        ]

    def _parts(self, each: int) -> Tensor:
        """[K, B]: the segments of each policy in an order of its own."""
        orders = [torch.randperm(each, generator=update.generator) for update in self._updates]
        return torch.stack(orders) + each * torch.arange(len(orders))[:, None]

    def _stop(self, loss: Tensor, norm: Tensor, faults: dict[int, TrainingFault]) -> None:
        """Policies whose `loss` or `norm` [K] is no number keep what they are before this step."""
        for member, (one, other) in enumerate(torch.stack([loss.detach(), norm], 1).tolist()):
            if member not in faults and not (math.isfinite(one) and math.isfinite(other)):
                faults[member] = broken(one, other)
                self._scatter(member)

    def _scatter(self, member: int) -> None:
        self._policy.scatter(member)
        self._adam.scatter(member)

    def _normalizers(self, batch: Batch, targets: Tensor) -> None:
        """As `PPOUpdate` does; `targets` [T, K, B]."""
        many = len(self._updates)
        if self._algorithm.normalize_return:
            self._policy.update_returns(targets.transpose(1, 2).reshape(-1, many))
        if self._policy.observations is not None:
            seen = batch.observation[:, :-1].reshape(many, -1, *self._policy.observations.mean.shape[1:])
            self._policy.observations.update(seen.transpose(0, 1).to(torch.float32))


class _StackedAdam:
    """`FlatAdam` over rows: each of `optimizers` as it is alone, at its own step."""

    def __init__(self, optimizers: Sequence[FlatAdam], policy: StackedActorCritic) -> None:
        self._optimizers, self._policy = optimizers, policy
        self._parameters, self._gradient = policy.parameters, policy.gradient
        self._betas, self._epsilon = optimizers[0].betas, optimizers[0].epsilon
        self._first, self._second = torch.zeros_like(self._gradient), torch.zeros_like(self._gradient)
        self._steps: list[int] = []
        self._rates: Sequence[float] = ()
        self._most = torch.empty(0)

    def gather(self, rates: Sequence[float], most: Sequence[float]) -> None:
        """Moments and steps of this moment, the learning rates [K] and greatest gradient norms [K] of this update."""
        torch.stack([one.first for one in self._optimizers], out=self._first)
        torch.stack([one.second for one in self._optimizers], out=self._second)
        self._steps = [one.steps for one in self._optimizers]
        self._rates, self._most = rates, self._parameters.new_tensor(most)

    def scatter(self, member: int) -> None:
        """What has become of them, to one optimiser."""
        one = self._optimizers[member]
        one.first.copy_(self._first[member])
        one.second.copy_(self._second[member])
        one.steps = self._steps[member]

    def backward(self, loss: Tensor) -> Tensor:
        """The gradients of `loss` [K], each cut to its norm; the norms [K] before."""
        self._policy.backward(loss)
        norm = torch.linalg.vector_norm(self._gradient, dim=1)
        self._gradient.mul_((self._most / (norm + 1e-6)).clamp(max=1.0)[:, None])
        return norm

    @torch.no_grad()
    def step(self) -> None:
        """One Adam step of each."""
        self._steps = [steps + 1 for steps in self._steps]
        first, second = self._betas
        self._first.lerp_(self._gradient, 1 - first)
        self._second.mul_(second).addcmul_(self._gradient, self._gradient, value=1 - second)
        scale = [[math.sqrt(1 - second**steps)] for steps in self._steps]
        rate = [[rate / (1 - first**steps)] for rate, steps in zip(self._rates, self._steps, strict=True)]
        root = self._second.add(TINY).sqrt_().div_(self._gradient.new_tensor(scale)).add_(self._epsilon)
        self._parameters.addcdiv_(self._first * self._gradient.new_tensor(rate), root, value=-1)


def _joined(given: Sequence[Segments]) -> Segments:
    """The segments of all, one policy's after another's."""
    columns = {field.name: [getattr(one, field.name) for one in given] for field in fields(Segments)}
    joined: dict[str, Any] = {n: None if column[0] is None else torch.cat(column) for n, column in columns.items()}
    return Segments(**joined)
