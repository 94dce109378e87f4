"""What the rows of a minibatch look like to a policy as it is, by one forward pass; and how far its values are off.

In flows: a policy, or several as one, and a minibatch. Out flow: log-probabilities, ratios and values [T, b].

Legend: `T` segment length, `b` segments of a minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from workers.algorithms.common.returns import next_values
from workers.algorithms.common.time_major import Minibatch
from workers.policies.distributions import log_prob_and_entropy
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.central_critic import CentralActorCritic
from workers.policies.networks.normalization import PopArtValue
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic

_LARGEST_LOG_RATIO = 20.0
"""e^20: a row whose action was less likely than that when it was chosen was not made by the policy that it names; the
exponential of what it claims may be infinite, and no loss with it finite."""


class PolicyEvaluation(NamedTuple):
    """What rows look like to a policy, [T, b] each; the first five with gradients."""

    log_probability: Tensor
    """Of the action, which may be of several choices and amounts"""
    entropy: Tensor
    log_ratio: Tensor
    """`log_probability` less that of the behaviour policy"""
    ratio: Tensor
    """Its exponential; 1 in rows that are not real"""
    head: Tensor
    """What the value head says, in a unit of its own"""
    value: Tensor
    """The same in the unit of the reward"""
    next_value: Tensor
    """Of what came after: 0 after a termination, of the true last observation after a truncation"""


def evaluate(
    policy: ActorCritic | CentralActorCritic | StackedActorCritic, batch: Minibatch, zero_start: bool = False
) -> PolicyEvaluation:
    """One forward pass serves log-probabilities, values, bootstrap values and the values of true last observations.
    With `zero_start` a recurrent policy remembers nothing of what came before these rows."""
    shape, rows = batch.reward.shape, batch.reward.numel()
    x, recall = batch.observation, _recall(batch, zero_start)
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
        value, next_value = _values(batch, real)
    head = values[:rows].view(shape)
    return PolicyEvaluation(
        log_probability.view(shape), uncertainty.view(shape), log_ratio, ratio, head, value, next_value
    )


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


def _recall(batch: Minibatch, zero_start: bool) -> RecurrentContext | None:
    recall = batch.recall
    if recall is None or not zero_start:
        return recall
    return recall._replace(state=torch.zeros_like(recall.state))


def _values(batch: Minibatch, real: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows and of what came after them, by values `real` [(T + 1) * b + k]."""
    shape, rows = batch.reward.shape, batch.reward.numel()
    until = rows + shape[1]
    final = torch.zeros_like(real[:until])
    final[batch.final_place] = real[until:]
    value = real[:until].view(-1, shape[1])
    return value[:-1], next_values(value, batch.terminated, batch.truncated, final[:rows].view(shape))


def _rows(column: Tensor | None, rows: int) -> Tensor | None:
    """[T, b, ...] -> [T * b, ...]."""
    return None if column is None else column.reshape(rows, *column.shape[2:])
