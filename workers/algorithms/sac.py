"""Soft actor-critic on replayed transitions, with a learned temperature (Haarnoja et al. 2018, "Soft Actor-Critic
Algorithms and Applications").

In flow: `TransitionBatch` with amounts. Out flow: the policy's actor, critics, target critics and temperature, changed
in place, and metrics.

Critics learn from the amounts of the rows, which are those that the world got; the actor from amounts that it would
draw now. Actor, critics and temperature take their step together, from one backward pass: each loss is made so that it
moves its own parameters only, whose gradients are clipped each by themselves.

Legend: `B` transitions, `D` amounts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config.run import SAC, PolicyConfig
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.off_policy import Drawn, Follower, Loss, OffPolicyUpdate, weighted
from workers.policies.networks.soft_actor_critic import SoftActorCritic, sample_tanh_normal

__all__ = ["Losses", "SACUpdate", "actor_loss", "critic_losses", "objective", "soft_target", "temperature_loss"]


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


class Losses(NamedTuple):
    """All parts of one step, each with gradients for its own parameters only."""

    critics: Tensor
    actor: Tensor
    temperature: Tensor
    errors: Tensor
    """[B]: how far the critics were from their target, on average"""
    values: Tensor
    """[2, B], detached"""
    target: Tensor
    """[B]"""
    entropy: Tensor


def objective(
    policy: SoftActorCritic, batch: TransitionBatch, noise: Tensor, next_noise: Tensor, target_entropy: float | None
) -> Losses:
    """The losses on `batch` with normal numbers [B, D] for the amounts drawn here and there. `target_entropy` None: the
    temperature stays as it is."""
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
    return Losses(
        weighted(critic_losses(values, target), batch.weight).mean(),
        actor_loss(policy.critics(here, drawn, frozen=True), chance, temperature),
        adapt,
        (values.detach() - target).abs().mean(0),
        values.detach(),
        target,
        -chance.detach().mean(),
    )


class SACUpdate(OffPolicyUpdate[SoftActorCritic, SAC]):
    """Trains actor, critics and temperature together."""

    kinds, parts = (SAC,), ("actor.", "critics.", "log_temperature")

    def __init__(self, policy: SoftActorCritic, config: PolicyConfig, seed: int = 0) -> None:
        super().__init__(policy, config, seed)
        self._follow = Follower(policy.critics, policy.targets)
        self._target_entropy = None
        if self.algorithm.learn_temperature:
            wanted = self.algorithm.target_entropy
            self._target_entropy = -float(policy.amounts) if wanted is None else wanted

    def draw(self, rows: int) -> Drawn:
        """Normal numbers [B, D] for the amounts drawn here and there."""
        numbers = torch.randn(2, rows, self.policy.amounts, generator=self.generator)
        return (*numbers.to(self.optimizer.parameters.device),)

    def ask(self, policy: SoftActorCritic, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        here, there = drawn
        assert here is not None
        assert there is not None
        found = objective(policy, transitions, here, there, self._target_entropy)
        numbers = {
            "critic_loss": found.critics.detach(),
            "actor_loss": found.actor.detach(),
            "entropy": found.entropy,
            "value_mean": found.values.mean(),
            "target_mean": found.target.mean(),
        }
        return Loss(found.critics + found.actor + found.temperature, found.errors, numbers)

    def after_step(self, progress: float) -> dict[str, Tensor]:
        self._follow(self.algorithm.tau)
        return {"temperature": self.policy.log_temperature.detach().exp()}
