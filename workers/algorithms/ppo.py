"""Proximal policy optimisation, corrected for lag by V-trace; and IMPALA, which differs in its policy gradient alone
(Espeholt et al. 2018, section 4.2).

In flow: a minibatch of possibly older versions of the policy. Out flow: its loss.

Legend: `T` segment length, `b` segments of a minibatch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.run import PPO, OnStream
from workers.algorithms.common.advantages import PolicyEvaluation, estimate_advantages, row_weights, total
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.returns import value_error
from workers.algorithms.common.time_major import Minibatch
from workers.algorithms.stream import StreamAlgorithm, evaluate
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective


class PPOUpdate(StreamAlgorithm):
    """Trains by PPO's clipped objective, or by IMPALA's policy gradient."""

    rows_apart = True

    def loss(self, policy: ActorCritic | CentralActorCritic, batch: Minibatch, rows: PolicyEvaluation) -> Loss:
        return surrogate_loss(policy, batch, rows, self.algorithm, self.entropy_coefficient, self.ranks)


def objective(
    policy: ActorCritic | CentralActorCritic | StackedActorCritic,
    batch: Minibatch,
    config: OnStream,
    entropy_weight: float | Tensor | None = None,
) -> Loss:
    """`surrogate_loss` of rows as they look to `policy`, with the `entropy_weight` of `config` for None."""
    weight = config.entropy_weight if entropy_weight is None else entropy_weight
    return surrogate_loss(policy, batch, evaluate(policy, batch, config.zero_start), config, weight)


def surrogate_loss(
    policy: ActorCritic | CentralActorCritic | StackedActorCritic,
    batch: Minibatch,
    seen: PolicyEvaluation,
    config: OnStream,
    entropy_weight: float | Tensor,
    ranks: Collective = SINGLE_PROCESS,
) -> Loss:
    """PPO's clipped objective (Schulman et al. 2017, equation 9), or IMPALA's policy gradient, with V-trace advantages
    against the behaviour policy.

    Means are over rows with mask 1. Rewards and values are real, value errors in the value head's normalised unit.
    `entropy_weight`: one number, or one for each of K policies. Segments with an `importance` have their advantages
    times that. Where the minibatch is this rank's part of one that several `ranks` have, loss and metrics are its
    terms of theirs.
    """
    many = batch.members
    with torch.no_grad():
        weight = row_weights(batch, ranks)
        found = estimate_advantages(batch, seen, config, weight, ranks)
    if isinstance(config, PPO):
        gain, cut = clipped_surrogate(seen.ratio, found.advantage, config.clip)
    else:
        gain, cut = policy_gradient(seen.log_probability, seen.ratio.detach(), found.advantage, config.rho_clip)
    policy_loss = -total(gain * weight, many)
    entropy = total(seen.entropy * weight, many)
    error = value_error(policy, seen.head, found.target, batch.value, config.value_clip)
    value_loss = total(error * weight, many)
    loss = policy_loss + config.value_coefficient * value_loss - entropy_weight * entropy
    with torch.no_grad():
        metrics = {
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "approx_kl": total((seen.ratio - 1 - seen.log_ratio) * weight, many),
            "clip_fraction": total(cut * weight, many),
            "ratio_mean": total(seen.ratio * weight, many),
        }
    return Loss(loss, {name: metric.detach() for name, metric in metrics.items()}, found.priority, found.target)


def clipped_surrogate(ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """What each row [T, b] is to be raised by, the lesser of both with and without its ratio kept within `clip` of 1;
    and whether it was out of that."""
    clipped = ratio.clamp(1 - clip, 1 + clip)
    return torch.minimum(ratio * advantage, clipped * advantage), clipped != ratio


def policy_gradient(
    log_probability: Tensor, ratio: Tensor, advantage: Tensor, rho_clip: float
) -> tuple[Tensor, Tensor]:
    """What each row is to be raised by: min(rho_clip, ratio) * log_probability * advantage; and whether its ratio was
    cut.

    `advantage` is r[s] + gamma * v[s + 1] - V(x[s]), with v the V-trace targets: `VTrace.policy_advantage` with
    lambda 1. It carries no weight of its own row, so that the ratio, which has no gradient, counts once.
    """
    return ratio.clamp(max=rho_clip) * advantage * log_probability, ratio > rho_clip
