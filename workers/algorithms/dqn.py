"""Deep Q-networks on replayed transitions (Mnih et al. 2015), with double Q-learning and a target network.

In flow: `TransitionBatch`. Out flow: the policy's online and target network and exploration rate, changed in place, and
metrics.

Legend: `B` transitions, `A` actions. With `K` policies of one kind in front, everything is of each of them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import DQN
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.off_policy import PLAIN, Drawn, Loss, NoiseTriple, OffPolicyUpdate, weighted
from workers.policies.networks.q_network import DQNPolicy
from workers.policies.networks.q_policy import greedy_action

__all__ = ["DQNEstimates", "DQNUpdate", "huber", "td_estimates", "td_loss"]


class DQNEstimates(NamedTuple):
    """Both sides of the temporal difference."""

    value: Tensor
    """[B] of the action taken, with gradient"""
    target: Tensor
    """[B], detached"""


def huber(value: Tensor, target: Tensor, kappa: float | None) -> Tensor:
    """Huber loss [..., B]: half the square of the error up to kappa, linear beyond it; None: the square throughout."""
    error = target - value
    if kappa is None:
        return 0.5 * error.square()
    cut = error.clamp(-kappa, kappa)
    return cut * (error - 0.5 * cut)


def td_estimates(
    policy: DQNPolicy, batch: TransitionBatch, *, double: bool, noise: NoiseTriple = PLAIN
) -> DQNEstimates:
    """Values of the actions taken, and their targets.

    target = reward + discount * Q_target(next, a*) with a* the legal action of greatest value by the online network
    (`double`: van Hasselt et al. 2016) or else by the target network itself.
    """
    here = policy.online(policy.inputs(batch.observation), noise[0])
    taken = here.gather(-1, batch.action[..., None])[..., 0]
    with torch.no_grad():
        following = policy.inputs(batch.next_observation)
        future = policy.target(following, noise[1])
        chosen = greedy_action(policy.online(following, noise[2]) if double else future, batch.next_legal)
        target = batch.reward + batch.discount * future.gather(-1, chosen[..., None])[..., 0]
    return DQNEstimates(taken, target)


def td_loss(value: Tensor, target: Tensor, kappa: float | None, weight: Tensor | None) -> Loss:
    """What moves `value` [..., B] towards `target` [..., B], each row times its `weight`."""
    loss, said = weighted(huber(value, target, kappa), weight), value.detach()
    return Loss(loss, (target - said).abs(), {"value_mean": said.mean(-1), "target_mean": target.mean(-1)})


class DQNUpdate(OffPolicyUpdate[DQNPolicy, DQN]):
    """Trains the network of DQN."""

    kinds = (DQN,)

    def ask(self, policy: DQNPolicy, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        now, after, chosen = drawn
        found = td_estimates(policy, transitions, double=self.algorithm.double, noise=(now, after, chosen))
        return td_loss(found.value, found.target, self.algorithm.kappa, transitions.weight)
