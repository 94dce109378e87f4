"""What an update is given: the batch of each mode, as tensors on the learner's device. What all updates keep, and what
becomes of one: metrics, or why there were none; several updates, each by itself.

In flows: updates, and a batch for each. Out flow: an outcome of each.

Legend: `B` segments or transitions, `T` segment length, `K` entries of the side table, `F` stacked frames, `P` numbers
that only learners see. Actions are as workers/policies/action_encoding.py says: `H` heads with `C` values, `D` amounts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from protocol.errors import TrainingFault
from workers.algorithms.common.adam import FlatAdam
from workers.runtime.torch_setup import FLOAT32, Precision


@dataclass(frozen=True, slots=True)
class _Segments:
    """What was seen, segment-major as it lies in the ring."""

    observation: Tensor
    """[B, T + 1, *shape]"""
    valid: Tensor
    """[B] int64: rows 0..valid-1 are real; row `valid` is what was seen after them: row 0 of the stream's next segment,
    a last observation to bootstrap from, or the last row once more. The rest is never trained on"""
    final_observation: Tensor
    """[B, K, *shape]: the true last observation of each truncated episode"""
    final_row: Tensor
    """[B, K] int64: the row it belongs to, -1 where the entry is unused"""

    @property
    def rows(self) -> int:
        """Rows that are trained on; what a short segment has behind its own is padding."""
        return int(self.valid.sum())

    @property
    def real(self) -> Tensor:
        """[B, T] bool: which rows are."""
        return torch.arange(self.observation.shape[1] - 1, device=self.valid.device) < self.valid[:, None]


@dataclass(frozen=True, slots=True)
class SegmentBatch(_Segments):
    """Whole segments of the stream mode. Row `t` holds the observation, the action taken on it, the reward and end
    *caused by that action*; row T holds only an observation."""

    action: Tensor
    """[B, T] int64, or [B, T, H]"""
    reward: Tensor
    """[B, T]"""
    terminated: Tensor
    """[B, T] bool"""
    truncated: Tensor
    """[B, T] bool"""
    log_probability: Tensor
    """[B, T] of the behaviour policy"""
    amount: Tensor | None = None
    """[B, T, D], where there are amounts"""
    legal: Tensor | None = None
    """[B, T, C] bool, where not all values are legal always"""
    state: Tensor | None = None
    """[B, S]: what a recurrent policy remembered before row 0"""
    value: Tensor | None = None
    """[B, T] of the behaviour policy, where its critic acts along"""
    outputs: Tensor | None = None
    """[B, T, C]: columns of declared outputs, side by side, as the behaviour policy said them"""
    privileged: Tensor | None = None
    """[B, T + 1, P]: what a central critic sees besides `observation`"""
    final_privileged: Tensor | None = None
    """[B, K, P]: besides `final_observation`"""
    history: Tensor | None = None
    """[B, F - 1 + T + 1, *shape], where frames are stacked: `observation` behind the rows before it"""
    stack: Tensor | None = None
    """[B, T + 1, F] int64: the rows of `history` that each row's stack consists of, newest last"""


@dataclass(frozen=True, slots=True)
class TransitionBatch:
    """Sampled n-step transitions of the replay mode."""

    observation: Tensor
    """[B, F, *shape]: newest frame last; frames before the episode's start repeat its first one"""
    action: Tensor
    """[B] int64, or [B, H]"""
    reward: Tensor
    """[B]: the discounted sum of the n (or fewer) rewards"""
    discount: Tensor
    """[B]: factor of the bootstrap value: gamma**n, with n as many rewards as were summed; 0 after a termination"""
    next_observation: Tensor
    """[B, F, *shape]: what was seen n steps later (the true last observation where the episode was truncated)"""
    amount: Tensor | None = None
    """[B, D], where there are amounts"""
    legal: Tensor | None = None
    """[B, C] bool, where not all values are legal always and it matters to the algorithm which were"""
    next_legal: Tensor | None = None
    """[B, C] bool, where not all values are legal always: those that were legal n steps later. Nobody says what was at
    the true last observation of a truncated episode: there it is what was legal in the row before it"""
    outputs: Tensor | None = None
    """[B, C]: columns of declared outputs, side by side, as the behaviour policy said them"""
    weight: Tensor | None = None
    """[B], where priorities decide what is drawn: makes up for their doing so; 1 at most"""
    noise: Tensor | None = None
    """What an update draws for its loss, where heads are noisy [3, B, numbers]: of an estimate, its target and the
    choice of the target's action; with `sac` [2, B, D]: of the amounts here and there"""
    fractions: Tensor | None = None
    """[2, N] with `iqn`, drawn too: quantile fractions of the estimate and of its target"""

    @property
    def rows(self) -> int:
        """B."""
        return len(self.action)

    @property
    def noises(self) -> tuple[Tensor | None, ...]:
        """Of estimate, target and choice [B, numbers] each; None where heads are not noisy."""
        return (None, None, None) if self.noise is None else self.noise.unbind(-3)

    def mean(self, losses: Tensor) -> Tensor:
        """The means [...] of `losses` [..., B], each times its `weight` [..., B], if there are weights (Schaul et al.
        2016, section 3.4)."""
        return (losses if self.weight is None else losses * self.weight).mean(-1)


