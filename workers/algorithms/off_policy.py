"""What algorithms on replayed transitions have in common: optimiser, schedules and what follows a step, around a loss.

In flow: `TransitionBatch`, or of who remembers `SequenceBatch`. Out flows: parameters, a target network and an
exploration rate, changed in place, and metrics.

Legend: `B` transitions, `A` actions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from protocol.config.base import ConfigModel
from protocol.config.off_policy import DQN, IQN, SAC, Replayed, ValueBased
from protocol.config.run import PolicyConfig, Sampled
from workers.algorithms.common.action_values import ActionValues, Rows, value_actions
from workers.algorithms.common.adam import FlatAdam, learning_rate_of
from workers.algorithms.common.batches import Replay, ReplayT, Resumable, TransitionBatch, non_tensor_field
from workers.algorithms.common.loss import Loss, loss_of, parse_settings
from workers.algorithms.common.sequences import sequences_of
from workers.planning.schedules import exploration_rate
from workers.policies.networks.declared_outputs import Output, RowColumn, kept
from workers.policies.networks.q_policy import QPolicy
from workers.policies.networks.soft_actor_critic import SoftActorCritic

PolicyT = TypeVar("PolicyT", bound=nn.Module)
AlgorithmT = TypeVar("AlgorithmT", bound=Sampled)


class ReplayAlgorithm(Resumable, ABC, Generic[PolicyT, AlgorithmT]):
    """Updates `policy`, which must be on its final device, from batches of transitions; what a batch asks for is the
    algorithm's `loss`. What follows each train step goes by the policy: a target network and an exploration rate, or
    target critics."""

    Config: ClassVar[type[BaseModel]] = ConfigModel
    """Keys of the class's own in `policy.algorithm`."""
    outputs: ClassVar[tuple[str | Output, ...]] = ()
    """What it needs of the network: names of what the algorithm that it builds on has, and outputs of its own."""
    columns: ClassVar[tuple[RowColumn, ...]] = ()
    """What segments keep of its own outputs, beyond what every algorithm's rows have."""
    kinds: ClassVar[tuple[type[BaseModel], ...]] = (Replayed,)
    """Of algorithms that this updates by."""
    schedules: Schedules | TargetCritics

    def __init__(self, policy: PolicyT, config: PolicyConfig, seed: int = 0) -> None:
        if not isinstance(config.algorithm, self.kinds):
            names = " or ".join(kind.model_fields["name"].default for kind in self.kinds)
            found = f"needs the configuration of {names}, not of {config.algorithm.name}"
            raise ValueError(f"{type(self).__name__} {found}")
        self.policy, self.config, self.algorithm = policy, config, cast(AlgorithmT, config.algorithm)
        self.settings: BaseModel = parse_settings(type(self), config.algorithm)
        """The keys of `Config`."""
        self.progress, self._noise = 0.0, (0, 0)
        """How much of the run is over, in [0, 1]; how many normal numbers each row of a batch is given."""
        parts: tuple[str, ...] = ()
        if isinstance(policy, QPolicy) and isinstance(config.algorithm, ValueBased):
            self.schedules, self._noise = Schedules(policy, config.algorithm), (3, policy.numbers)
        elif isinstance(policy, SoftActorCritic) and isinstance(config.algorithm, SAC):
            self.schedules, self._noise = TargetCritics(policy, config.algorithm.tau), (2, policy.amounts)
            parts = ("actor.", "critics.", "log_temperature")
        self.optimizer = FlatAdam(policy, parts=parts)
        self.priorities: Tensor | None = None
        """[B] of the last batch: how far each estimate was from its target."""
        self.generator = torch.Generator().manual_seed(seed)
        """What an update draws by."""

    def draw(self, batch: ReplayT) -> ReplayT:
        """`batch` with what its loss needs of chance. Of `noise`, independent numbers for the estimate, the target and
        the choice of its action (Fortunato et al. 2018, section 3.1).

        Of `fractions`, one drawn uniformly from each Nth part of (0, 1): all rows of a batch share them. Every fraction
        stays as likely as if drawn for each row, so the expected loss is the paper's, and the embedding is computed N
        times instead of B * N times.
        """
        drawn: dict[str, Any] = {}
        if isinstance(self.algorithm, IQN):
            count = self.algorithm.quantiles
            drawn["fractions"] = (torch.rand(2, count, generator=self.generator) + torch.arange(count)) / count
        times, numbers = self._noise
        if numbers:
            drawn["noise"] = torch.randn(times, batch.rows, numbers, generator=self.generator)
        device = self.optimizer.parameters.device
        return replace(batch, **{name: one.to(device) for name, one in drawn.items()}) if drawn else batch

    @abstractmethod
    def loss(self, policy: Any, batch: Any) -> Loss:
        """What `batch` asks of `policy`: this one's, or several of its kind as one."""

    def evaluate(self, policy: Any, batch: Replay) -> ActionValues:
        """What the networks of `dqn` say of `batch`, and what they should say; TypeError for other algorithms. Of
        segments, for who remembers, of the rows that are trained on."""
        if not isinstance(self.algorithm, DQN):
            raise TypeError(f"evaluate is for dqn; ask the networks of {self.algorithm.name} themselves")
        return value_actions(policy, self.rows(batch), double=self.algorithm.double)

    def own_columns(self, batch: TransitionBatch) -> dict[str, Tensor]:
        """Columns that the class declares, by name [B, *shape], as the policy said them when it acted."""
        return kept(self.policy, batch.outputs)

    def own_outputs(self, policy: QPolicy, batch: TransitionBatch) -> dict[str, Tensor]:
        """What the class declares, by name [B, *shape], with gradients."""
        assert policy.declared is not None
        found: dict[str, Tensor] = policy.declared(policy.online.perceptron(policy.inputs(batch.observation)))
        return found

    def rows(self, batch: Replay) -> Rows:
        """`batch`, or of segments, for who remembers, the rows that are trained on."""
        if isinstance(batch, TransitionBatch):
            return batch
        assert isinstance(self.algorithm, ValueBased)
        return sequences_of(batch, self.algorithm)

    def after_step(self, batch: Any, progress: float) -> dict[str, Tensor]:
        """Target networks and schedules after a train step on `batch`, at `progress` of the run; what there is to say
        of them."""
        return self.schedules.after_step(self.train_steps, progress)

    def update(self, transitions: Replay, progress: float = 0.0) -> dict[str, float]:
        """One step on `transitions`; returns metrics. `progress` in [0, 1] is how much of the run is over, for
        what falls with it: learning rate and exploration.

        An empty batch gives loss 0 and no step. Raises TrainingFault for arrays that are not tensors, and, with the
        parameters as they were, for a loss or gradient that is not finite.
        """
        strange = non_tensor_field(transitions)
        if strange is not None:
            raise strange
        rows = transitions.rows
        if not rows:
            return {"loss": 0.0, "rows": 0.0}
        self.progress = progress
        with self.arithmetic.autocast(transitions.reward.device):
            found = loss_of(self, self.draw(transitions))
        norm = self.optimizer.backward(found.total, self.config.max_grad_norm)
        before = self.optimizer.parameters.clone()
        rate = learning_rate_of(self.config, self.algorithm, progress)
        self.optimizer.step(rate)
        followed = self.after_step(transitions, progress)
        self.priorities = None if found.priorities is None else found.priorities.detach()
        with torch.no_grad():
            numbers = {
                "loss": found.total,
                **found.metrics,
                "grad_norm": norm,
                "weight_delta": torch.linalg.vector_norm(self.optimizer.parameters - before),
                "reward_mean": transitions.reward.mean(),
                **followed,
            }
            metrics = dict(zip(numbers, torch.stack(list(numbers.values())).tolist(), strict=True))
        return {**metrics, "learning_rate": rate, "rows": float(rows)}


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


class TargetCritics:
    """What follows a train step of `sac`: target critics that go by the share `tau`."""

    def __init__(self, policy: SoftActorCritic, tau: float) -> None:
        self._policy, self._tau = policy, tau
        self._follow = Follower(policy.critics, policy.targets)

    def after_step(self, train_steps: int, progress: float) -> dict[str, Tensor]:
        """Moves them; the temperature."""
        self._follow(self._tau)
        return {"temperature": self._policy.log_temperature.detach().exp()}


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
