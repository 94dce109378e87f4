"""Distributional Q-learning with fixed atoms on replayed transitions (Bellemare et al. 2017), with double Q-learning
and a target network.

In flow: `TransitionBatch`, or where the networks remember `SequenceBatch`. Out flow: the loss of the online network.

Legend: `B` transitions, `A` actions, `Z` atoms.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import C51
from workers.algorithms.common.action_values import Rows, both_ends
from workers.algorithms.common.batches import Replay
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.categorical_network import C51Policy
from workers.policies.networks.q_policy import greedy_action


class C51Estimates(NamedTuple):
    """Both sides of the temporal difference."""

    log_chances: Tensor
    """[B, Z] of the action taken, with gradient"""
    target: Tensor
    """[B, Z]: the chances they should have, detached"""
    cut: Tensor
    """[B]: by how much the ends of the support change the mean of what was to be told"""


def project_distribution(chances: Tensor, reward: Tensor, discount: Tensor, support: Tensor) -> Tensor:
    """Chances [B, Z] of reward + discount * support, put onto the atoms of `support` [Z] (algorithm 1): what lies
    between two atoms is shared by both, by how near they are; what lies beyond the ends is at the ends."""
    least, step = support[0], support[1] - support[0]
    moved = (reward[:, None] + discount[:, None] * support).clamp(least, support[-1])
    place = ((moved - least) / step).clamp(0, len(support) - 1)
    below = place.floor()
    above_share = place - below
    found = torch.zeros_like(chances)
    found.scatter_add_(1, below.long(), chances * (1 - above_share))
    return found.scatter_add_(1, place.ceil().long(), chances * above_share)


def divergence(log_chances: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence [B] of estimates from `target` [B, Z]; its gradient is the cross-entropy's."""
    return (torch.xlogy(target, target) - target * log_chances).sum(1)


def estimates(policy: C51Policy, rows: Rows, *, double: bool) -> C51Estimates:
    """The chances of the actions taken, and their targets: those of reward + discount * Z_target(next, a*), with a* the
    legal action of greatest mean return by the online network (`double`: van Hasselt et al. 2016) or else by the target
    network itself."""
    seen = both_ends(policy, rows, double=double)
    here = _of(rows.action, seen.here)
    with torch.no_grad():
        chosen = greedy_action(policy.mean(seen.choice), rows.next_legal)
        chances, support = _of(chosen, seen.future).exp(), policy.support
        target = project_distribution(chances, rows.reward, rows.discount, support)
        moved = rows.reward[:, None] + rows.discount[:, None] * support
        cut = (chances * (moved - moved.clamp(support[0], support[-1]))).sum(1).abs()
    return C51Estimates(here, target, cut)


def _of(action: Tensor, log_chances: Tensor) -> Tensor:
    """Those [B, Z] of one action [B] a row, from those of all [B, Z, A]."""
    return log_chances.gather(2, action[:, None, None].expand(-1, log_chances.shape[1], 1)).squeeze(2)


class C51Update(ReplayAlgorithm[C51Policy, C51]):
    """Trains the network of C51."""

    kinds = (C51,)

    def loss(self, policy: C51Policy, batch: Replay) -> Loss:
        found = estimates(policy, self.rows(batch), double=self.algorithm.double)
        losses, support = divergence(found.log_chances, found.target), policy.support
        error = losses.detach().clamp(min=0)
        metrics = {
            "value_mean": (found.log_chances.detach().exp() @ support).mean(),
            "target_mean": (found.target @ support).mean(),
            "target_cut": found.cut.mean(),
            "td_error": error.mean(),
        }
        return Loss(batch.mean(losses), metrics, error)
