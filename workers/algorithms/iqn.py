"""Implicit quantile networks on replayed transitions, with double Q-learning and a target network.

In flow: `TransitionBatch`. Out flow: the loss of the online network.

Legend: `B` transitions, `N` quantile fractions of the estimate, `M` of the target (as many), `A` actions. With `K`
policies of one kind in front, everything is of each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import IQN
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.q_policy import greedy_action
from workers.policies.networks.quantile_network import IQNPolicy


class IQNEstimates(NamedTuple):
    """Both sides of the temporal difference."""

    quantiles: Tensor
    """[B, N] of the action taken, with gradient"""
    target: Tensor
    """[B, M], detached"""


def quantile_huber(quantiles: Tensor, target: Tensor, fractions: Tensor, kappa: float) -> Tensor:
    """Quantile Huber loss [..., B] of quantiles [..., B, N] at `fractions` [..., N] against samples `target`
    [..., B, M]: summed over N, averaged over M (Dabney et al. 2018, equations 2 and 3)."""
    error = target[..., None, :] - quantiles[..., None]
    cut = error.clamp(-kappa, kappa)
    # half the square within kappa, linear beyond it
    huber = cut * (error - 0.5 * cut)
    weight = (fractions[..., None, :, None] - (error.detach() < 0).to(error.dtype)).abs()
    return (weight * huber).mean(-1).sum(-1) / kappa


def estimates(
    policy: IQNPolicy,
    batch: TransitionBatch,
    fractions: Tensor,
    target_fractions: Tensor,
    *,
    double: bool,
) -> IQNEstimates:
    """Quantiles of the actions taken at `fractions` [N], and their targets at `target_fractions` [M].

    target = reward + discount * Z_target(next, a*) with a* the legal action of greatest mean return by the online
    network (`double`: van Hasselt et al. 2016) or else by the target network itself.
    """
    online, target = policy.online, policy.target
    now, after, choice = batch.noises
    here = online.quantiles(online.perceptron(policy.inputs(batch.observation)), fractions, now)
    taken = _of(batch.action, here)
    with torch.no_grad():
        following = policy.inputs(batch.next_observation)
        psi = target.perceptron(following)
        chooser, chooser_psi = (online, online.perceptron(following)) if double else (target, psi)
        chosen = greedy_action(chooser.means(chooser_psi, policy.midpoints, choice), batch.next_legal)
        future = _of(chosen, target.quantiles(psi, target_fractions, after))
        backed = batch.reward[..., None] + batch.discount[..., None] * future
    return IQNEstimates(taken, backed)


def _of(action: Tensor, quantiles: Tensor) -> Tensor:
    """The quantiles [..., B, N] of one action [..., B] a row, from those of all [..., B, N, A]."""
    return quantiles.gather(-1, action[..., None, None].expand(*quantiles.shape[:-1], 1)).squeeze(-1)


class IQNUpdate(ReplayAlgorithm[IQNPolicy, IQN]):
    """Trains the network of IQN."""

    kinds = (IQN,)

    def loss(self, policy: IQNPolicy, batch: TransitionBatch) -> Loss:
        assert batch.fractions is not None
        here, there = batch.fractions.unbind(-2)
        found = estimates(policy, batch, here, there, double=self.algorithm.double)
        losses = quantile_huber(found.quantiles, found.target, here, self.algorithm.kappa)
        value, target = found.quantiles.detach().mean(-1), found.target.mean(-1)
        error = (target - value).abs()
        metrics = {"value_mean": value.mean(-1), "target_mean": target.mean(-1), "td_error": error.mean(-1)}
        return Loss(batch.mean(losses), metrics, error)
