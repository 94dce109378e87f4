"""Implicit quantile networks on replayed transitions, with double Q-learning and a target network.

In flow: `TransitionBatch`. Out flow: the policy's online and target network and exploration rate, changed in place, and
metrics.

Legend: `B` transitions, `N` quantile fractions of the estimate, `M` of the target (as many), `A` actions. With `K`
policies of one kind in front, everything is of each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import IQN
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.off_policy import PLAIN, Drawn, Loss, NoiseTriple, OffPolicyUpdate, weighted
from workers.policies.networks.q_policy import greedy_action
from workers.policies.networks.quantile_network import IQNPolicy

__all__ = ["IQNEstimates", "IQNUpdate", "estimates", "quantile_huber"]


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
    noise: NoiseTriple = PLAIN,
) -> IQNEstimates:
    """Quantiles of the actions taken at `fractions` [N], and their targets at `target_fractions` [M].

    target = reward + discount * Z_target(next, a*) with a* the legal action of greatest mean return by the online
    network (`double`: van Hasselt et al. 2016) or else by the target network itself.
    """
    online, target = policy.online, policy.target
    here = online.quantiles(online.perceptron(policy.inputs(batch.observation)), fractions, noise[0])
    taken = _of(batch.action, here)
    with torch.no_grad():
        following = policy.inputs(batch.next_observation)
        psi = target.perceptron(following)
        chooser, chooser_psi = (online, online.perceptron(following)) if double else (target, psi)
        chosen = greedy_action(chooser.means(chooser_psi, policy.midpoints, noise[2]), batch.next_legal)
        future = _of(chosen, target.quantiles(psi, target_fractions, noise[1]))
        backed = batch.reward[..., None] + batch.discount[..., None] * future
    return IQNEstimates(taken, backed)


def _of(action: Tensor, quantiles: Tensor) -> Tensor:
    """The quantiles [..., B, N] of one action [..., B] a row, from those of all [..., B, N, A]."""
    return quantiles.gather(-1, action[..., None, None].expand(*quantiles.shape[:-1], 1)).squeeze(-1)


class IQNUpdate(OffPolicyUpdate[IQNPolicy, IQN]):
    """Trains the network of IQN."""

    kinds = (IQN,)

    def draw(self, rows: int) -> Drawn:
        """Quantile fractions for estimate and target, and the noise of one update of so many rows."""
        return *self._fractions(), *super().draw(rows)

    def ask(self, policy: IQNPolicy, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        here, there, now, after, chosen = drawn
        assert here is not None
        assert there is not None
        noise = now, after, chosen
        found = estimates(policy, transitions, here, there, double=self.algorithm.double, noise=noise)
        losses = quantile_huber(found.quantiles, found.target, here, self.algorithm.kappa)
        value, target = found.quantiles.detach().mean(-1), found.target.mean(-1)
        numbers = {"value_mean": value.mean(-1), "target_mean": target.mean(-1)}
        return Loss(weighted(losses, transitions.weight), (target - value).abs(), numbers)

    def _fractions(self) -> tuple[Tensor, Tensor]:
        """Quantile fractions for estimate and target, [N] each: one drawn uniformly from each Nth part of (0, 1).

        All rows of a batch share them. Every fraction stays as likely as if drawn for each row, so the expected loss
        is the paper's, and the embedding is computed N times instead of B * N times.
        """
        count = self.algorithm.quantiles
        drawn = (torch.rand(2, count, generator=self.generator) + torch.arange(count)) / count
        estimate, target = drawn.to(self.optimizer.parameters.device)
        return estimate, target
