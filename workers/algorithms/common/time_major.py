"""From segments as they lie in the ring to what a whole-segment update works on: time first, and nothing unreal in it.

In flow: `SegmentBatch`, whose rows beyond `valid` may hold anything. Out flow: a `TimeMajorBatch` that is finite
wherever the segments' real rows are, with a mask, and minibatches of it.

Legend: `T` segment length, `B` segments of the batch, `b` of a minibatch, `k` truncations in a minibatch, `P` numbers
that only learners see, `R` ranks. Actions are as workers/policies/action_encoding.py says: `H` heads with `C` values,
`D` amounts.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from protocol.errors import TrainingFault
from workers.algorithms.common.batches import SegmentBatch
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.tensors.collectives import Collective
from workers.policies.tensors.scratch import ScratchBuffers


class Advantages(NamedTuple):
    """Of rows [T, b], without gradients."""

    advantage: Tensor
    """[T, b]: as an objective needs it that weighs it by the ratio itself; of a minibatch with mean 0 and deviation 1,
    and times the importance of its segment, where the configuration says so"""
    target: Tensor
    """[T, b]: what the values should be, in the unit of the reward"""
    priority: Tensor | None = None
    """[b]: the sizes of each segment's advantages, summed, where segments are drawn by them"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segments:
    """Whole segments, time first; of an update B for b."""

    action: Tensor
    """[T, b] int64, or [T, b, H]"""
    reward: Tensor
    """[T, b]"""
    terminated: Tensor
    """[T, b] bool"""
    truncated: Tensor
    """[T, b] bool"""
    log_probability: Tensor
    """[T, b]"""
    cut: Tensor
    """[T, b] bool: nothing flows back over this row, because the episode or the segment ends with it"""
    mask: Tensor
    """[T, b] float32: 1 for rows to train on, 0 for the rest"""
    amount: Tensor | None
    """[T, b, D], where actions have amounts"""
    legal: Tensor | None
    """[T, b, C] bool, where not all values are legal always"""
    state: Tensor | None
    """[b, S], where the policy is recurrent"""
    value: Tensor | None
    """[T, b] of the behaviour, where that is known"""
    outputs: Tensor | None
    """[T, b, C] of the behaviour: columns of declared outputs, side by side"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Minibatch(_Segments):
    """Some segments of an update."""

    observation: Tensor
    """[(T + 1) * b + k, *shape]: row t of segment i at t * b + i, then the true last observations; [..., F, *shape]
    where frames are stacked"""
    final_place: Tensor
    """[k] int64: place t * b + i of the row that each true last observation belongs to"""
    privileged: Tensor | None = None
    """[(T + 1) * b + k, P]: what a central critic sees besides `observation`"""
    importance: Tensor | None = None
    """[b], where segments were drawn by priority"""
    advantage: Tensor | None = None
    """[1, b], where these are rows apart from their segments, each by itself: no observations but their own are here"""
    target: Tensor | None = None
    """[1, b]: what their values should be"""
    members: int = 1
    """Policies of which these are, each as many segments as the next, side by side"""
    even: bool = False
    """Whether there are equally many true last observations of each segment, one segment's after another's. Places of
    those that are none are in row T"""
    runs: int = 0
    """That there are at most (workers/policies/networks/recurrent.py), where shapes must not change; 0: nobody counted
    them
    """

    def mean(self, x: Tensor) -> Tensor:
        """The mean of `x` [T, b] over the rows to train on."""
        return (x * self.mask).sum() / self.mask.sum()

    @property
    def recall(self) -> RecurrentContext | None:
        """How a recurrent policy remembers these rows."""
        if self.state is None:
            return None
        return RecurrentContext(self.state, self.terminated | self.truncated, self.final_place, self.runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeMajorBatch(_Segments):
    """All segments of an update."""

    observation: Tensor
    """[B, T + 1, *shape], or with rows before the first, where frames are stacked"""
    final_observation: Tensor
    """[B, K, *shape]"""
    final_row: Tensor
    """[B, K] int64: -1 where unused"""
    privileged: Tensor | None
    """[B, T + 1, P]"""
    final_privileged: Tensor | None
    """[B, K, P]"""
    rows: int
    """Rows to train on."""
    finals: int
    """Entries of the side table that a segment uses at most."""
    stack: Tensor | None = None
    """[B, T + 1, F] int64: the rows of `observation` that each row's stack consists of, newest last"""

    def seen(self) -> Tensor:
        """[rows, *shape], or [rows, F, *shape]: what the policy saw in the rows to train on."""
        real = self.mask.T.bool()
        if self.stack is None:
            return self.observation[:, :-1][real]
        segment = torch.arange(len(real), device=real.device)[:, None, None]
        return self.observation[segment.expand_as(self.stack[:, :-1])[real], self.stack[:, :-1][real]]

    def minibatch(
        self, index: Tensor, scratch: ScratchBuffers, importance: Tensor | None = None, members: int = 1
    ) -> Minibatch:
        """The segments `index` [b] int64 of `members` policies, drawn with `importance` [b]; their observations lie in
        `scratch`."""
        rows = len(self.mask) + 1
        places = (index * rows + torch.arange(rows, device=index.device)[:, None]).flatten()
        final_row = self.final_row.index_select(0, index)
        segment, entry = (final_row >= 0).nonzero(as_tuple=True)
        finals = index[segment], entry

        observation, privileged = self._gathered(places, finals, scratch)
        more = {"privileged": privileged, "importance": importance}
        return self.chosen(index, observation, final_row[segment, entry] * len(index) + segment, members, **more)

    def apart(
        self, index: Tensor, known: Advantages, scratch: ScratchBuffers | None = None, members: int = 1
    ) -> Minibatch:
        """The rows `index` [n] int64, i * T + t for row t of segment i, of `members` policies, apart from their
        segments, and what is `known` of all rows [T, B]; their observations lie in `scratch`, if there is any."""
        segment, row = index // len(self.mask), index % len(self.mask)
        at, places = row * self.mask.shape[1] + segment, index + segment
        if scratch is None:
            observation, privileged = self.observation.flatten(0, 1).index_select(0, places), None
        else:
            none = segment[:0]
            observation, privileged = self._gathered(places, (none, none), scratch)

        def chosen(column: Tensor | None) -> Tensor | None:
            return None if column is None else column.flatten(0, 1).index_select(0, at)[None]

        given: dict[str, Any] = {field.name: chosen(getattr(self, field.name)) for field in _BY_ROW}
        given |= {"advantage": chosen(known.advantage), "target": chosen(known.target), "privileged": privileged}
        return Minibatch(
            **given, state=None, observation=observation, final_place=index[:0], members=members, even=True
        )

    def _gathered(
        self, places: Tensor, finals: tuple[Tensor, Tensor], scratch: ScratchBuffers
    ) -> tuple[Tensor, Tensor | None]:
        """Observations of rows `places` [n], counted through all segments, and behind them those of entries `finals`
        [k] of the side table; and what only a critic sees of these."""

        def seen(name: str) -> Tensor | None:
            whole, final = getattr(self, name), getattr(self, f"final_{name}")
            if whole is None:
                return None
            gathered = scratch.take(name, (len(places) + len(finals[0]), *whole.shape[2:]), whole)
            torch.index_select(whole.flatten(0, 1), 0, places, out=gathered[: len(places)])
            gathered[len(places) :] = final[finals]
            return gathered

        observation = seen("observation") if self.stack is None else self._stacked(places, finals, scratch)
        assert observation is not None
        return observation, seen("privileged")

    def _stacked(self, places: Tensor, finals: tuple[Tensor, Tensor], scratch: ScratchBuffers) -> Tensor:
        """Rows `places` [n], counted through all segments, and entries `finals` [k] of the side table, stacked."""
        assert self.stack is not None
        stack, each, (segment, entry) = self.stack.flatten(0, 1), self.stack.shape[1], finals
        last = stack[segment * each + self.final_row[segment, entry]]
        rows = torch.cat([stack[places], torch.cat([last[:, 1:], last[:, -1:]], 1)])
        rows += torch.cat([places // each, segment])[:, None] * self.observation.shape[1]
        gathered = scratch.take("observation", (*rows.shape, *self.observation.shape[2:]), self.observation)
        torch.index_select(self.observation.flatten(0, 1), 0, rows.flatten(), out=gathered.flatten(0, 1))
        gathered[len(places) :, -1] = self.final_observation[finals]
        return gathered

    def chosen(
        self, index: Tensor, observation: Tensor, final_place: Tensor, members: int, **more: Tensor | None
    ) -> Minibatch:
        """The segments `index` [b] int64, whose observations were gathered; `more` as in `Minibatch`."""
        columns = {field.name: getattr(self, field.name) for field in fields(_Segments)}
        given: dict[str, Any] = {
            name: None if one is None else one.index_select(0 if name == "state" else 1, index)
            for name, one in columns.items()
        }
        given |= {"observation": observation, "final_place": final_place, "members": members, **more}
        return Minibatch(**given)


@dataclass(frozen=True, slots=True)
class Rows:
    """Which rows of a batch a minibatch consists of."""

    batch: TimeMajorBatch
    index: Tensor
    """[b] int64: segments; [n]: rows apart from them, where what is `known` of all is given. Empty: one of which
    nothing counts"""
    importance: Tensor | None = None
    """[b], where segments were drawn by priority"""
    known: Advantages | None = None

    def gathered(self, scratch: ScratchBuffers) -> Minibatch:
        """They themselves; observations lie in `scratch`."""
        batch, index = self.batch, self.index if len(self.index) else self.index.new_zeros(1)
        if self.known is None:
            minibatch = batch.minibatch(index, scratch, self.importance)
        else:
            minibatch = batch.apart(index, self.known, scratch)
        return minibatch if len(self.index) else replace(minibatch, mask=torch.zeros_like(minibatch.mask))

    def halves(self) -> list[Rows]:
        """Two that are as equal as can be."""
        importances = (None, None) if self.importance is None else self.importance.tensor_split(2)
        pairs = zip(self.index.tensor_split(2), importances, strict=True)
        return [replace(self, index=index, importance=importance) for index, importance in pairs]


_BY_ROW = [field for field in fields(_Segments) if field.name != "state"]
_AS_THEY_ARE = ("action", "reward", "terminated", "log_probability", "amount", "legal", "value", "outputs")


def to_time_major(segments: SegmentBatch) -> TimeMajorBatch:
    """The batch of `segments`. Raises TrainingFault for a truncated row without its true last observation."""
    length = segments.action.shape[1]
    row = torch.arange(length, device=segments.valid.device)
    real = row < segments.valid[:, None]
    truncated = segments.truncated & ~segments.terminated & real
    final_row, used = _used(segments, truncated)
    each = used.sum(1)
    numbers = torch.stack([real.sum(), each.sum(), each.amax(), truncated.sum()])
    count, carried, finals, due = numbers.tolist()  # a device is waited for once
    if count < real.numel():
        segments = _zero_padding(segments, real)
    if carried < due:
        raise TrainingFault("true_last_observation_missing")
    last = row >= segments.valid[:, None] - 1
    columns = {name: getattr(segments, name) for name in _AS_THEY_ARE}
    columns |= {"truncated": truncated, "cut": segments.terminated | truncated | last, "mask": real.to(torch.float32)}
    given: dict[str, Any] = {
        name: None if one is None else one.transpose(0, 1).contiguous() for name, one in columns.items()
    }
    return TimeMajorBatch(
        observation=segments.observation if segments.history is None else segments.history,
        final_observation=segments.final_observation,
        final_row=final_row,
        **given,
        state=segments.state,
        privileged=segments.privileged,
        final_privileged=segments.final_privileged,
        rows=count,
        finals=finals,
        stack=segments.stack,
    )


def prepare_all(segments: SegmentBatch, ranks: Collective) -> tuple[TimeMajorBatch, Tensor]:
    """This rank's batch, and the real rows [R, B] of all ranks' segments, in host memory where there are several. If
    any rank's is at fault, all raise TrainingFault."""
    if ranks.size == 1:
        return to_time_major(segments), segments.valid[None]
    batch, fault, valid = None, None, segments.valid
    try:
        batch = to_time_major(segments)
    except TrainingFault as found:
        fault, valid = found, torch.full_like(valid, -1)
    whole = ranks.gather(valid).cpu()
    refused = (whole.amin(1) < 0).nonzero().flatten().tolist()
    if batch is None or refused:
        raise fault or TrainingFault("rank_refused_batch", rank=refused[0])
    return batch, whole


def _used(segments: SegmentBatch, truncated: Tensor) -> tuple[Tensor, Tensor]:
    """`final_row` with -1 for every entry that belongs to no truncated real row, and which are the others [B, K]."""
    final_row = segments.final_row
    length = truncated.shape[1]
    inside = (final_row >= 0) & (final_row < length)
    inside &= truncated.gather(1, final_row.clamp(0, length - 1))
    return torch.where(inside, final_row, -1), inside


def _zero_padding(segments: SegmentBatch, real: Tensor) -> SegmentBatch:
    """Zeros in all rows that are not real: a NaN there would reach every gradient in spite of a mask."""
    shown = torch.arange(real.shape[1] + 1, device=real.device) <= segments.valid[:, None]
    shown &= (segments.valid > 0)[:, None]
    whole = segments.observation if segments.history is None else segments.history
    before = whole.shape[1] - shown.shape[1]
    whole = _filled(whole, ~pad(shown, (before, 0), value=True) | (segments.valid == 0)[:, None], 0)
    unreal = {**dict.fromkeys((*_AS_THEY_ARE, "truncated"), ~real), "privileged": ~shown, "state": segments.valid == 0}
    columns = {name: getattr(segments, name) for name in unreal}
    filled: dict[str, Any] = {
        name: None if column is None else _filled(column, unreal[name], name == "legal")
        for name, column in columns.items()
    }
    history = None if segments.history is None else whole
    return replace(segments, observation=whole[:, before:], history=history, **filled)


def _filled(column: Tensor, where: Tensor, value: float) -> Tensor:
    """`column` [B, T, ...] with `value` at rows `where` [B, T], or [B]."""
    return column.masked_fill(where.view(*where.shape, *[1] * (column.dim() - where.dim())), value)
