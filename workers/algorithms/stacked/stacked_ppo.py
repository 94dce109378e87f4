"""PPO and IMPALA of several policies of one kind as one computation; where that is recorded or compiled, also of one:
whole optimiser steps in memory that never moves, as CUDA graphs ask (branches.py).

In flows: updates of policies of one kind, and a batch for each. Out flow: what `PPOUpdate.update` does, for each, to
within the order of sums. Nothing in a step is seen by the host: a policy that fails stops by itself, and is told of at
the end.

Legend: `K` policies of a stack, `T` segment length, `B` segments of a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.common.advantages import advantages
from workers.algorithms.common.batches import Outcome, SegmentBatch, concatenate
from workers.algorithms.common.time_major import Advantages, Minibatch, TimeMajorBatch, to_time_major
from workers.algorithms.cuda_graphs.static_batch import HostScalars, StaticBatch
from workers.algorithms.cuda_graphs.step_compiler import EAGER, StepCompiler
from workers.algorithms.ppo import PPOUpdate, objective
from workers.algorithms.stacked.stacked_adam import StackedAdam, failed
from workers.algorithms.stream import evaluate
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.tensors.scratch import ScratchBuffers


class StackedPPO:
    """Of `updates`, whose policies and algorithms are of one kind (workers/planning/cohorts.py); one alone is, too. Its
    memory never moves if it is `fixed`; what nobody records costs less without."""

    def __init__(self, updates: Sequence[PPOUpdate], compiler: StepCompiler = EAGER, fixed: bool = True) -> None:
        self._compiler, self._fixed, self._scratch = compiler, fixed, ScratchBuffers()
        self.updates, self._algorithm, self._arithmetic = updates, updates[0].algorithm, updates[0].arithmetic
        policies = [update.policy for update in updates if isinstance(update.policy, ActorCritic)]
        self._policy = StackedActorCritic(policies)
        self._adam = StackedAdam([update.optimizer for update in updates], self._policy.weights, compiler)
        self._many, self._device = len(updates), self._policy.weights.parameters.device
        self._entropy = torch.zeros(self._many, device=self._device)
        self._given = HostScalars(1, self._many, self._device)
        self._held: StaticBatch | None = None
        self._batch: TimeMajorBatch | None = None
        self._advantages = self._targets = self._sums = torch.empty(0)
        self._names: list[str] = []
        self._index: dict[int, Tensor] = {}
        self._before, self._scheduled = torch.empty(0), [{"learning_rate": 0.0}]
        self.generation = self._width = 0
        alone = self._many == 1 and policies[0].core is not None
        self._room = updates[0].room if alone and compiler is EAGER else None
        self._roomy: float | None = None
        """For so many runs of a segment steps are made."""
        self._parts: list[tuple[int, Tensor]] = []
        self._first: Tensor | None = None
        self._apart = False
        """Whether rows are trained on apart from their segments, by what `_advantages` and `_targets` say."""

    def load(self, given: Sequence[SegmentBatch], progress: Sequence[float]) -> int | None:
        """Takes a batch for each policy; the number of steps to be made with it. None where it holds rows that are not
        real, or nonsense: such batches are for each update alone."""
        try:
            batch = to_time_major(concatenate(given, torch.cat) if len(given) > 1 else given[0])
        except TrainingFault:  # of one of them, who then is told by himself
            return None
        if batch.rows < batch.mask.numel():
            return None
        if self._fixed:
            if self._held is None or not self._held.fits(batch):
                self._held = StaticBatch(batch, self._many, grows=self._compiler is EAGER)
                self._advantages, self._targets = torch.empty_like(batch.reward), torch.empty_like(batch.reward)
                self._index = {}
                self.generation += 1
            self._held.load(batch)
        else:
            self._advantages, self._targets = torch.empty_like(batch.reward), torch.empty_like(batch.reward)
        self._batch = batch if self._held is None else self._held.batch
        self._scheduled = [update.scheduled(part) for update, part in zip(self.updates, progress, strict=True)]
        self._entropy.copy_(self._given.upload([one["entropy_coefficient"] for one in self._scheduled])[0])
        self._policy.weights.load()
        rates = [one["learning_rate"] for one in self._scheduled]
        self._adam.gather(rates, [update.config.max_grad_norm for update in self.updates])
        self._before = self._policy.weights.parameters.clone()
        self._sums.zero_()
        self._apart, self._first = self.updates[0].takes_apart(batch, batch.reward.shape[1] // self._many), None
        if self._apart:
            self._judge()
        self._parts = [*self._divided(batch)]
        if self._room is not None:
            ends = (batch.terminated | batch.truncated).sum(0).cpu()
            self._room.ensure(ends, [index for _, index in self._parts])
            if self._room.size != self._roomy:
                self._roomy = self._room.size
                self.generation += 1
        return len(self._parts)

    def select_minibatch(self, turn: int) -> tuple[int, int]:
        """The next step is number `turn`; what is returned tells its memory, and so its graph."""
        index = self._parts[turn][1]
        held = self._index.get(len(index))
        if held is None:
            held = self._index[len(index)] = torch.zeros_like(index, device=self._device)
        held.copy_(index, non_blocking=True)
        self._width = len(index)
        return self.generation, len(index)

    def step(self) -> None:
        """One optimiser step on the segments that were aimed at."""
        self._compiler.run_or_fall_back(self._step)

    @torch.no_grad()
    def _judge(self) -> None:
        """All rows, as they look to the policies before the first step."""
        every = self._segments(torch.arange(self._targets.shape[1], device=self._device))
        with self._arithmetic.autocast(self._device):
            seen = evaluate(self._policy, every, self._algorithm.zero_start)
        found = advantages(every, seen, self._algorithm)
        self._advantages.copy_(found.policy_advantage)
        self._targets.copy_(found.target)

    def _minibatch(self, index: Tensor) -> Minibatch:
        if not self._apart:
            return self._segments(index)
        assert self._batch is not None
        known, scratch = Advantages(self._advantages, self._targets), None if self._fixed else self._scratch
        return self._batch.apart(index, known, scratch, self._many)

    def _segments(self, index: Tensor) -> Minibatch:
        if self._held is not None:
            return self._held.minibatch(index, 0 if self._room is None else self._room.runs(len(index)))
        assert self._batch is not None
        return self._batch.minibatch(index, self._scratch, members=self._many)

    def _step(self) -> None:
        index = self._index[self._width]
        minibatch = self._minibatch(index)
        with self._arithmetic.autocast(self._device):
            found = self._compiler.call(objective, self._policy, minibatch, self._algorithm, self._entropy)
        norm = self._adam.step(found.total.reshape(self._many))
        self._names = ["loss", *found.metrics, "grad_norm"]
        said = (found.total.detach(), *found.metrics.values(), norm)
        numbers = torch.stack([number.reshape(self._many) for number in said])
        if not self._sums.numel():
            self._sums = torch.zeros_like(numbers)
        self._sums.add_(numbers)
        if not self._apart:
            assert found.targets is not None
            self._targets.index_copy_(1, index, found.targets)

    def after_step(self, turn: int) -> None:
        """Step number `turn` has been asked of the device: value targets are those of the first epoch."""
        last = turn + 1 == len(self._parts) or self._parts[turn + 1][0] > 0
        if last and self._first is None:
            self._first = self._targets.view(len(self._targets), self._many, -1).clone()

    def collect(self) -> list[Outcome]:
        """What became of each."""
        assert self._batch is not None
        assert self._first is not None
        batch, weights = self._batch, self._policy.weights
        delta = torch.linalg.vector_norm(weights.parameters - self._before, dim=1)
        reward = batch.reward.view(len(batch.reward), self._many, -1).mean((0, 2))
        said = torch.cat([self._sums / len(self._parts), torch.stack([delta, reward])])
        made, losses, norms, *numbers = torch.cat([self._adam.facts(), said]).tolist()  # here the device is waited for
        faults = failed(losses, norms)
        stopped = {member: weights.row(member).clone() for member in faults}
        self._normalize(batch, self._first)
        for member, row in stopped.items():
            weights.row(member).copy_(row)
        weights.store(*range(self._many))
        self._adam.scatter(made)
        names, rows = [*self._names, "weight_delta", "reward_mean"], float(batch.rows // self._many)
        return [
            faults.get(i) or {**dict(zip(names, row, strict=True)), **told, "rows": rows}
            for i, (row, told) in enumerate(zip(zip(*numbers, strict=True), self._scheduled, strict=True))
        ]

    def _normalize(self, batch: TimeMajorBatch, targets: Tensor) -> None:
        """Statistics after an update, as `PPOUpdate` does; `targets` [T, K, B]."""
        policy = self._policy
        if self._algorithm.normalize_return:
            policy.update_returns(targets.transpose(1, 2).reshape(-1, self._many))
        if policy.observations is not None:
            seen = batch.observation[:, :-1].reshape(self._many, -1, *policy.observations.mean.shape[1:])
            policy.observations.update(seen.transpose(0, 1).to(torch.float32))

    def _divided(self, batch: TimeMajorBatch) -> Iterator[tuple[int, Tensor]]:
        """The epoch of each minibatch, and its segments or rows: those of each policy in an order of its own."""
        each = batch.reward.shape[1] // self._many
        parts = self._algorithm.parts(each, len(batch.reward), batch.state is not None)
        each *= len(batch.reward) if self._apart else 1
        for epoch in range(self._algorithm.passes):
            orders = torch.stack([torch.randperm(each, generator=update.generator) for update in self.updates])
            for part in (orders + each * torch.arange(self._many)[:, None]).tensor_split(parts, 1):
                if part.numel():
                    yield epoch, part.flatten()
