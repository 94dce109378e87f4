"""A batch in memory that never moves, of which minibatches are taken without a number that the host must see; and
numbers of the host that the device is given before, in one copy that nobody waits for.

In flow: a `TimeMajorBatch`. Out flow: `Minibatch`es with all entries of the side tables, used or not: those that are
not belong to a row that nobody reads.

Legend: `T` segment length, `B` segments of the batch, `b` of a minibatch, `F` entries of a segment's side table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from workers.algorithms.common.time_major import Minibatch, TimeMajorBatch

_FINALS = ("final_row", "final_observation", "final_privileged")
_LEAST = 4
"""Entries of a segment's side table that there is room for at least; where that is not enough, four times as many."""


class StaticBatch:
    """Memory for batches like `alike` of `members` policies. An entry of the side table costs as much as a row, used or
    not: there is room for the entries that `alike` uses, rounded up, and what has more does not fit. Unless `grows`,
    there is room for all."""

    def __init__(self, alike: TimeMajorBatch, members: int, grows: bool = True) -> None:
        self._members = members
        most, room = alike.final_row.shape[1], _LEAST
        while grows and room < alike.finals:
            room *= 4
        self._finals = min(room, most) if grows else most
        held: dict[str, Any] = {name: value.clone() for name, value in self._tensors(alike).items()}
        self.batch = replace(alike, **held)
        self._time = torch.arange(alike.observation.shape[1], device=alike.mask.device)[:, None]

    def fits(self, batch: TimeMajorBatch) -> bool:
        """Whether `batch` can be loaded."""
        if batch.finals > self._finals:
            return False
        for field in fields(TimeMajorBatch):
            mine, other = getattr(self.batch, field.name), getattr(batch, field.name)
            if isinstance(mine, Tensor) != isinstance(other, Tensor):
                return False
            axis = 2 if field.name in _FINALS else 0
            if isinstance(mine, Tensor) and (mine.shape[axis:] != other.shape[axis:] or mine.dtype != other.dtype):
                return False
        return True

    def load(self, batch: TimeMajorBatch) -> None:
        """Takes `batch` over. What nobody wrote in a side table becomes 0: a NaN there would reach every gradient."""
        given = self._tensors(batch)
        unused = given["final_row"] < 0
        for name, other in given.items():
            mine = getattr(self.batch, name)
            mine.copy_(other)
            if name in ("final_observation", "final_privileged"):
                mine.masked_fill_(unused.view(*unused.shape, *[1] * (mine.dim() - 2)), 0)
        self.batch = replace(self.batch, rows=batch.rows)

    def _tensors(self, batch: TimeMajorBatch) -> dict[str, Tensor]:
        """Those of `batch`; of its side table the entries that are in use, and as many others as there is room for."""
        given = {field.name: getattr(batch, field.name) for field in fields(TimeMajorBatch)}
        given = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        if self._finals < batch.final_row.shape[1]:
            first = (batch.final_row >= 0).sort(dim=1, descending=True, stable=True).indices[:, : self._finals]
            for name in given.keys() & _FINALS:
                index = first.view(*first.shape, *[1] * (given[name].dim() - 2))
                given[name] = torch.take_along_dim(given[name], index, 1)
        return given

    def minibatch(self, index: Tensor, runs: int = 0) -> Minibatch:
        """The segments `index` [b] int64, of each policy equally many, with at most so many `runs`, if not 0."""
        batch, width = self.batch, len(index)
        places = (index * len(self._time) + self._time).flatten()
        row = batch.final_row.index_select(0, index)
        # entries that are not used belong to row T, which ends nothing
        row = torch.where(row < 0, len(self._time) - 1, row)
        seen = batch.observation.flatten(0, 1).index_select(0, places)
        finals = batch.final_observation.index_select(0, index).flatten(0, 1)
        place = (row * width + torch.arange(width, device=index.device)[:, None]).flatten()
        return replace(batch.chosen(index, torch.cat([seen, finals]), place, self._members), even=True, runs=runs)


class HostScalars:
    """`rows` numbers for each of `many` policies."""

    def __init__(self, rows: int, many: int, device: torch.device) -> None:
        self._here = torch.zeros(rows, many, dtype=torch.float64, pin_memory=device.type == "cuda")
        self._there = torch.zeros(rows, many, dtype=torch.float64, device=device)

    def upload(self, *rows: Sequence[float]) -> Tensor:
        """[rows, many] float64 on the device, which must be done with what it was given before."""
        self._here.copy_(torch.tensor(rows, dtype=torch.float64))
        return self._there.copy_(self._here, non_blocking=True)
