"""Behaviour cloning: the policy network of PPO makes the actions of a dataset likely (Pomerleau 1991, there by squared
errors; here by maximum likelihood, which serves choices as well).

In flow: `TransitionBatch`, of which only observations, actions and masks are looked at. Out flow: the policy's
parameters and observation statistics, changed in place, and metrics.

Legend: `B` rows, `K` heads, `D` amounts, `C` values of all heads.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import BC
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.off_policy import Drawn, Loss, OffPolicyUpdate
from workers.policies.distributions import log_prob_and_entropy
from workers.policies.networks.actor_critic import ActorCritic


class CloningLoss(NamedTuple):
    """How well the policy does what was done."""

    loss: Tensor
    surprise: Tensor
    """[B]: negative log-likelihoods, detached"""
    entropy: Tensor
    agreement: Tensor
    """Share of the choices that are the policy's likeliest; 1 where there are none to make"""


def objective(policy: ActorCritic, batch: TransitionBatch, entropy_coefficient: float = 0.0) -> CloningLoss:
    """The mean negative log-likelihood of the actions in `batch` under `policy`, less so much of its mean entropy.

    An action of several choices and amounts is as likely as all of them together: categorical ones a head, with no
    probability for what was not legal, and normal ones an amount.
    """
    outputs, _ = policy(policy.inputs(batch.observation))
    chance, uncertainty = log_prob_and_entropy(
        outputs, policy.heads, policy.log_std, batch.action, batch.amount, batch.legal
    )
    entropy = uncertainty.mean()
    loss = -chance.mean() - entropy_coefficient * entropy
    return CloningLoss(loss, -chance.detach(), entropy.detach(), _agreement(policy, outputs.detach(), batch))


def _agreement(policy: ActorCritic, outputs: Tensor, batch: TransitionBatch) -> Tensor:
    sizes = policy.heads.sizes
    if not sizes:
        return outputs.new_ones(())
    logits = outputs[: sum(sizes)]
    if batch.legal is not None:
        logits = logits.masked_fill(~batch.legal.T, -torch.inf)
    likeliest = torch.stack([part.argmax(0) for part in logits.split(list(sizes))], 1)
    return (likeliest == batch.action.view(likeliest.shape)).float().mean()


class BCUpdate(OffPolicyUpdate[ActorCritic, BC]):
    """Trains the network of PPO, without its value."""

    kinds, errors_are = (BC,), "negative_log_likelihood"
    _seen = torch.empty(0)

    def draw(self, rows: int) -> Drawn:
        """Nothing."""
        return ()

    def ask(self, policy: ActorCritic, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        self._seen = transitions.observation
        found = objective(policy, transitions, self.algorithm.entropy_coefficient)
        return Loss(found.loss, found.surprise, {"entropy": found.entropy, "agreement": found.agreement})

    def after_step(self, progress: float) -> dict[str, Tensor]:
        if self.algorithm.normalize_observation:
            self.policy.observe(self._seen)
        return {}
