"""IMPALA's policy gradient (Espeholt et al. 2018, section 4.2), as a pure function on [T, B] tensors.

What surrounds it, V-trace and the losses of values and entropy, it shares with PPO (workers/algorithms/ppo.py).

Legend: `T` time, `B` batch of streams.
"""

from __future__ import annotations

from torch import Tensor

__all__ = ["policy_gradient"]


def policy_gradient(
    log_probability: Tensor, ratio: Tensor, advantage: Tensor, rho_clip: float
) -> tuple[Tensor, Tensor]:
    """What each row is to be raised by: min(rho_clip, ratio) * log_probability * advantage; and whether its ratio was
    cut.

    `advantage` is r[s] + gamma * v[s + 1] - V(x[s]), with v the V-trace targets: `VTrace.policy_advantage` with
    lambda 1. It carries no weight of its own row, so that the ratio, which has no gradient, counts once.
    """
    return ratio.clamp(max=rho_clip) * advantage * log_probability, ratio > rho_clip
