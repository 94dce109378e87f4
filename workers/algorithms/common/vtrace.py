"""V-trace, and generalised advantage estimation as its special case, as a pure function on [T, B] tensors.

Legend: as in returns.py.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from workers.algorithms.common.returns import linear_recurrence


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
