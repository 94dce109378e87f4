"""Returns and advantages from rewards and values, and V-trace, as pure functions on [T, B] tensors.

Legend: `T` time, `B` batch of streams. Row t holds the reward and the end *caused by* the action of row t; `next_value`
is the value of what was seen after it: 0 after a termination, the value of the true last observation after a
truncation, the value of row t + 1 otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["VTrace", "linear_recurrence", "next_values", "vtrace"]


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
