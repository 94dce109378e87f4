"""DQN and IQN of several policies of one kind as one computation; where that is recorded or compiled, also of one: the
whole update in memory that never moves, as CUDA graphs ask (branches.py).

In flows: updates of policies of one kind, and transitions for each. Out flow: what `ReplayAlgorithm.update` does, for
each, to within the order of sums: targets, loss, Adam's step, and what follows it by each one's schedules. Nothing of
it is seen by the host: a policy that fails stays as it is, and is told of at the end.

Legend: `K` policies, `B` transitions of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

from workers.algorithms.common.adam import learning_rate_of
from workers.algorithms.common.batches import Outcome, TransitionBatch, concatenate, copy_into, non_tensor_field
from workers.algorithms.cuda_graphs.static_batch import HostScalars
from workers.algorithms.cuda_graphs.step_compiler import EAGER, StepCompiler
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.off_policy import ReplayAlgorithm, Schedules
from workers.algorithms.stacked.stacked_adam import StackedAdam, failed
from workers.policies.stacked.stacked_weights import stack_policies


class StackedQLearning:
    """Of `updates`, whose policies and algorithms are of one kind (workers/planning/cohorts.py); one alone is, too."""

    def __init__(self, updates: Sequence[DQNUpdate | IQNUpdate], compiler: StepCompiler = EAGER) -> None:
        self._compiler = compiler
        self.updates, self._arithmetic = updates, updates[0].arithmetic
        self._first: ReplayAlgorithm[Any, Any] = updates[0]
        """Whose formula all have."""
        self._policy, weights = stack_policies([update.policy for update in updates])
        self._weights = weights
        self._adam = StackedAdam([update.optimizer for update in updates], weights, compiler)
        self._online, self._target = weights.span("online."), weights.span("target.")
        self._epsilon, self._device = weights.views["epsilon"], weights.parameters.device
        self._share = weights.parameters.new_zeros(len(updates), 1)
        self._next_epsilon = torch.zeros_like(self._epsilon)
        self._given = HostScalars(2, len(updates), self._device)
        self._held: TransitionBatch | None = None
        self._numbers = self._errors = torch.empty(0)
        self._names: list[str] = []
        self._rates: list[float] = []
        self.generation = 0

    def load(self, given: Sequence[TransitionBatch], progress: Sequence[float]) -> int | None:
        """Takes a batch for each policy, for one step. None where there is nothing in one, something strange, or
        another number of rows than in the first: such batches are for each update alone."""
        if any(non_tensor_field(one) for one in given) or len({one.rows for one in given}) != 1 or not given[0].rows:
            return None
        drawn = [update.draw(batch) for update, batch in zip(self.updates, given, strict=True)]
        batch = concatenate(drawn, torch.stack)
        if self._held is None or not copy_into(self._held, batch):
            self._held = concatenate([batch], lambda columns: columns[0].clone())
            self.generation += 1
        pairs = [*zip(self.updates, progress, strict=True)]
        self._rates = [learning_rate_of(update.config, update.algorithm, part) for update, part in pairs]
        due = [cast(Schedules, update.schedules).due(update.train_steps + 1, part) for update, part in pairs]
        share, epsilon = self._given.upload([one.share for one in due], [one.epsilon for one in due])
        self._share.copy_(share[:, None])
        self._next_epsilon.copy_(epsilon)
        self._weights.load()
        self._adam.gather(self._rates, [update.config.max_grad_norm for update in self.updates])
        return 1

    def select_minibatch(self, turn: int) -> int:
        """There is one step; what is returned tells its memory, and so its graph."""
        return self.generation

    def step(self) -> None:
        """The update."""
        self._compiler.run_or_fall_back(self._step)

    def _step(self) -> None:
        assert self._held is not None
        with self._arithmetic.autocast(self._device):
            found = self._compiler.call(type(self._first).loss, self._first, self._policy, self._held)
        assert found.priorities is not None
        parameters = self._weights.parameters
        before = parameters.clone()
        norm = self._adam.step(found.total)
        with torch.no_grad():
            self._follow()
            numbers = {
                "loss": found.total,
                **found.metrics,
                "grad_norm": norm,
                "weight_delta": torch.linalg.vector_norm(parameters - before, dim=1),
                "reward_mean": self._held.reward.mean(1),
                "epsilon": self._epsilon.float(),
            }
            if not self._names:
                self._names = [*numbers]
            told = torch.stack([*numbers.values()])
            if self._errors.shape != found.priorities.shape:
                self._errors, self._numbers = torch.zeros_like(found.priorities), torch.zeros_like(told)
            self._numbers.copy_(told)
            self._errors.copy_(found.priorities)

    def after_step(self, turn: int) -> None:
        """Nothing is left to be done before the end."""

    def collect(self) -> list[Outcome]:
        """What became of each."""
        assert self._held is not None
        errors, rows = self._errors.clone(), float(self._held.action.shape[1])
        facts = torch.cat([self._adam.facts(), self._numbers.double()])
        made, losses, norms, *numbers = facts.tolist()  # here the device is waited for
        faults = failed(losses, norms)
        self._adam.scatter(made)
        self._weights.store(*(i for i in range(len(self.updates)) if i not in faults))
        outcomes: list[Outcome] = []
        for member, (update, row) in enumerate(zip(self.updates, zip(*numbers, strict=True), strict=True)):
            if member in faults:
                outcomes.append(faults[member])
                continue
            update.priorities = errors[member]
            said = dict(zip(self._names, row, strict=True))
            outcomes.append({**said, "learning_rate": self._rates[member], "rows": rows})
        return outcomes

    def _follow(self) -> None:
        """What `Schedules.after_step` does; what becomes of one that failed is not taken over in the end."""
        self._target.lerp_(self._online, self._share)
        self._epsilon.copy_(self._next_epsilon)
