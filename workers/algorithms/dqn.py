"""Deep Q-networks on replayed transitions (Mnih et al. 2015), with double Q-learning and a target network.

In flow: `Transitions`. Out flow: the policy's online and target network and exploration rate, changed in place, and
metrics.

Legend: `B` transitions, `A` actions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from protocol.config import DQN, PolicyConfig
from workers.algorithms.adam import FlatAdam
from workers.algorithms.off_policy import PLAIN, Noises, Schedules, learning_rate, noises, tensors_only, weighted
from workers.learning.batches import Transitions
from workers.policies.greedy import best
from workers.policies.value import ValueNetwork

__all__ = ["DQNUpdate", "Estimates", "estimates", "huber"]


class Estimates(NamedTuple):
    """Both sides of the temporal difference."""

    value: Tensor
    """[B] of the action taken, with gradient"""
    target: Tensor
    """[B], detached"""


def huber(value: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Huber loss [B]: half the square of the error up to kappa, linear beyond it."""
    error = target - value
    cut = error.clamp(-kappa, kappa)
    return cut * (error - 0.5 * cut)


def estimates(policy: ValueNetwork, batch: Transitions, *, double: bool, noise: Noises = PLAIN) -> Estimates:
    """Values of the actions taken, and their targets.

    target = reward + discount * Q_target(next, a*) with a* the legal action of greatest value by the online network
    (`double`: van Hasselt et al. 2016) or else by the target network itself.
    """
    here = policy.online(policy.inputs(batch.observation), noise[0])
    taken = here.gather(1, batch.action[:, None])[:, 0]
    with torch.no_grad():
        following = policy.inputs(batch.next_observation)
        future = policy.target(following, noise[1])
        chosen = best(policy.online(following, noise[2]) if double else future, batch.next_legal)
        target = batch.reward + batch.discount * future.gather(1, chosen[:, None])[:, 0]
    return Estimates(taken, target)


class DQNUpdate:
    """Updates `policy`, which must be on its final device, from batches of transitions."""

    def __init__(self, policy: ValueNetwork, config: PolicyConfig, seed: int = 0) -> None:
        if not isinstance(config.algorithm, DQN):
            raise ValueError(f"DQNUpdate needs the configuration of dqn, not of {config.algorithm.name}")
        self.policy, self.config, self.algorithm = policy, config, config.algorithm
        self.optimizer = FlatAdam(policy)
        self._schedules = Schedules(policy, self.algorithm)
        self.errors = torch.empty(0)
        """[B] of the last batch: how far each value was from its target."""
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def train_steps(self) -> int:
        """Optimiser steps so far."""
        return self.optimizer.steps

    def update(self, transitions: Transitions, progress: float = 0.0) -> dict[str, float]:
        """One step on `transitions`; returns metrics. `progress` in [0, 1] is how much of the run is over, for a
        learning rate that falls.

        An empty batch gives loss 0 and no step. Raises TrainingFault for arrays that are not tensors, and, with the
        parameters as they were, for a loss or gradient that is not finite.
        """
        tensors_only(transitions)
        rows = len(transitions.action)
        if not rows:
            return {"loss": 0.0, "rows": 0.0}
        noise = noises(self.policy, rows, self.generator)
        found = estimates(self.policy, transitions, double=self.algorithm.double, noise=noise)
        loss = weighted(huber(found.value, found.target, self.algorithm.kappa), transitions.weight)
        norm = self.optimizer.backward(loss, self.config.max_grad_norm)
        before = self.optimizer.parameters.clone()
        rate = learning_rate(self.config, self.algorithm, progress)
        self.optimizer.step(rate)
        self._schedules.follow(self.train_steps)
        with torch.no_grad():
            self.errors = (found.target - found.value).abs()
            numbers = {
                "loss": loss,
                "grad_norm": norm,
                "weight_delta": torch.linalg.vector_norm(self.optimizer.parameters - before),
                "value_mean": found.value.mean(),
                "target_mean": found.target.mean(),
                "td_error": self.errors.mean(),
                "reward_mean": transitions.reward.mean(),
                "epsilon": self.policy.epsilon.float(),
            }
            metrics = dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))
        return {**metrics, "learning_rate": rate, "rows": float(rows)}

    def state(self) -> dict[str, Tensor]:
        """Optimiser moments, step count and random state, in host memory: with the weights all that a resume needs."""
        return {**self.optimizer.state(), "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        self.optimizer.load_state(state)
        self.generator.set_state(state["generator"])
