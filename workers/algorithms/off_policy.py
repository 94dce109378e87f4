"""What updates on replayed transitions have in common.

In flows: transitions, and the number of train steps. Out flows: a refusal, a weighted loss, and a target network and an
exploration rate changed in place.
"""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from protocol.config import PolicyConfig, Replayed
from protocol.errors import TrainingFault
from protocol.off_policy import ValueBased
from workers.learning.batches import Transitions
from workers.policies.flat import flatten_
from workers.policies.greedy import EpsilonGreedy

__all__ = ["PLAIN", "Noises", "Schedules", "decayed", "learning_rate", "noises", "tensors_only", "weighted"]

Noises = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of an estimate, its target and the choice of the target's action, [B, numbers] each."""
PLAIN: Noises = (None, None, None)
"""Where heads are not noisy."""


def noises(policy: EpsilonGreedy, rows: int, generator: torch.Generator) -> Noises:
    """Normal numbers for the noisy heads of one update of `rows` rows: independent ones for the estimate, the target
    and the choice of its action (Fortunato et al. 2018, section 3.1)."""
    if not policy.numbers:
        return PLAIN
    drawn = torch.randn(3, rows, policy.numbers, generator=generator).to(policy.epsilon.device)
    return drawn[0], drawn[1], drawn[2]


def weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The mean of `losses` [..., B], each times its `weight` [B], if there are weights (Schaul et al. 2016, section
    3.4)."""
    return losses.mean() if weight is None else (losses * weight).mean()


def learning_rate(config: PolicyConfig, algorithm: Replayed, progress: float) -> float:
    """That of a step when `progress` in [0, 1] of the run is over."""
    return config.learning_rate * (1 - progress if algorithm.anneal_learning_rate else 1.0)


def decayed(epsilon: float, config: ValueBased) -> float:
    """The exploration rate after one decay."""
    return max(epsilon * (1 - config.epsilon_decay), config.epsilon_min)


def tensors_only(transitions: Transitions) -> None:
    """Raises TrainingFault for what is not a tensor."""
    for field in fields(transitions):
        given = getattr(transitions, field.name)
        if not (isinstance(given, Tensor) or (given is None and field.default is None)):
            raise TrainingFault(
                f"{field.name} is a {type(given).__module__}.{type(given).__name__} but an update takes tensors on the "
                "learner's device; convert it with torch.from_numpy first"
            )


class Schedules:
    """What happens every so many train steps, in this one place: the target network and epsilon of `policy`."""

    def __init__(self, policy: EpsilonGreedy, algorithm: ValueBased) -> None:
        self._policy, self._algorithm = policy, algorithm
        weights = flatten_(policy)
        self._online, self._target = weights.span("online."), weights.span("target.")

    def follow(self, train_steps: int) -> None:
        """What `train_steps` steps ask for."""
        algorithm = self._algorithm
        if train_steps % algorithm.target_update_freq == 0:
            self._target.lerp_(self._online, algorithm.tau if algorithm.target_update == "soft" else 1.0)
        if train_steps % algorithm.epsilon_decay_freq == 0:
            self._policy.epsilon.fill_(decayed(self._policy.epsilon.item(), algorithm))
