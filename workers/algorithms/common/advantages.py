"""What the rows of a minibatch look like to a policy, their advantages, and which segments are drawn by these next.
V-trace, and generalised advantage estimation as its special case, as a pure function on [T, B] tensors.

In flow: what a minibatch looks like to the policy. Out flows: advantages [T, b]; the probability [B] that a segment is
drawn, and the importance weights of those drawn.

Legend: `T` segment length, `B` segments of the batch, `b` of a minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import OnStream
from workers.algorithms.common.returns import linear_recurrence
from workers.algorithms.common.time_major import Advantages, Minibatch
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective


class VTrace(NamedTuple):
    """Importance-corrected advantages."""

    advantage: Tensor
    """[T, B]"""
    target: Tensor
    """[T, B]: advantage + value, what the value should be."""
    policy_advantage: Tensor
    """[T, B]: the advantage without its own row's importance weight, for an objective that weights it by the ratio
    itself. With `advantage` in PPO's surrogate a late row would be weighted twice."""


def vtrace(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    ended: Tensor,
    ratio: Tensor,
    *,
    gamma: float,
    lambda_: float,
    rho_clip: float,
    c_clip: float,
    last: Tensor | None = None,
) -> VTrace:
    """V-trace in its lambda form (Espeholt et al. 2018, section 4.1 and remark 2); all inputs [T, B], `ended` bool.

    `next_value` is 0 after a termination and the value of the true last observation after a truncation (see
    `returns.next_values`); `ratio` is the learner's probability of the action over the behaviour policy's.

    delta[t] = min(rho_clip, ratio[t]) * (reward[t] + gamma * next_value[t] - value[t])
    A[t] = delta[t] + gamma * lambda * min(c_clip, ratio[t]) * (1 - ended[t]) * A[t + 1]
    policy_advantage[t] = reward[t] + gamma * next_value[t] - value[t] + gamma * lambda * (1 - ended[t]) * A[t + 1]

    Rows `last` [T, B] bool have no advantage at all, as in implementations that do not look beyond a segment.

    With all ratios 1 (and clips of at least 1) this is generalised advantage estimation (Schulman et al. 2016). It
    crosses no end, neither termination nor truncation.
    """
    difference = reward + gamma * next_value - value
    if last is not None:
        difference = difference.masked_fill(last, 0.0)
    factor = (ratio.clamp(max=c_clip) * (gamma * lambda_)).masked_fill(ended, 0.0)
    advantage = linear_recurrence(ratio.clamp(max=rho_clip) * difference, factor)
    ahead = advantage[1:].masked_fill(ended[:-1], 0.0)
    difference[:-1] += (gamma * lambda_) * ahead  # the last row has nothing ahead but its bootstrap value
    return VTrace(advantage, advantage + value, difference)


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
    outputs: dict[str, Tensor] | None = None
    """What the user's own algorithm declares, if it does, by name [T, b, *shape]: with gradients as well"""


def estimate_advantages(
    batch: Minibatch, seen: PolicyEvaluation, config: OnStream, weight: Tensor, ranks: Collective = SINGLE_PROCESS
) -> Advantages:
    """V-trace as `config` has it, or what was known of the rows before. Means go by `weight` (`row_weights`), over the
    minibatch of all `ranks`."""
    priority = None
    if batch.advantage is not None and batch.target is not None:
        advantage, target = batch.advantage, batch.target
    else:
        found = advantages(batch, seen, config)
        advantage, target = found.policy_advantage, found.target
        if config.priority_alpha:
            priority = (found.advantage.abs() * batch.mask).sum(0)
    if config.normalize_advantage:
        advantage = normalized(advantage, weight, batch.members, ranks)
    if batch.importance is not None:
        advantage = advantage * batch.importance
    return Advantages(advantage, target, priority)


def advantages(batch: Minibatch, seen: PolicyEvaluation, config: OnStream) -> VTrace:
    """V-trace over the rows of `batch`. With `zero_last` the last row of each segment has none, whatever follows."""
    return vtrace(
        batch.reward,
        seen.value,
        seen.next_value,
        batch.cut,
        seen.ratio.detach(),
        gamma=config.discount,
        lambda_=config.gae_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        last=_last(batch.mask) if config.zero_last else None,
    )


def _last(mask: Tensor) -> Tensor:
    """[T, b] bool: the last real row of each segment."""
    return torch.diff(mask, dim=0, append=torch.zeros_like(mask[:1])) < 0


def row_weights(batch: Minibatch, ranks: Collective = SINGLE_PROCESS) -> Tensor:
    """[T, b]: what each real row has in a mean over those of all `ranks`, for each of the policies by itself."""
    return batch.mask / _per_segment(ranks.all_reduce(total(batch.mask, batch.members)), batch.mask.shape)


def total(x: Tensor, members: int) -> Tensor:
    """The sum of `x` [T, b], or those of several policies, [K]."""
    return x.sum() if members == 1 else x.view(len(x), members, -1).sum((0, 2))


def _per_segment(of: Tensor, shape: torch.Size) -> Tensor:
    """A scalar as it is; what is each policy's, [K], for each of its segments, [b]."""
    return of.repeat_interleave(shape[1] // len(of)) if of.dim() else of


def normalized(x: Tensor, weight: Tensor, members: int = 1, ranks: Collective = SINGLE_PROCESS) -> Tensor:
    """`x` [T, b] with mean 0 and standard deviation 1 under `weight`, which sums to 1 over all `ranks`, for each of
    `members`."""
    centred = x - _per_segment(ranks.all_reduce(total(x * weight, members)), x.shape)
    variance = ranks.all_reduce(total(centred * centred * weight, members))
    return centred / (_per_segment(variance.sqrt(), x.shape) + 1e-8)


_LEAST = 1e-6
"""Added to every priority, so that a segment without any advantage may be drawn as well."""


def priorities(size: Tensor, alpha: float) -> Tensor:
    """p [B] = (w + 1e-6) / (sum w + 1e-6) with w = `size` ** alpha.

    With alpha 0 all are equal. They sum to 1 but for what 1e-6 adds (PufferLib's PPO, after Schaul et al. 2016).
    """
    weight = size**alpha
    return (weight + _LEAST) / (weight.sum() + _LEAST)


def draw_segments(
    size: Tensor, count: int, progress: float, generator: torch.Generator, config: OnStream
) -> tuple[Tensor, Tensor]:
    """`count` different segments [b], in host memory, of those with advantages of this `size` [B], and their importance
    [b], at `progress` of the run."""
    priority = priorities(size, config.priority_alpha)
    index = draw(priority, count, generator)
    weight = importance_weights(priority, annealed_beta(config.priority_beta, config.priority_alpha, progress))
    return index, weight[index.to(weight.device)]


def draw(priority: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` different segments [b] int64 in host memory, each with a chance in proportion to its `priority` [B]."""
    return torch.multinomial(priority.cpu(), count, generator=generator)


def importance_weights(priority: Tensor, beta: float) -> Tensor:
    """(B * p) ** -beta [B]: less weight for what is drawn more often than were all alike."""
    return (len(priority) * priority) ** -beta


def annealed_beta(beta: float, alpha: float, progress: float) -> float:
    """The exponent of `importance_weights`, growing from `beta` with the run's `progress` in [0, 1]: the closer to its
    end, the less bias is tolerated."""
    return beta + (1 - beta) * alpha * progress
