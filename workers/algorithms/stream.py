"""What algorithms on streams have in common: minibatches, optimiser, schedules and statistics around a loss.

In flow: `SegmentBatch` of possibly older versions of the policy. Out flow: the policy's parameters and normalisers,
changed in place, and metrics.

Legend: `T` segment length, `B` segments of the batch, `b` of a minibatch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import BaseModel
from torch import Tensor

from protocol.config.base import ConfigModel
from protocol.config.run import IMPALA, PPO, PolicyConfig, Streamed
from workers.algorithms.common.adam import FlatAdam, learning_rate_of
from workers.algorithms.common.advantages import (
    PolicyEvaluation,
    advantages,
    draw_segments,
    estimate_advantages,
    row_weights,
)
from workers.algorithms.common.batches import Resumable, SegmentBatch
from workers.algorithms.common.loss import Loss, loss_of, parse_settings
from workers.algorithms.common.returns import next_values, value_error
from workers.algorithms.common.run_capacity import RunCapacity
from workers.algorithms.common.start_divergence import StartDivergence
from workers.algorithms.common.time_major import (
    Advantages,
    Minibatch,
    Rows,
    TimeMajorBatch,
    prepare_all,
)
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.networks.declared_outputs import Output, RowColumn, kept
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.stacked.stacked_actor_critic import StackedActorCritic
from workers.policies.tensors.collectives import SINGLE_PROCESS, Collective
from workers.policies.tensors.scratch import ScratchBuffers

_LARGEST_LOG_RATIO = 20.0
"""e^20: a row whose action was less likely than that when it was chosen was not made by the policy that it names; the
exponential of what it claims may be infinite, and no loss with it finite."""


class StreamAlgorithm(Resumable, ABC):
    """Updates `policy`, which must be on its final device, from batches of segments, each rank of `ranks` from its own
    as if one process had all of them: order, means, deviations, gradient and statistics are those of the whole. What a
    minibatch asks for is the algorithm's `loss`."""

    Config: ClassVar[type[BaseModel]] = ConfigModel
    """Keys of the class's own in `policy.algorithm`."""
    outputs: ClassVar[tuple[str | Output, ...]] = ()
    """What it needs of the network: names of what the algorithm that it builds on has, and outputs of its own."""
    columns: ClassVar[tuple[RowColumn, ...]] = ()
    """What segments keep of its own outputs, beyond what every algorithm's rows have."""
    kinds: ClassVar[tuple[type[BaseModel], ...]] = (PPO, IMPALA)
    """Of algorithms that this updates by."""
    rows_apart: ClassVar[bool] = False
    """Whether `loss` looks at each row by itself. Where minibatches of PPO's would be of a few segments, they are then
    rows of all, shuffled, whose advantages and targets are found once, before the first step. Not where policies
    remember, or segments are drawn by priority."""
    ranks: Collective = SINGLE_PROCESS
    halved: Callable[[Rows], tuple[Loss, Tensor]] | None = None
    """What does the work of `gradient` on two threads."""

    def __init__(self, policy: ActorCritic | CentralActorCritic, config: PolicyConfig, seed: int = 0) -> None:
        if not isinstance(config.algorithm, Streamed):
            raise ValueError(f"{type(self).__name__} needs the configuration of ppo or impala")
        self.policy, self.config, self.algorithm = policy, config, config.algorithm
        self.settings: BaseModel = parse_settings(type(self), config.algorithm)
        """The keys of `Config`."""
        self.progress, self.entropy_coefficient = 0.0, config.algorithm.entropy_weight
        """How much of the run is over, in [0, 1], and the weight of the entropy bonus then, of the present update."""
        self.optimizer = FlatAdam(policy, parts=("actor.", "critic.") if isinstance(policy, CentralActorCritic) else ())
        self.scratch, self.room = ScratchBuffers(), RunCapacity()
        self.generator = torch.Generator().manual_seed(seed)
        """What an update draws by."""
        self.near: StartDivergence | None = None
        """What the policy is kept near to, where `start.kl` says so."""

    @abstractmethod
    def loss(self, policy: ActorCritic | CentralActorCritic, batch: Minibatch, rows: PolicyEvaluation) -> Loss:
        """What `batch` asks of `policy`, to which its rows look like `rows`."""

    def evaluate(self, policy: ActorCritic | CentralActorCritic, batch: Minibatch) -> PolicyEvaluation:
        """What rows look like to `policy`, as `loss` is told it of its own: for a loss that looks at others besides."""
        if isinstance(policy, ActorCritic):  # whose gradient needs what the next pass would overwrite
            policy.scratch = ScratchBuffers()
        return evaluate(policy, batch, self.algorithm.zero_start)

    def own_columns(self, batch: Minibatch) -> dict[str, Tensor]:
        """Columns that the class declares, by name [T, b, *shape], as the policy said them when it acted."""
        return kept(self.policy, batch.outputs)

    @torch.no_grad()
    def advantages(self, batch: Minibatch, rows: PolicyEvaluation) -> Advantages:
        """Advantages and value targets of rows that look like this: V-trace, as the configuration has it."""
        return estimate_advantages(batch, rows, self.algorithm, row_weights(batch, self.ranks), self.ranks)

    def value_error(
        self, policy: ActorCritic | CentralActorCritic, batch: Minibatch, rows: PolicyEvaluation, target: Tensor
    ) -> Tensor:
        """Half the squared error [T, b] of the values against `target` [T, b] in the unit of the reward."""
        return value_error(policy, rows.head, target, batch.value, self.algorithm.value_clip)

    def scheduled(self, progress: float) -> dict[str, float]:
        """What goes by schedules, when so much of them is over: learning rate, and weight of the entropy bonus."""
        weight = self.algorithm.entropy_weight * (1 - progress if self.algorithm.anneal_entropy else 1.0)
        rate = learning_rate_of(self.config, self.algorithm, progress)
        return {"learning_rate": rate, "entropy_coefficient": weight}

    def update(self, segments: SegmentBatch, progress: float = 0.0) -> dict[str, float]:
        """Trains `epochs` times on all real rows of `segments`, a step on each minibatch; returns mean metrics.

        `progress` in [0, 1] is how much of the run is over. Raises TrainingFault, before the parameters of that step
        are touched, for a loss or gradient that is not finite. A batch without real rows changes nothing. Ranks must
        have equally many segments, of which some or all may be empty.
        """
        batch, valid = prepare_all(segments, self.ranks)
        rows = batch.rows if self.ranks.size == 1 else int(valid.sum())
        if not rows:
            return {"loss": 0.0, "rows": 0.0}
        algorithm, scheduled = self.algorithm, self.scheduled(progress)
        self.progress, self.entropy_coefficient = progress, scheduled["entropy_coefficient"]
        before = self.optimizer.parameters.clone()
        if algorithm.value_clip is not None and batch.value is None:  # a critic that did not act along
            batch = replace(batch, value=torch.cat([seen.value for _, seen in self._looked(batch)], 1))
        sizes, targets = self._priorities(batch) if algorithm.priority_alpha else (None, [])
        known = self.known(batch) if self.takes_apart(batch, valid.numel()) else None
        if known is not None:
            targets.append(known.target[batch.mask.bool()])
        gradient = self.halved or self.gradient
        records: list[Tensor] = []
        names: list[str] = []
        for epoch in range(algorithm.passes):
            for part in self._minibatches(batch, valid, sizes, progress, known):
                found, norm = gradient(part)
                self.optimizer.step(scheduled["learning_rate"])
                names = ["loss", *found.metrics, "grad_norm"]
                with torch.no_grad():
                    records.append(torch.stack([found.total, *found.metrics.values(), norm]))
                if sizes is not None and found.priorities is not None:
                    sizes[part.index] = found.priorities.detach()
                elif epoch == 0 and known is None and found.targets is not None:
                    targets.append(found.targets)
        delta = torch.linalg.vector_norm(self.optimizer.parameters - before)
        self._normalizers(batch, targets)
        reward = batch.reward.sum() / rows
        numbers = torch.cat([torch.stack(records).mean(0), torch.stack([delta, reward])])
        if self.ranks.size > 1:
            numbers[-3:-1] /= self.ranks.size  # norm and delta are the same on all ranks, the rest their terms
            numbers = self.ranks.all_reduce(numbers)
        metrics = dict(zip([*names, "weight_delta", "reward_mean"], numbers.tolist(), strict=True))
        return {**metrics, **scheduled, "rows": float(rows)}

    def gradient(self, rows: Rows) -> tuple[Loss, Tensor]:
        """What `rows` ask of the policy, with targets [n] of the real ones alone; the norm of its gradient, which the
        optimizer has then, cut."""
        minibatch = rows.gathered(self.scratch)
        with self.arithmetic.autocast(minibatch.mask.device):
            seen = evaluate(self.policy, minibatch, self.algorithm.zero_start)
            found = self._near_start(loss_of(self, minibatch, seen), minibatch, seen)
        norm = self.optimizer.backward(found.total, self.config.max_grad_norm, self.ranks)
        targets = None if found.targets is None else found.targets[minibatch.mask.bool()]
        return found._replace(targets=targets), norm

    def _near_start(self, found: Loss, batch: Minibatch, seen: PolicyEvaluation) -> Loss:
        """`found`, raised where the policy is to stay near what it started as."""
        if self.near is None:
            return found
        with torch.no_grad():
            then = evaluate(self.near.start, batch)
        return self.near.raised(found, seen, then.log_probability, row_weights(batch, self.ranks))

    def _minibatches(
        self, batch: TimeMajorBatch, valid: Tensor, sizes: Tensor | None, progress: float, known: Advantages | None
    ) -> Iterator[Rows]:
        """Whole segments, or rows apart from them that are `known`, in a new order, in parts as equal as can be, of
        which each rank gets what it has; parts without real rows are left out. With the `sizes` [B] of segments'
        advantages each part is drawn by priority from all segments instead."""
        if known is not None:
            yield from self._rows(batch, valid, known)
            return
        device, algorithm, each = batch.mask.device, self.algorithm, batch.mask.shape[1]
        order = torch.randperm(valid.numel(), generator=self.generator)
        for part in order.tensor_split(algorithm.parts(len(order), len(batch.mask), batch.state is not None)):
            importance = None
            if sizes is not None:
                part, importance = draw_segments(sizes, len(part), progress, self.generator, algorithm)
            if len(part) and valid.flatten()[part].any():
                mine = part - self.ranks.rank * each
                yield Rows(batch, mine[(mine >= 0) & (mine < each)].to(device), importance)

    def _rows(self, batch: TimeMajorBatch, valid: Tensor, known: Advantages) -> Iterator[Rows]:
        """As `_minibatches`, of rows that are `known`."""
        many, mine = valid.sum(1), batch.mask.T.flatten().nonzero()[:, 0]
        order = torch.randperm(int(many.sum()), generator=self.generator) - int(many[: self.ranks.rank].sum())
        for part in order.tensor_split(self.algorithm.parts(valid.numel(), len(batch.mask), False)):
            if len(part):
                yield Rows(batch, mine[part[(part >= 0) & (part < len(mine))].to(mine.device)], known=known)

    def takes_apart(self, batch: TimeMajorBatch, segments: int) -> bool:
        """Whether rows of `batch`, which is of so many segments in all ranks, are trained on apart from these."""
        if not self.rows_apart or not isinstance(self.algorithm, PPO):
            return False
        return self.algorithm.shuffles(segments, len(batch.mask), batch.state is not None)

    @torch.no_grad()
    def known(self, batch: TimeMajorBatch) -> Advantages:
        """Of all rows [T, B], as they look to the policy now."""
        found = [advantages(minibatch, seen, self.algorithm) for minibatch, seen in self._looked(batch)]
        advantage = torch.cat([one.policy_advantage for one in found], 1)
        return Advantages(advantage, torch.cat([one.target for one in found], 1))

    @torch.no_grad()
    def _looked(self, batch: TimeMajorBatch) -> Iterator[tuple[Minibatch, PolicyEvaluation]]:
        """All segments, each once and in their order, and what they look like to the policy as it is."""
        every = torch.arange(batch.mask.shape[1], device=batch.mask.device)
        for index in every.tensor_split(self.algorithm.parts(len(every), len(batch.mask), batch.state is not None)):
            if len(index):
                minibatch = batch.minibatch(index, self.scratch)
                with self.arithmetic.autocast(batch.mask.device):
                    seen = evaluate(self.policy, minibatch, self.algorithm.zero_start)
                yield minibatch, seen

    @torch.no_grad()
    def _priorities(self, batch: TimeMajorBatch) -> tuple[Tensor, list[Tensor]]:
        """The sizes [B] of all segments' advantages to the policy as it is, and value targets of the real rows."""
        sizes, targets = [], []
        for minibatch, seen in self._looked(batch):
            found = loss_of(self, minibatch, seen)
            assert found.priorities is not None
            sizes.append(found.priorities)
            if found.targets is not None:
                targets.append(found.targets[minibatch.mask.bool()])
        return torch.cat(sizes), targets

    def _normalizers(self, batch: TimeMajorBatch, targets: list[Tensor]) -> None:
        """Statistics change only between updates, so that rows of the newest version have ratio 1 throughout one."""
        if self.algorithm.normalize_return and targets:
            self.policy.update_returns(torch.cat(targets).detach(), self.ranks)
        if self.algorithm.normalize_observation:
            self.policy.observe(batch.seen(), self.ranks)
            if isinstance(self.policy, CentralActorCritic) and batch.privileged is not None:
                self.policy.update_privileged(batch.privileged[:, :-1][batch.mask.T.bool()], self.ranks)


