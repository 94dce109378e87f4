"""PPO and IMPALA on a GPU: whole optimiser steps in memory that never moves, recorded as CUDA graphs.

In flows: updates of policies of one kind, and a batch for each. Out flow: what `PPOUpdate.update` does, for each;
several `FixedStack`s, whose policies may differ in everything, step side by side as branches of one graph. Nothing in a
step is seen by the host: a policy that fails stops by itself, and is told of at the end.

Legend: `K` policies of a stack, `T` segment length, `B` segments of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.adam import broken, learning_rate_of
from workers.algorithms.fixed_adam import FixedAdam
from workers.algorithms.fixed_batch import FixedBatch
from workers.algorithms.outcomes import Outcome, one_by_one
from workers.algorithms.ppo import PPOUpdate, entropy_weight_of, objective
from workers.algorithms.preparation import Batch, prepare
from workers.algorithms.recorder import Recorder, Work
from workers.algorithms.stacked import normalize, orders
from workers.learning.batches import Segments, joined
from workers.policies.actor_critic import ActorCritic
from workers.policies.stacked import StackedActorCritic

__all__ = ["Branches", "FixedStack"]


class FixedStack:
    """Of `updates`, whose policies and algorithms are of one kind (workers/cohorts.py); one alone is, too."""

    def __init__(self, updates: Sequence[PPOUpdate]) -> None:
        self.updates, self._algorithm, self._arithmetic = updates, updates[0].algorithm, updates[0].arithmetic
        policies = [update.policy for update in updates if isinstance(update.policy, ActorCritic)]
        self._policy = StackedActorCritic(policies)
        self._adam = FixedAdam([update.optimizer for update in updates], self._policy.weights)
        self._many, self._device = len(updates), self._policy.weights.parameters.device
        self._entropy = torch.zeros(self._many, device=self._device)
        self._held: FixedBatch | None = None
        self._targets = self._sums = torch.empty(0)
        self._names: list[str] = []
        self._index: dict[int, Tensor] = {}
        self._before, self._rates = torch.empty(0), [0.0]
        self._steps = self._generation = 0

    def begin(self, given: Sequence[Segments], progress: Sequence[float]) -> list[tuple[int, Tensor]] | None:
        """Takes a batch for each policy; the steps to be made with it, as many segments each and which. None where it
        holds rows that are not real, or nonsense: such batches are for each update alone."""
        if bool((torch.cat([segments.valid for segments in given]) < given[0].action.shape[1]).any()):
            return None
        try:
            batch = prepare(joined(given, torch.cat))
        except TrainingFault:  # of one of them, who then is told by himself
            return None
        if self._held is None or not self._held.fits(batch):
            self._held = FixedBatch(batch, self._many)
            self._targets, self._index = torch.empty_like(batch.reward), {}
            self._generation += 1
        self._held.load(batch)
        pairs = [*zip(self.updates, progress, strict=True)]
        self._rates = [learning_rate_of(update.config, update.algorithm, part) for update, part in pairs]
        self._entropy.copy_(torch.tensor([entropy_weight_of(update.algorithm, part) for update, part in pairs]))
        self._policy.weights.gather()
        self._adam.gather(self._rates, [update.config.max_grad_norm for update in self.updates])
        self._before = self._policy.weights.parameters.clone()
        self._sums.zero_()
        self._steps = 0
        return [*self._parts(batch)]

    def aim(self, index: Tensor) -> tuple[int, int]:
        """The next step is on the segments `index` [K * b]; what is returned tells its memory, and so its graph."""
        held = self._index.get(len(index))
        if held is None:
            held = self._index[len(index)] = torch.zeros_like(index, device=self._device)
        held.copy_(index, non_blocking=True)
        self._steps += 1
        return self._generation, len(index)

    def step(self, width: int) -> None:
        """One optimiser step on the segments that were aimed at, `width` in number."""
        assert self._held is not None
        index = self._index[width]
        minibatch = self._held.minibatch(index)
        with self._arithmetic.products(self._device):
            found = objective(self._policy, minibatch, self._algorithm, self._entropy)
        norm = self._adam.step(found.loss.reshape(self._many))
        self._names = [*found.metrics, "grad_norm"]
        numbers = torch.stack([number.reshape(self._many) for number in (*found.metrics.values(), norm)])
        if not self._sums.numel():
            self._sums = torch.zeros_like(numbers)
        self._sums.add_(numbers)
        self._targets.index_copy_(1, index, found.target)

    def targets(self) -> Tensor:
        """[T, K, B]: value targets, as the steps so far told them."""
        return self._targets.view(len(self._targets), self._many, -1).clone()

    def end(self, targets: Tensor) -> list[Outcome]:
        """What became of each; `targets` are those of the first epoch."""
        assert self._held is not None
        batch, weights = self._held.batch, self._policy.weights
        delta = torch.linalg.vector_norm(weights.parameters - self._before, dim=1)
        faults = {member: broken(*pair) for member, pair in self._adam.faults().items()}
        stopped = {member: weights.row(member).clone() for member in faults}
        normalize(self._policy, self._algorithm, batch, targets)
        for member, row in stopped.items():
            weights.row(member).copy_(row)
        for member in range(self._many):
            weights.scatter(member)
        self._adam.scatter()
        reward = batch.reward.view(len(batch.reward), self._many, -1).mean((0, 2))
        numbers = torch.cat([self._sums / self._steps, torch.stack([delta, reward])]).T.tolist()
        names, rows = [*self._names, "weight_delta", "reward_mean"], float(batch.rows // self._many)
        return [
            faults.get(i) or {**dict(zip(names, row, strict=True)), "learning_rate": rate, "rows": rows}
            for i, (row, rate) in enumerate(zip(numbers, self._rates, strict=True))
        ]

    def _parts(self, batch: Batch) -> Iterator[tuple[int, Tensor]]:
        each = batch.reward.shape[1] // self._many
        for epoch in range(self._algorithm.epochs):
            for part in orders(self.updates, each).tensor_split(self._algorithm.minibatches, 1):
                if part.numel():
                    yield epoch, part.flatten()


class Branches:
    """Stacks that make their steps side by side; one alone is a stack as one computation, recorded."""

    def __init__(self, stacks: Sequence[FixedStack], recorder: Recorder) -> None:
        self.stacks, self._recorder = [*stacks], recorder

    def update(
        self, given: Sequence[Segments], progress: Sequence[float], meanwhile: Callable[[], None] = lambda: None
    ) -> list[Outcome]:
        """What `PPOUpdate.update` does, for each policy of each stack, in their order. `meanwhile` is called when all
        is asked of the device and nothing is waited for yet."""
        found: dict[int, list[Outcome]] = {}
        steps: dict[int, list[tuple[int, Tensor]]] = {}
        at = 0
        for number, stack in enumerate(self.stacks):
            mine = slice(at, at + len(stack.updates))
            at = mine.stop
            parts = stack.begin(given[mine], progress[mine])
            if parts is None:
                found[number] = one_by_one(stack.updates, given[mine], progress[mine])
            else:
                steps[number] = parts
        first: dict[int, Tensor] = {}
        for turn in range(max(map(len, steps.values()), default=0)):
            self._turn(turn, steps, first)
        meanwhile()
        for number in steps:
            found[number] = self.stacks[number].end(first[number])
        return [outcome for number in range(len(self.stacks)) for outcome in found[number]]

    def _turn(self, turn: int, steps: dict[int, list[tuple[int, Tensor]]], first: dict[int, Tensor]) -> None:
        """Step number `turn` of those that make so many."""
        key, pieces = [], []
        for number, parts in steps.items():
            if turn < len(parts):
                stack, (_, index) = self.stacks[number], parts[turn]
                key.append((number, stack.aim(index)))
                pieces.append(_piece(stack, len(index)))
        self._recorder.run(tuple(key), pieces)
        for number, parts in steps.items():
            over = turn + 1 == len(parts) or (turn + 1 < len(parts) and parts[turn + 1][0] > 0)
            if over and number not in first:
                first[number] = self.stacks[number].targets()


def _piece(stack: FixedStack, width: int) -> Work:
    return lambda: stack.step(width)
