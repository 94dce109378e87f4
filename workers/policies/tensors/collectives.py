"""What the processes that train one policy together (its ranks) have in common, as their arithmetic sees it.

In flow: a tensor of each rank. Out flow: on every rank the same: their sum, or all of them. A policy that one process
trains is `SINGLE_PROCESS`, which costs nothing. How tensors travel is the affair of
workers/learning/distributed/process_group.py.

Legend: `R` ranks.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Collective(Protocol):
    """All ranks call the same methods in the same order, with tensors of the same shape."""

    @property
    def size(self) -> int:
        """R."""

    @property
    def rank(self) -> int:
        """Which of them this one is: 0..R-1."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of every rank's `x`, which may be changed in place."""

    def gather(self, x: Tensor) -> Tensor:
        """[R, *shape]: the `x` of each."""


class _Alone:
    """The one rank of a policy that has no others."""

    size, rank = 1, 0

    def all_reduce(self, x: Tensor) -> Tensor:
        """`x` itself."""
        return x

    def gather(self, x: Tensor) -> Tensor:
        """[1, *shape]"""
        return x[None]


SINGLE_PROCESS: Collective = _Alone()


def merged_moments(rows: Tensor, ranks: Collective) -> tuple[int, Tensor, Tensor]:
    """How many rows [N, *features] all ranks have, and their mean and variance [*features] in float64, from those of
    each by the parallel formula (Chan, Golub & LeVeque 1979)."""
    count = len(rows)
    if ranks.size == 1:
        variance, mean = (moment.double() for moment in torch.var_mean(rows, 0, correction=0))
        return count, mean, variance
    nothing = torch.zeros(rows.shape[1:], dtype=torch.float64, device=rows.device)
    variance, mean = torch.var_mean(rows.double(), 0, correction=0) if count else (nothing, nothing)
    each = ranks.gather(torch.stack([torch.full_like(nothing, count), mean, variance]))
    counts, means, variances = each.unbind(1)
    total = counts.sum(0)
    mean = (counts * means).sum(0) / total
    variance = (counts * (variances + (means - mean).square())).sum(0) / total
    return int(total.flatten()[0]), mean, variance