def evaluate(
    policy: ActorCritic | CentralActorCritic | StackedActorCritic, batch: Minibatch, zero_start: bool = False
) -> PolicyEvaluation:
    """One forward pass serves log-probabilities, values, bootstrap values and the values of true last observations.
    With `zero_start` a recurrent policy remembers nothing of what came before these rows."""
    shape, rows, said = batch.reward.shape, batch.reward.numel(), None
    x, recall = batch.observation, _recall(batch, zero_start)
    if isinstance(policy, StackedActorCritic):
        ahead = 0 if batch.target is not None else 1
        outputs, values, real, log_std = policy.forward(x, batch.final_place, shape[1], recall, batch.even, ahead)
    else:
        if isinstance(policy, ActorCritic) and policy.declared is not None:
            read = policy.read(policy.inputs(x), recall)
            outputs, values = policy.towers(read)
            said = {name: one.reshape(*shape, *one.shape[1:]) for name, one in policy.declared(read[:rows]).items()}
        else:
            beside = () if batch.privileged is None else (batch.privileged,)
            outputs, values = policy(policy.inputs(x), *beside, recall)
        real, log_std = policy.denormalize(values.detach()), policy.log_std
    action, amount, legal = (_rows(column, rows) for column in (batch.action, batch.amount, batch.legal))
    assert action is not None
    log_probability, uncertainty = policy.heads.log_prob_and_entropy(outputs[:, :rows], log_std, action, amount, legal)
    log_ratio = log_probability.view(shape) - batch.log_probability
    # rows that are not real have log-probability 0, which would give them an arbitrary ratio
    ratio = (log_ratio * batch.mask).clamp(max=_LARGEST_LOG_RATIO).exp()
    with torch.no_grad():
        apart = batch.target is not None
        value, next_value = (real.view(shape), torch.zeros_like(batch.reward)) if apart else _values(batch, real)
    head = values[:rows].view(shape)
    return PolicyEvaluation(
        log_probability.view(shape), uncertainty.view(shape), log_ratio, ratio, head, value, next_value, said
    )


def _recall(batch: Minibatch, zero_start: bool) -> RecurrentContext | None:
    recall = batch.recall
    if recall is None or not zero_start:
        return recall
    return recall._replace(state=torch.zeros_like(recall.state))


def _values(batch: Minibatch, real: Tensor) -> tuple[Tensor, Tensor]:
    """Of the rows and of what came after them, by values `real` [(T + 1) * b + k]."""
    shape, rows = batch.reward.shape, batch.reward.numel()
    until = rows + shape[1]
    final = torch.zeros_like(real[:until])
    final[batch.final_place] = real[until:]
    value = real[:until].view(-1, shape[1])
    return value[:-1], next_values(value, batch.terminated, batch.truncated, final[:rows].view(shape))


def _rows(column: Tensor | None, rows: int) -> Tensor | None:
    """[T, b, ...] -> [T * b, ...]."""
    return None if column is None else column.reshape(rows, *column.shape[2:])
