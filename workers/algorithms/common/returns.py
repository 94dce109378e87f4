"""What follows each row of a segment: bootstrap values and discounted sums, as pure functions on [T, B] tensors.

Legend: `T` time, `B` batch of streams. Row t holds the reward and the end *caused by* the action of row t; `next_value`
is the value of what was seen after it: 0 after a termination, the value of the true last observation after a
truncation, the value of row t + 1 otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.policies.networks.normalization import PopArtValue
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic


def next_values(value: Tensor, terminated: Tensor, truncated: Tensor, final_value: Tensor) -> Tensor:
    """Bootstrap values [T, B] from the rows' values [T + 1, B]; `final_value` [T, B] is read at truncated rows only."""
    follows = torch.where(truncated, final_value, value[1:])
    return follows.masked_fill(terminated, 0.0)


def linear_recurrence(x: Tensor, factor: Tensor) -> Tensor:
    """y[t] = x[t] + factor[t] * y[t + 1] with y[T] = 0, on [T, B].

    In ceil(log2 T) rounds, each of which doubles how far every row looks ahead (Hillis & Steele 1986): a fraction of
    the operations of a loop over rows, which on short rows are all overhead.
    """
    y, reach = x, 1
    while reach < len(x):
        y = torch.cat([torch.addcmul(y[:-reach], factor[:-reach], y[reach:]), y[-reach:]])
        # rows without a row `reach` further on are complete: their factor is not read again
        factor = torch.cat([factor[:-reach] * factor[reach:], torch.zeros_like(factor[-reach:])])
        reach *= 2
    return y


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
