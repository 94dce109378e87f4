"""Behaviour cloning: the policy network of PPO makes the actions of a dataset likely (Pomerleau 1991, there by squared
errors; here by maximum likelihood, which serves choices as well).

In flow: `TransitionBatch`, of which only observations, actions and masks are looked at. Out flows: the loss, and the
policy's observation statistics, changed in place.

Legend: `B` rows, `K` heads, `D` amounts, `C` values of all heads.
"""

from __future__ import annotations

from torch import Tensor

from protocol.config.run import BC
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.actor_critic import ActorCritic


def objective(policy: ActorCritic, batch: TransitionBatch, entropy_coefficient: float = 0.0) -> Loss:
    """The mean negative log-likelihood of the actions in `batch` under `policy`, less so much of its mean entropy.

    An action of several choices and amounts is as likely as all of them together: categorical ones a head, with no
    probability for what was not legal, and normal ones an amount.
    """
    outputs, _ = policy(policy.inputs(batch.observation))
    chance, uncertainty = policy.heads.log_prob_and_entropy(
        outputs, policy.log_std, batch.action, batch.amount, batch.legal
    )
    entropy, surprise = uncertainty.mean(), -chance.detach()
    metrics = {
        "entropy": entropy,
        "agreement": _agreement(policy, outputs.detach(), batch),
        "negative_log_likelihood": surprise.mean(),
    }
    return Loss(-chance.mean() - entropy_coefficient * entropy, metrics, surprise)


def _agreement(policy: ActorCritic, outputs: Tensor, batch: TransitionBatch) -> Tensor:
    if not policy.heads.sizes:
        return outputs.new_ones(())
    best = policy.heads.greedy_choices(outputs, batch.legal)
    return (best == batch.action.view(best.shape)).float().mean()


class BCUpdate(ReplayAlgorithm[ActorCritic, BC]):
    """Trains the network of PPO, without its value."""

    kinds = (BC,)

    def loss(self, policy: ActorCritic, batch: TransitionBatch) -> Loss:
        return objective(policy, batch, self.algorithm.entropy_coefficient)

    def after_step(self, batch: TransitionBatch, progress: float) -> dict[str, Tensor]:
        if self.algorithm.normalize_observation:
            self.policy.observe(batch.observation)
        return {}
