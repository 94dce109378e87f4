"""Which segments are worth another look: priorities from their advantages, and weights that make up for the choice.

Pure functions. In flow: advantages [T, B]. Out flows: chances [B] to be drawn, and the importance of what was drawn.

Legend: `T` segment length, `B` segments of a batch, `b` of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["annealed", "draw", "importance", "priorities"]

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


def importance(priority: Tensor, beta: float) -> Tensor:
    """(B * p) ** -beta [B]: less weight for what is drawn more often than were all alike."""
    return (len(priority) * priority) ** -beta


def annealed(beta: float, alpha: float, progress: float) -> float:
    """The exponent of `importance`, which grows from `beta` with the `progress` in [0, 1] of the run: the closer to its
    end, the less bias is tolerated."""
    return beta + (1 - beta) * alpha * progress
