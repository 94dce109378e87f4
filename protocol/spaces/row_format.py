"""The columns of an agent's rows, and how values of a space are held in arrays, one row each: a leaf as itself,
a nested space as a structured array.

In flow: the leaves of one role. Out flow: dtype and shape of a row, and the leaves' own arrays within it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.spaces.composite import LeafSpace
from protocol.spaces.primitive import dtype_of

Role = Literal["observation", "common", "action_mask", "action"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One column of an agent's rows, [S, R, *space.shape]. `name` begins with `role`; dots divide its parts.

    `evaluation_only`: for learners, not for acting policies. `owner`: whose it is, once for each copy of the world: a
    population's (its path; "" is the outermost) if `role` is `common`, otherwise the agent's.
    """

    name: str
    role: Role
    path: tuple[str | int, ...]
    space: LeafSpace
    evaluation_only: bool
    owner: str

    @property
    def common(self) -> bool:
        """Is it the same for all agents of `owner`, and stored once?"""
        return self.role == "common"


@dataclass(frozen=True)
class RowFormat:
    """Rows of what an agent sees, does or may do: [n, *shape] of `dtype`.

    The only leaf of a space that is not nested is held as itself. Otherwise `shape` is () and `dtype` is structured,
    with a field for each leaf, called by the leaf's name after the first dot (`camera`, `arm.joints`).
    """

    leaves: tuple[Leaf, ...]

    @classmethod
    def of(cls, leaves: Sequence[Leaf]) -> RowFormat:
        """The record of leaves of one role and one owner."""
        return cls(tuple(leaves))

    @cached_property
    def nested(self) -> bool:
        """Whether rows are structured."""
        return not (len(self.leaves) == 1 and "." not in self.leaves[0].name)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Of one row."""
        return () if self.nested else tuple(self.leaves[0].space.shape)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Of the array."""
        if not self.nested:
            return dtype_of(self.leaves[0].space)
        return np.dtype([(field_of(leaf), leaf.space.dtype, tuple(leaf.space.shape)) for leaf in self.leaves])

    def zeros(self, rows: int) -> NDArray[Any]:
        """[rows, *shape] of zeros."""
        return np.zeros((rows, *self.shape), self.dtype)

    def parts(self, array: NDArray[Any]) -> Iterator[tuple[Leaf, NDArray[Any]]]:
        """The leaves and their own arrays, [..., *leaf.space.shape], as views on `array`."""
        for leaf in self.leaves:
            yield leaf, array[field_of(leaf)] if self.nested else array


def nbytes(record: RowFormat | None) -> int:
    """Of one row; 0 where there is none."""
    return 0 if record is None else record.dtype.itemsize * math.prod(record.shape)


def field_of(leaf: Leaf) -> str:
    """What a leaf of a nested space is called within its record."""
    return leaf.name.partition(".")[2]
