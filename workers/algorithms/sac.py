"""Soft actor-critic on replayed transitions, with a learned temperature (Haarnoja et al. 2018, "Soft Actor-Critic
Algorithms and Applications").

In flow: `TransitionBatch` with amounts, or with choices (Christodoulou 2019, "Soft Actor-Critic for Discrete Action
Settings": means over what is chosen are taken, not drawn). Out flow: the loss of actor, critics and temperature.

Critics learn from the amounts of the rows, which are those that the world got; the actor from amounts that it would
draw now. Actor, critics and temperature take their step together, from one backward pass: each loss is made so that it
moves its own parameters only, whose gradients are clipped each by themselves.

Legend: `B` transitions, `D` amounts, `A` choices.
"""

from __future__ import annotations

import torch
from torch import Tensor

from protocol.config.run import SAC
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.policies.networks.soft_actor_critic import SoftActorCritic, sample_tanh_normal

CHOICE_ENTROPY = 0.89
"""Of what drawing evenly has: the entropy that the temperature keeps, of choices (CleanRL's sac_atari.py)."""


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


def temperature_loss(log_temperature: Tensor, log_probability: Tensor, target_entropy: float | Tensor) -> Tensor:
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
    actor = actor_loss(policy.critics(here, drawn, frozen=True), chance, temperature)
    return _together(policy, batch, values, target, actor, chance, target_entropy)


def choice_objective(policy: SoftActorCritic, batch: TransitionBatch, target_entropy: float | None) -> Loss:
    """The losses on a `batch` of choices. `target_entropy` is a part of the entropy of drawing evenly from what is
    legal; None: the temperature stays as it is."""
    temperature = policy.log_temperature.detach().exp()
    here = policy.inputs(batch.observation)
    with torch.no_grad():
        there = policy.inputs(batch.next_observation)
        log_chances = _log_chances(policy.actor.logits(there), batch.next_legal)
        soft = policy.targets.of_choices(there).amin(0) - temperature * log_chances
        target = batch.reward + batch.discount * (log_chances.exp() * soft).sum(1)
    every = policy.critics.of_choices(here)
    values = every.gather(2, batch.action.expand(2, -1)[..., None])[..., 0]
    log_chances = _log_chances(policy.actor.logits(here), batch.legal)
    chances = log_chances.exp()
    actor = (chances * (temperature * log_chances - every.detach().amin(0))).sum(1).mean()
    wanted = None
    if target_entropy is not None:
        count = log_chances.new_tensor(log_chances.shape[1]) if batch.legal is None else batch.legal.sum(1)
        wanted = target_entropy * count.log()
    return _together(policy, batch, values, target, actor, (chances * log_chances).sum(1), wanted)


def _log_chances(logits: Tensor, legal: Tensor | None) -> Tensor:
    """Of choices [B, A], of which those that are not `legal` have none."""
    return (logits if legal is None else logits.masked_fill(~legal, -1e9)).log_softmax(1)


def _together(
    policy: SoftActorCritic,
    batch: TransitionBatch,
    values: Tensor,
    target: Tensor,
    actor: Tensor,
    chance: Tensor,
    wanted: float | Tensor | None,
) -> Loss:
    """The sum of all losses, by both critics' `values` [2, B] and their `target` [B], the loss of the `actor`, and its
    log-probabilities `chance` [B] with the entropy that is `wanted`."""
    adapt = torch.zeros_like(actor)
    if wanted is not None:
        adapt = temperature_loss(policy.log_temperature, chance, wanted)
    critics = batch.mean(critic_losses(values, target))
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
        target_entropy = None
        if self.algorithm.learn_temperature:
            usual = CHOICE_ENTROPY if policy.choices else -float(policy.amounts)
            target_entropy = usual if self.algorithm.target_entropy is None else self.algorithm.target_entropy
        if policy.choices:
            return choice_objective(policy, batch, target_entropy)
        assert batch.noise is not None
        here, there = batch.noise
        return objective(policy, batch, here, there, target_entropy)
