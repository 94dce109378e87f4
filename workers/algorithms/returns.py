"""Returns and advantages from rewards and values, as pure functions on [T, B] tensors.

Legend: `T` time, `B` batch of streams. Row t holds the reward and the end *caused by* the action of row t; `next_value`
is the value of what was seen after it: 0 after a termination, the value of the true last observation after a
truncation, the value of row t + 1 otherwise.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["GAE", "NStep", "gae", "linear_recurrence", "n_step", "next_values"]


class GAE(NamedTuple):
    """Generalised advantage estimates."""

    advantage: Tensor
    """[T, B]"""
    target: Tensor
    """[T, B]: advantage + value, what the value should be."""


class NStep(NamedTuple):
    """n-step returns without their bootstrap."""

    reward: Tensor
    """[T, B]: discounted sum of the n (or fewer) rewards"""
    discount: Tensor
    """[T, B]: gamma**k with k as many rewards as were summed; 0 after a termination"""
    bootstrap: Tensor
    """[T, B] int64: the row whose action was the last one summed; the bootstrap is the value of what followed it"""


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


def gae(reward: Tensor, value: Tensor, next_value: Tensor, ended: Tensor, gamma: float, lambda_: float) -> GAE:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16); all inputs [T, B], `ended` bool.

    A[t] = r[t] + gamma * next_value[t] - value[t] + gamma * lambda * (1 - ended[t]) * A[t + 1]
    """
    delta = reward + gamma * next_value - value
    advantage = linear_recurrence(delta, (~ended).to(delta.dtype) * (gamma * lambda_))
    return GAE(advantage, advantage + value)


def n_step(reward: Tensor, terminated: Tensor, truncated: Tensor, gamma: float, n: int) -> NStep:
    """n-step returns (Sutton & Barto 2018, section 7.1) of [T, B]; shorter where an episode or the rows end sooner."""
    total, discount = reward.clone(), torch.full_like(reward, gamma)
    rows = torch.arange(len(reward), device=reward.device)[:, None].expand(reward.shape)
    last = rows.clone()
    ended = terminated | truncated
    running = ~ended
    for k in range(1, min(n, len(reward))):
        ahead = running & (rows + k < len(reward))
        source = (rows + k).clamp(max=len(reward) - 1)
        total += torch.where(ahead, reward.gather(0, source) * gamma**k, 0.0)
        discount = torch.where(ahead, gamma ** (k + 1), discount)
        last = torch.where(ahead, source, last)
        running = ahead & ~ended.gather(0, source)
    return NStep(total, discount.masked_fill(terminated.gather(0, last), 0.0), last)
