"""Proximal policy optimisation on whole segments, corrected for lag by V-trace; and IMPALA, which differs in its policy
gradient alone (Espeholt et al. 2018, section 4.2).

In flow: `SegmentBatch` of possibly older versions of the policy. Out flow: the policy's parameters and normalisers,
changed in place, and metrics.

Legend: `T` segment length, `b` segments of a minibatch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import PPO, OnStream, PolicyConfig, Streamed
from workers.algorithms.common.adam import FlatAdam, learning_rate_of
from workers.algorithms.common.advantages import BatchAdvantages, PolicyEvaluation, advantages
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.returns import next_values
from workers.algorithms.common.run_capacity import RunCapacity
from workers.algorithms.common.time_major import Minibatch, TimeMajorBatch, prepare_all, rank_minibatch
from workers.policies.distributions import log_prob_and_entropy
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.central_critic import CentralActorCritic
from workers.policies.networks.normalization import PopArtValue
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.scratch import ScratchBuffers
from workers.runtime.torch_setup import FLOAT32, Precision

_LARGEST_LOG_RATIO = 20.0
"""e^20: a row whose action was less likely than that when it was chosen was not made by the policy that it names; the
exponential of what it claims may be infinite, and no loss with it finite."""


class Objective(NamedTuple):
    """What a minibatch is worth: the loss to descend, scalars for the metrics, the value targets [T, b], and what its
    rows look like to the present policy. Loss and metrics of K policies are [K]."""

    loss: Tensor
    metrics: dict[str, Tensor]
    target: Tensor
    seen: PolicyEvaluation


def objective(
    policy: ActorCritic | CentralActorCritic | StackedActorCritic,
    batch: Minibatch,
    config: OnStream,
    entropy_weight: float | Tensor | None = None,
    ranks: Collective = SINGLE_PROCESS,
) -> Objective:
    """PPO's clipped objective (Schulman et al. 2017, equation 9), or IMPALA's policy gradient, with V-trace advantages
    against the behaviour policy.

    One forward pass serves log-probabilities, values, bootstrap values and the values of true last observations.
    Means are over rows with mask 1. Rewards and values are real, value errors in the value head's normalised unit.
    `entropy_weight`: one number, one for each of K policies, or None: that of `config`. Segments with an `importance`
    have their advantages times that. Where the minibatch is this rank's part of one that several `ranks` have, loss
    and metrics are its terms of theirs.
    """
    shape, rows, many = batch.reward.shape, batch.reward.numel(), batch.members
    x, recall = batch.observation, _recall(batch, config)
    if isinstance(policy, StackedActorCritic):
        outputs, values, real, log_std = policy.forward(x, batch.final_place, shape[1], recall, batch.even)
    else:
        beside = () if batch.privileged is None else (batch.privileged,)
        outputs, values = policy(policy.inputs(x), *beside, recall)
        real, log_std = policy.denormalize(values.detach()), policy.log_std
    action, amount, legal = (_rows(column, rows) for column in (batch.action, batch.amount, batch.legal))
    assert action is not None
    log_probability, uncertainty = log_prob_and_entropy(outputs[:, :rows], policy.heads, log_std, action, amount, legal)
    log_ratio = log_probability.view(shape) - batch.log_probability
    # rows that are not real have log-probability 0, which would give them an arbitrary ratio
    ratio = (log_ratio * batch.mask).clamp(max=_LARGEST_LOG_RATIO).exp()
    with torch.no_grad():
        found = _evaluation(batch, ratio, real)
        _, target, advantage = advantages(batch, found, config)
        weight = batch.mask / _per_segment(ranks.all_reduce(_total(batch.mask, many)), shape)
        if config.normalize_advantage:
            advantage = normalized(advantage, weight, many, ranks)
        if batch.importance is not None:
            advantage = advantage * batch.importance
    if isinstance(config, PPO):
        gain, cut = clipped_surrogate(ratio, advantage, config.clip)
    else:
        gain, cut = policy_gradient(log_probability.view(shape), found.ratio, advantage, config.rho_clip)
    policy_loss = -_total(gain * weight, many)
    entropy = _total(uncertainty.view(shape) * weight, many)
    error = value_error(policy, values[:rows].view(shape), target, batch.value, config.value_clip)
    value_loss = _total(error * weight, many)
    if entropy_weight is None:
        entropy_weight = config.entropy_coefficient
    loss = policy_loss + config.value_coefficient * value_loss - entropy_weight * entropy
    with torch.no_grad():
        metrics = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": _total((ratio - 1 - log_ratio) * weight, many),
            "clip_fraction": _total(cut * weight, many),
            "ratio_mean": _total(ratio * weight, many),
        }
    return Objective(loss, {name: metric.detach() for name, metric in metrics.items()}, target, found)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """What each row [T, b] is to be raised by, the lesser of both with and without its ratio kept within `clip` of 1;
    and whether it was out of that."""
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return torch.minimum(ratio * advantage, clipped * advantage), clipped != ratio


def _recall(batch: Minibatch, config: OnStream) -> RecurrentContext | None:
    """How a recurrent policy remembers these rows; with `zero_start` nothing of what came before them."""
    recall = batch.recall
    if recall is None or not config.zero_start:
        return recall
    return recall._replace(state=torch.zeros_like(recall.state))


def _evaluation(batch: Minibatch, ratio: Tensor, real: Tensor) -> PolicyEvaluation:
    """What the rows look like by values `real` [(T + 1) * b + k], in the unit of the reward."""
    shape, rows = batch.reward.shape, batch.reward.numel()
    until = rows + shape[1]
    final = torch.zeros_like(real[:until])
    final[batch.final_place] = real[until:]
    value = real[:until].view(-1, shape[1])
    next_value = next_values(value, batch.terminated, batch.truncated, final[:rows].view(shape))
    return PolicyEvaluation(ratio.detach(), value[:-1], next_value)


def _total(x: Tensor, members: int) -> Tensor:
    """The sum of `x` [T, b], or those of several policies, [K]."""
    return x.sum() if members == 1 else x.view(len(x), members, -1).sum((0, 2))


def _per_segment(total: Tensor, shape: torch.Size) -> Tensor:
    """A scalar as it is; what is each policy's, [K], for each of its segments, [b]."""
    return total.repeat_interleave(shape[1] // len(total)) if total.dim() else total


def _rows(column: Tensor | None, rows: int) -> Tensor | None:
    """[T, b, ...] -> [T * b, ...]."""
    return None if column is None else column.reshape(rows, *column.shape[2:])


def normalized(x: Tensor, weight: Tensor, members: int = 1, ranks: Collective = SINGLE_PROCESS) -> Tensor:
    """`x` [T, b] with mean 0 and standard deviation 1 under `weight`, which sums to 1 over all `ranks`, for each of
    `members`."""
    centred = x - _per_segment(ranks.all_reduce(_total(x * weight, members)), x.shape)
    variance = ranks.all_reduce(_total(centred * centred * weight, members))
    return centred / (_per_segment(variance.sqrt(), x.shape) + 1e-8)


def value_error(
    policy: PopArtValue | StackedActorCritic, value: Tensor, target: Tensor, before: Tensor | None, clip: float | None
) -> Tensor:
    """Half the squared error [T, b] of normalised `value`; `target` and the value `before` are real.

    With `clip` the larger of the errors with and without `value` kept within `clip` of `before` counts.
    """
    target = policy.normalize(target)
    error = (value - target).square()
    if clip is not None and before is not None:
        before = policy.normalize(before)
        kept = before + (value - before).clamp(-clip, clip)
        error = torch.maximum(error, (kept - target).square())
    return 0.5 * error


class PPOUpdate:
    """Updates `policy`, which must be on its final device, from batches of segments, each rank of `ranks` from its own
    as if one process had all of them: order, means, deviations, gradient and statistics are those of the whole."""

    ranks: Collective = SINGLE_PROCESS
    arithmetic: Precision = FLOAT32

    def __init__(self, policy: ActorCritic | CentralActorCritic, config: PolicyConfig, seed: int = 0) -> None:
        if not isinstance(config.algorithm, Streamed):
            raise ValueError(f"PPOUpdate needs the configuration of ppo or impala, not of {config.algorithm.name}")
        self.policy, self.config, self.algorithm = policy, config, config.algorithm
        apart = ("actor.", "critic.") if isinstance(policy, CentralActorCritic) else ()
        self.optimizer = FlatAdam(policy, parts=apart)
        self.scratch, self.room = ScratchBuffers(), RunCapacity()
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def train_steps(self) -> int:
        """Optimiser steps so far."""
        return self.optimizer.steps

    def scheduled(self, progress: float) -> dict[str, float]:
        """What goes by schedules, when so much of them is over: learning rate, and weight of the entropy bonus."""
        weight = self.algorithm.entropy_coefficient * (1 - progress if self.algorithm.anneal_entropy else 1.0)
        rate = learning_rate_of(self.config, self.algorithm, progress)
        return {"learning_rate": rate, "entropy_coefficient": weight}

    def update(self, segments: SegmentBatch, progress: float = 0.0) -> dict[str, float]:
        """Trains `epochs` times on all real rows of `segments`, a step on each minibatch; returns mean metrics.

        `progress` in [0, 1] is how much of the run is over. Raises TrainingFault, before the parameters of that step
        are touched, for a loss or gradient that is not finite. A batch without real rows changes nothing. Ranks must
        have equally many segments, of which some or all may be empty.
        """
        batch, valid = prepare_all(segments, self.ranks)
        rows = batch.rows if self.ranks.size == 1 else int(valid.sum())
        if not rows:
            return {"loss": 0.0, "rows": 0.0}
        algorithm = self.algorithm
        scheduled = self.scheduled(progress)
        before = self.optimizer.parameters.clone()
        if algorithm.value_clip is not None and batch.value is None:  # a critic that did not act along
            batch = replace(batch, value=self._evaluate_all(batch).value)
        records: list[Tensor] = []
        names: list[str] = []
        standing = self._evaluate_all(batch) if algorithm.priority_alpha else None
        targets = [] if standing is None else [standing.advantages().target[batch.mask.bool()]]
        for epoch in range(algorithm.epochs):
            for index, minibatch in self._minibatches(batch, valid, standing, progress):
                with self.arithmetic.autocast(batch.mask.device):
                    found = objective(self.policy, minibatch, algorithm, scheduled["entropy_coefficient"], self.ranks)
                if standing is not None:
                    standing.update(index, found.seen)
                norm = self.optimizer.backward(found.loss, self.config.max_grad_norm, self.ranks)
                self.optimizer.step(scheduled["learning_rate"])
                names = [*found.metrics, "grad_norm"]
                records.append(torch.stack([*found.metrics.values(), norm]))
                if epoch == 0 and standing is None:
                    targets.append(found.target[minibatch.mask.bool()])
        delta = torch.linalg.vector_norm(self.optimizer.parameters - before)
        self._normalizers(batch, torch.cat(targets))
        reward = batch.reward.sum() / rows
        numbers = torch.cat([torch.stack(records).mean(0), torch.stack([delta, reward])])
        if self.ranks.size > 1:
            numbers[-3:-1] /= self.ranks.size  # norm and delta are the same on all ranks, the rest their terms
            numbers = self.ranks.all_reduce(numbers)
        metrics = dict(zip([*names, "weight_delta", "reward_mean"], numbers.tolist(), strict=True))
        return {**metrics, **scheduled, "rows": float(rows)}

    def _minibatches(
        self, batch: TimeMajorBatch, valid: Tensor, standing: BatchAdvantages | None, progress: float
    ) -> Iterator[tuple[Tensor, Minibatch]]:
        """Whole segments in a new order, in parts as equal as can be, of which each rank gets what it has; parts
        without real rows are left out. With `standing` each part is drawn by priority from all segments instead."""
        device, algorithm = batch.mask.device, self.algorithm
        order = torch.randperm(valid.numel(), generator=self.generator)
        for part in order.tensor_split(algorithm.parts(len(order), len(batch.mask))):
            importance = None
            if standing is not None:
                part, importance = standing.draw(len(part), progress, self.generator)
            if not len(part):
                continue
            if self.ranks.size > 1:
                if valid.flatten()[part].any():
                    yield rank_minibatch(batch, part, self.ranks.rank, self.scratch)
                continue
            index = part.to(device)
            minibatch = batch.minibatch(index, self.scratch, importance)
            if batch.rows == batch.mask.numel() or minibatch.mask.any():
                yield index, minibatch

    @torch.no_grad()
    def _evaluate_all(self, batch: TimeMajorBatch) -> BatchAdvantages:
        """How all segments stand with the policy as it is, from one look at each."""
        standing = BatchAdvantages(batch, self.algorithm)
        every = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        for index in every.tensor_split(self.algorithm.parts(len(every), len(batch.mask))):
            if len(index):
                minibatch = batch.minibatch(index, self.scratch)
                with self.arithmetic.autocast(batch.mask.device):
                    standing.update(index, objective(self.policy, minibatch, self.algorithm).seen)
        return standing

    def _normalizers(self, batch: TimeMajorBatch, targets: Tensor) -> None:
        """Statistics change only between updates, so that rows of the newest version have ratio 1 throughout one."""
        if self.algorithm.normalize_return:
            self.policy.update_returns(targets, self.ranks)
        if self.algorithm.normalize_observation:
            real = batch.mask.T.bool()
            self.policy.observe(batch.observation[:, :-1][real], self.ranks)
            if isinstance(self.policy, CentralActorCritic) and batch.privileged is not None:
                self.policy.update_privileged(batch.privileged[:, :-1][real], self.ranks)

    def state(self) -> dict[str, Tensor]:
        """Optimiser moments, step count and random state, in host memory: with the weights all that a resume needs."""
        return {**self.optimizer.state(), "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        self.optimizer.load_state(state)
        self.generator.set_state(state["generator"])


def policy_gradient(
    log_probability: Tensor, ratio: Tensor, advantage: Tensor, rho_clip: float
) -> tuple[Tensor, Tensor]:
    """What each row is to be raised by: min(rho_clip, ratio) * log_probability * advantage; and whether its ratio was
    cut.

    `advantage` is r[s] + gamma * v[s + 1] - V(x[s]), with v the V-trace targets: `VTrace.policy_advantage` with
    lambda 1. It carries no weight of its own row, so that the ratio, which has no gradient, counts once.
    """
    return ratio.clamp(max=rho_clip) * advantage * log_probability, ratio > rho_clip