@dataclass(frozen=True, slots=True)
class SequenceBatch(_Segments):
    """Sampled segments of the replay mode, for who remembers. Rows beyond `valid` are zeros, but for `valid` itself."""

    action: Tensor
    """[B, T] int64"""
    reward: Tensor
    """[B, T]"""
    terminated: Tensor
    """[B, T] bool"""
    truncated: Tensor
    """[B, T] bool, and not terminated"""
    state: Tensor
    """[B, S]: what was remembered before row 0"""
    legal: Tensor | None = None
    """[B, T + 1, C] bool, where not all values are legal always"""
    fractions: Tensor | None = None
    """[2, N]: as in `TransitionBatch`"""

    def mean(self, losses: Tensor) -> Tensor:
        """The mean of `losses` [n], of those rows that are trained on."""
        return losses.mean()


@dataclass(frozen=True, slots=True)
class ObservationBatch(_Segments):
    """What others saw, for an auxiliary: `SegmentBatch` without what was done and earned."""


Replay = TransitionBatch | SequenceBatch
ReplayT = TypeVar("ReplayT", bound=Replay)
Learnable = SegmentBatch | Replay | ObservationBatch
Batch = TypeVar("Batch", SegmentBatch, TransitionBatch)


def concatenate(given: Sequence[Batch], join: Callable[[list[Tensor]], Tensor]) -> Batch:
    """The batches of several policies of one kind as one, each field by `join`."""
    columns = {field.name: [getattr(one, field.name) for one in given] for field in fields(given[0])}
    whole: dict[str, Any] = {name: None if column[0] is None else join(column) for name, column in columns.items()}
    return type(given[0])(**whole)


def copy_into(memory: Batch, batch: Batch) -> bool:
    """Copies `batch` over what is in `memory`, if all fields are of the same shape and type; whether they are."""
    pairs = [(getattr(memory, field.name), getattr(batch, field.name)) for field in fields(memory)]
    for mine, other in pairs:
        if (mine is None) != (other is None):
            return False
        if mine is not None and (mine.shape != other.shape or mine.dtype != other.dtype):
            return False
    for mine, other in pairs:
        if mine is not None:
            mine.copy_(other)
    return True


def non_tensor_field(batch: Learnable) -> TrainingFault | None:
    """What to say of the first field that is no tensor."""
    for field in fields(batch):
        given = getattr(batch, field.name)
        if not (isinstance(given, Tensor) or (given is None and field.default is None)):
            found = f"{type(given).__module__}.{type(given).__name__}"
            return TrainingFault("batch_not_tensors", field=field.name, value=found)
    return None


Outcome = dict[str, float] | TrainingFault
"""Metrics of an update, or why there was none."""
Given = TypeVar("Given", contravariant=True)


class Update(Protocol[Given]):
    """What makes an update of a batch."""

    def update(self, given: Given, progress: float, /) -> dict[str, float]:
        """Metrics; TrainingFault where there are none."""


def update_each(updates: Sequence[Update[Given]], given: Sequence[Given], progress: Sequence[float]) -> list[Outcome]:
    """Each update by itself."""
    outcomes: list[Outcome] = []
    for update, batch, part in zip(updates, given, progress, strict=True):
        try:
            outcomes.append(update.update(batch, part))
        except TrainingFault as fault:
            outcomes.append(fault)
    return outcomes


class Resumable:
    """What goes on after a restart as if there had been none."""

    arithmetic: Precision = FLOAT32
    optimizer: FlatAdam
    generator: torch.Generator
    """What an update draws by."""

    @property
    def train_steps(self) -> int:
        """Optimiser steps so far."""
        return self.optimizer.steps

    def state(self) -> dict[str, Tensor]:
        """Optimiser moments, step count and random state, in host memory: with the weights all that a resume needs."""
        return {**self.optimizer.state(), "generator": self.generator.get_state()}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Takes over what `state` gave."""
        self.optimizer.load_state(state)
        self.generator.set_state(state["generator"])
