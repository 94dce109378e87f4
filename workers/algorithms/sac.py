"""Soft actor-critic on replayed transitions, with a learned temperature (Haarnoja et al. 2018, "Soft Actor-Critic
Algorithms and Applications").

In flow: `TransitionBatch` with amounts. Out flow: the loss of actor, critics and temperature.

Critics learn from the amounts of the rows, which are those that the world got; the actor from amounts that it would
draw now. Actor, critics and temperature take their step together, from one backward pass: each loss is made so that it
moves its own parameters only, whose gradients are clipped each by themselves.

Legend: `B` transitions, `D` amounts.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.run import SAC
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.soft_actor_critic import SoftActorCritic, sample_tanh_normal


def soft_target(
    reward: Tensor, discount: Tensor, following: Tensor, log_probability: Tensor, temperature: Tensor
) -> Tensor:
    """What critics should say [B] (equations 2 and 3): reward + discount * (the lesser of both target critics' values
    `following` [2, B] of an action drawn there - temperature * its `log_probability` [B])."""
    return reward + discount * (following.amin(0) - temperature * log_probability)


def critic_losses(values: Tensor, target: Tensor) -> Tensor:
    """[B]: half the squares of both critics' errors, `values` [2, B] and `target` [B], summed (equation 5)."""
    return 0.5 * (values - target).square().sum(0)


def actor_loss(values: Tensor, log_probability: Tensor, temperature: Tensor) -> Tensor:
    """Mean of temperature * `log_probability` [B] - the lesser of both critics' `values` [2, B] of the amounts drawn
    (equation 9, with the twin critics of section 6)."""
    return (temperature * log_probability - values.amin(0)).mean()


def temperature_loss(log_temperature: Tensor, log_probability: Tensor, target_entropy: float) -> Tensor:
    """Mean of -temperature * (`log_probability` [B] + target entropy) (equation 18): the temperature rises while the
    entropy is below its target."""
    return -(log_temperature.exp() * (log_probability.detach() + target_entropy)).mean()


def objective(
    policy: SoftActorCritic, batch: TransitionBatch, noise: Tensor, next_noise: Tensor, target_entropy: float | None
) -> Loss:
    """The losses on `batch` with normal numbers [B, D] for the amounts drawn here and there, each with gradients for
    its own parameters only. `target_entropy` None: the temperature stays as it is."""
    assert batch.amount is not None
    temperature = policy.log_temperature.detach().exp()
    here = policy.inputs(batch.observation)
    with torch.no_grad():
        there = policy.inputs(batch.next_observation)
        mean, log_std = policy.actor(there)
        amount, chance = sample_tanh_normal(mean, log_std, next_noise)
        target = soft_target(batch.reward, batch.discount, policy.targets(there, amount), chance, temperature)
    values = policy.critics(here, batch.amount)
    mean, log_std = policy.actor(here)
    drawn, chance = sample_tanh_normal(mean, log_std, noise)
    adapt = torch.zeros_like(temperature)
    if target_entropy is not None:
        adapt = temperature_loss(policy.log_temperature, chance, target_entropy)
    critics = batch.mean(critic_losses(values, target))
    actor = actor_loss(policy.critics(here, drawn, frozen=True), chance, temperature)
    with torch.no_grad():
        errors = (values - target).abs().mean(0)
        metrics = {
            "critic_loss": critics,
            "actor_loss": actor,
            "entropy": -chance.mean(),
            "value_mean": values.mean(),
            "target_mean": target.mean(),
            "td_error": errors.mean(),
        }
    return Loss(critics + actor + adapt, metrics, errors)


class SACUpdate(ReplayAlgorithm[SoftActorCritic, SAC]):
    """Trains actor, critics and temperature together."""

    kinds = (SAC,)

    def loss(self, policy: SoftActorCritic, batch: TransitionBatch) -> Loss:
        assert batch.noise is not None
        here, there = batch.noise
        target_entropy = None
        if self.algorithm.learn_temperature:
            wanted = self.algorithm.target_entropy
            target_entropy = -float(policy.amounts) if wanted is None else wanted
        return objective(policy, batch, here, there, target_entropy)
