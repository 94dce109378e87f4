"""What updates on replayed transitions have in common.

In flows: transitions, and the loss that an algorithm makes of them. Out flows: parameters, a target network and an
exploration rate, changed in place, and metrics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from protocol.config.off_policy import ValueBased
from protocol.config.run import PolicyConfig, Sampled
from workers.algorithms.common.adam import FlatAdam, learning_rate_of
from workers.algorithms.common.batches import TransitionBatch, non_tensor_field
from workers.planning.schedules import exploration_rate
from workers.policies.networks.q_policy import QPolicy
from workers.runtime.torch_setup import FLOAT32, Precision

__all__ = [
    "PLAIN",
    "Drawn",
    "Loss",
    "NoiseTriple",
    "OffPolicyUpdate",
    "ScheduleStep",
    "Schedules",
    "noises",
    "weighted",
]

NoiseTriple = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Of an estimate, its target and the choice of the target's action, [B, numbers] each."""
PolicyT = TypeVar("PolicyT", bound=nn.Module)
AlgorithmT = TypeVar("AlgorithmT", bound=Sampled)
Drawn = tuple[Tensor | None, ...]
"""What one update drew by its generator, in an order that its algorithm knows."""
PLAIN: NoiseTriple = (None, None, None)
"""Where heads are not noisy."""


def noises(policy: QPolicy, rows: int, generator: torch.Generator) -> NoiseTriple:
    """Normal numbers for the noisy heads of one update of `rows` rows: independent ones for the estimate, the target
    and the choice of its action (Fortunato et al. 2018, section 3.1)."""
    if not policy.numbers:
        return PLAIN
    drawn = torch.randn(3, rows, policy.numbers, generator=generator).to(policy.epsilon.device)
    return drawn[0], drawn[1], drawn[2]


def weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    """The means [...] of `losses` [..., B], each times its `weight` [..., B], if there are weights (Schaul et al. 2016,
    section 3.4)."""
    return (losses if weight is None else losses * weight).mean(-1)


class Loss(NamedTuple):
    """What one batch asks for; loss and numbers of K policies are [K], errors [K, B]."""

    loss: Tensor
    errors: Tensor
    """[B]: how far each estimate was from its target"""
    numbers: dict[str, Tensor]
    """Further metrics, each a scalar"""


class OffPolicyUpdate(ABC, Generic[PolicyT, AlgorithmT]):
    """Updates `policy`, which must be on its final device, from batches of transitions; what a batch asks for is the
    algorithm's. What follows each train step is for policies with a target network and an exploration rate; the
    algorithms of others override it."""

    kinds: ClassVar[tuple[type[BaseModel], ...]]
    """Of algorithms that this updates by."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Of the policy, whose gradients are clipped each by themselves; none: all together."""
    errors_are: ClassVar[str] = "td_error"
    """What metrics call the mean of the errors."""
    arithmetic: Precision = FLOAT32
    schedules: Schedules

    def __init__(self, policy: PolicyT, config: PolicyConfig, seed: int = 0) -> None:
        if not isinstance(config.algorithm, self.kinds):
            names = " or ".join(kind.model_fields["name"].default for kind in self.kinds)
            found = f"needs the configuration of {names}, not of {config.algorithm.name}"
            raise ValueError(f"{type(self).__name__} {found}")
        self.policy, self.config, self.algorithm = policy, config, cast(AlgorithmT, config.algorithm)
        self.optimizer = FlatAdam(policy, parts=self.parts)
        if isinstance(policy, QPolicy) and isinstance(config.algorithm, ValueBased):
            self.schedules = Schedules(policy, config.algorithm)
        self.errors = torch.empty(0)
        """[B] of the last batch: how far each estimate was from its target."""
        self.generator = torch.Generator().manual_seed(seed)

    @property
    def train_steps(self) -> int:
        """Optimiser steps so far."""
        return self.optimizer.steps

    def draw(self, rows: int) -> Drawn:
        """What one update of so many rows needs of chance: by default the noise of noisy heads."""
        assert isinstance(self.policy, QPolicy)
        return noises(self.policy, rows, self.generator)

    @abstractmethod
    def ask(self, policy: Any, transitions: TransitionBatch, drawn: Drawn) -> Loss:
        """What `transitions` ask of `policy`, this update's or several of its kind."""

    def after_step(self, progress: float) -> dict[str, Tensor]:
        """Target networks and schedules after a train step, at `progress` of the run; what there is to say of them."""
        return self.schedules.after_step(self.train_steps, progress)

    def update(self, transitions: TransitionBatch, progress: float = 0.0) -> dict[str, float]:
        """One step on `transitions`; returns metrics. `progress` in [0, 1] is how much of the run is over, for
        what falls with it: learning rate and exploration.

        An empty batch gives loss 0 and no step. Raises TrainingFault for arrays that are not tensors, and, with the
        parameters as they were, for a loss or gradient that is not finite.
        """
        strange = non_tensor_field(transitions)
        if strange is not None:
            raise strange
        rows = len(transitions.action)
        if not rows:
            return {"loss": 0.0, "rows": 0.0}
        with self.arithmetic.autocast(transitions.reward.device):
            asked = self.ask(self.policy, transitions, self.draw(rows))
        norm = self.optimizer.backward(asked.loss, self.config.max_grad_norm)
        before = self.optimizer.parameters.clone()
        rate = learning_rate_of(self.config, self.algorithm, progress)
        self.optimizer.step(rate)
        followed = self.after_step(progress)
        self.errors = asked.errors
        with torch.no_grad():
            numbers = {
                "loss": asked.loss,
                **asked.numbers,
                "grad_norm": norm,
                "weight_delta": torch.linalg.vector_norm(self.optimizer.parameters - before),
                self.errors_are: self.errors.mean(),
                "reward_mean": transitions.reward.mean(),
                **followed,
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


class Follower:
    """Moves all numbers of `target` towards those of `online`, which is built alike."""

    def __init__(self, online: nn.Module, target: nn.Module) -> None:
        self._online, self._target = (
            [one.data for one in (*network.parameters(), *network.buffers()) if one.is_floating_point()]
            for network in (online, target)
        )

    def __call__(self, share: float) -> None:
        """By that share of the way."""
        torch._foreach_lerp_(self._target, self._online, share)


class ScheduleStep(NamedTuple):
    """What is to follow a train step."""

    share: float
    """Of the way to the online network that the target goes"""
    epsilon: float
    """The exploration rate"""


class Schedules:
    """What follows a train step, in this one place: the target network and epsilon of `policy`."""

    def __init__(self, policy: QPolicy, algorithm: ValueBased) -> None:
        self._policy, self._algorithm = policy, algorithm
        self._follow = Follower(policy.online, policy.target)

    def due(self, train_steps: int, progress: float) -> ScheduleStep:
        """What `train_steps` steps ask for at `progress` of the run."""
        algorithm = self._algorithm
        share = algorithm.tau if algorithm.target_update == "soft" else 1.0
        return ScheduleStep(
            share if train_steps % algorithm.target_update_freq == 0 else 0.0,
            exploration_rate(algorithm, train_steps, progress),
        )

    def after_step(self, train_steps: int, progress: float) -> dict[str, Tensor]:
        """Does what `train_steps` steps ask for at `progress` of the run; the exploration rate then."""
        share, epsilon = self.due(train_steps, progress)
        if share:
            self._follow(share)
        self._policy.epsilon.fill_(epsilon)
        return {"epsilon": self._policy.epsilon.float()}
