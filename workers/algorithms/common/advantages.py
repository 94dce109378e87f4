"""Advantages of a batch's segments while it is trained on, and which of them are drawn next, by priority.

In flow: the policy's values and probabilities of each minibatch. Out flows: advantages [T, B]; the probability [B] that
a segment is drawn, and the importance weights of those drawn.

Legend: `T` segment length, `B` segments of the batch, `b` of a minibatch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import OnStream
from workers.algorithms.common.time_major import Minibatch, TimeMajorBatch
from workers.algorithms.common.vtrace import VTrace, vtrace

__all__ = [
    "BatchAdvantages",
    "PolicyEvaluation",
    "advantages",
    "annealed_beta",
    "draw",
    "importance_weights",
    "priorities",
]


class PolicyEvaluation(NamedTuple):
    """What rows look like to a policy, without gradients, [T, b] each; values in the unit of the reward."""

    ratio: Tensor
    """Probability of the action over the behaviour policy's."""
    value: Tensor
    next_value: Tensor
    """Of what came after: 0 after a termination, of the true last observation after a truncation."""


def advantages(batch: Minibatch | TimeMajorBatch, seen: PolicyEvaluation, config: OnStream) -> VTrace:
    """V-trace over the rows of `batch`. With `zero_last` the last row of each segment has none, whatever follows."""
    return vtrace(
        batch.reward,
        seen.value,
        seen.next_value,
        batch.cut,
        seen.ratio,
        gamma=config.gamma,
        lambda_=config.gae_lambda,
        rho_clip=config.rho_clip,
        c_clip=config.c_clip,
        last=_last(batch.mask) if config.zero_last else None,
    )


def _last(mask: Tensor) -> Tensor:
    """[T, b] bool: the last real row of each segment."""
    return torch.diff(mask, dim=0, append=torch.zeros_like(mask[:1])) < 0


class BatchAdvantages:
    """Of the segments of `batch`; all of them must be entered before any is drawn."""

    def __init__(self, batch: TimeMajorBatch, config: OnStream) -> None:
        self._batch, self._config = batch, config
        self._seen = PolicyEvaluation(*(torch.empty_like(batch.reward) for _ in PolicyEvaluation._fields))

    def update(self, index: Tensor, seen: PolicyEvaluation) -> None:
        """The segments `index` [b] looked like this just now."""
        for kept, new in zip(self._seen, seen, strict=True):
            kept[:, index] = new

    @property
    def value(self) -> Tensor:
        """[T, B], in the unit of the reward."""
        return self._seen.value

    def advantages(self) -> VTrace:
        """Of all segments, [T, B], by what they looked like last."""
        return advantages(self._batch, self._seen, self._config)

    def draw(self, count: int, progress: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """`count` different segments [b], in host memory, and their importance [b], at `progress` of the run."""
        config = self._config
        priority = priorities(self.advantages().advantage, self._batch.mask, config.priority_alpha)
        index = draw(priority, count, generator)
        weight = importance_weights(priority, annealed_beta(config.priority_beta, config.priority_alpha, progress))
        return index, weight[index.to(weight.device)]


_LEAST = 1e-6
"""Added to every priority, so that a segment without any advantage may be drawn as well."""


def priorities(advantage: Tensor, mask: Tensor, alpha: float) -> Tensor:
    """p [B] = (w + 1e-6) / (sum w + 1e-6) with w = (sum over t of |advantage|) ** alpha, over rows with `mask` 1.

    With alpha 0 all are equal. They sum to 1 but for what 1e-6 adds (PufferLib's PPO, after Schaul et al. 2016).
    """
    weight = (advantage.abs() * mask).sum(0) ** alpha
    return (weight + _LEAST) / (weight.sum() + _LEAST)


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
