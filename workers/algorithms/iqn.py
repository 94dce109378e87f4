"""Implicit quantile networks on replayed transitions, with double Q-learning and a target network.

In flow: `TransitionBatch`, or where the networks remember `SequenceBatch`. Out flow: the loss of the online network.

Legend: `B` transitions, `N` quantile fractions of the estimate, `M` of the target (as many), `A` actions. With `K`
policies of one kind in front, everything is of each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import IQN
from workers.algorithms.common.action_values import Rows, both_ends
from workers.algorithms.common.batches import Replay
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.sequences import Sequences
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
    rows: Rows,
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
    seen = both_ends(policy, rows, double=double)
    now, after, choice = (None, None, None) if isinstance(rows, Sequences) else rows.noises
    taken = _of(rows.action, online.quantiles(seen.here, fractions, now))
    with torch.no_grad():
        chooser = online if double else target
        chosen = greedy_action(chooser.means(seen.choice, policy.midpoints, choice), rows.next_legal)
        future = _of(chosen, target.quantiles(seen.future, target_fractions, after))
        backed = rows.reward[..., None] + rows.discount[..., None] * future
    return IQNEstimates(taken, backed)


def _of(action: Tensor, quantiles: Tensor) -> Tensor:
    """The quantiles [..., B, N] of one action [..., B] a row, from those of all [..., B, N, A]."""
    return quantiles.gather(-1, action[..., None, None].expand(*quantiles.shape[:-1], 1)).squeeze(-1)


class IQNUpdate(ReplayAlgorithm[IQNPolicy, IQN]):
    """Trains the network of IQN."""

    kinds = (IQN,)

    def loss(self, policy: IQNPolicy, batch: Replay) -> Loss:
        assert batch.fractions is not None
        here, there = batch.fractions.unbind(-2)
        found = estimates(policy, self.rows(batch), here, there, double=self.algorithm.double)
        losses = quantile_huber(found.quantiles, found.target, here, self.algorithm.kappa)
        value, target = found.quantiles.detach().mean(-1), found.target.mean(-1)
        error = (target - value).abs()
        metrics = {"value_mean": value.mean(-1), "target_mean": target.mean(-1), "td_error": error.mean(-1)}
        return Loss(batch.mean(losses), metrics, error)
