"""What a policy does, as its network says it: categorical heads, one a choice, and amounts, one a number.

In flow: the leaves of an agent's actions. Out flows: columns of rows to what a policy learns from, and what a policy
chose to rows for the world.

Legend: `K` heads, `D` amounts, `C` values of all heads, `n` rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Box, Leaf, Place, RowFormat
from protocol.spaces.primitive import Discrete, MultiBinary, MultiDiscrete

MOST = 1 << 16
"""Values of one head."""
Pick = Callable[[str], NDArray]
"""column -> its rows [..., *shape of the leaf]"""


@dataclass(frozen=True)
class ActionSpec:
    """What an agent does: choices, each an index below its size, and amounts in units of half the range of a bounded
    box, 0 in its middle, or of an unbounded one as they are."""

    sizes: tuple[int, ...]
    """Values of each choice, in the order of the action's leaves"""
    amounts: int
    """How many"""
    masked: bool
    """Whether only some values are legal at a time"""


@dataclass(frozen=True, slots=True)
class _Heads:
    """A leaf that is chosen among: heads `at`."""

    leaf: Leaf
    at: slice
    start: NDArray[np.int64]
    masked: slice | None
    """Which of all heads' values its mask is about."""


@dataclass(frozen=True, slots=True)
class _Amounts:
    """A leaf of numbers: amounts `at`."""

    leaf: Leaf
    at: slice
    scale: NDArray[np.float32]
    middle: NDArray[np.float32]
    low: NDArray[np.float32]
    high: NDArray[np.float32]
    """Of the space; NaN where it has no bound."""


class ActionEncoding:
    """The actions of the agent at `place`. `sizes`: values of each head. `continuous`: how many numbers.

    A policy chooses an index below its size for each head, [n] for the only one of an agent that does nothing else and
    [n, K] otherwise, and amounts [n, D] float32 in units of half the range of a bounded box, 0 in its middle; those of
    an unbounded one are what the world gets. Worlds get amounts cut to their bounds; rows hold what was chosen. Amounts
    that are squashed into (-1, 1) are never cut: rows hold what the world got.
    """

    def __init__(self, place: Place) -> None:
        self.record: RowFormat = place.acted
        self.head_sizes: tuple[int, ...] = ()
        self.continuous = 0
        self.masked = place.masked is not None
        """Whether only some values are legal at a time."""
        self._heads: list[_Heads] = []
        self._amounts: list[_Amounts] = []
        for leaf in place.acted.leaves:
            if math.prod(leaf.space.shape) == 0:
                raise ConfigurationError(
                    "action_leaf_without_elements", agent=place.name, field=leaf.name, space=leaf.space.kind
                )
            if isinstance(leaf.space, Box) and leaf.space.dtype.startswith("float"):
                self._add_amounts(leaf, leaf.space)
            else:
                self._add_heads(leaf, place)

    @property
    def spec(self) -> ActionSpec:
        """What modules of the user's own are told of it."""
        return ActionSpec(self.head_sizes, self.continuous, self.masked)

    @cached_property
    def single(self) -> bool:
        """Whether there is one choice and nothing else."""
        return len(self.head_sizes) == 1 and not self.continuous

    def order(self, parts: bool | Sequence[str] | None) -> tuple[int, ...]:
        """The heads in the order of these `parts`, or, for true, of all as they are; empty where nothing was said.
        ConfigurationError unless each is there once, and something sees another."""
        if not parts:
            return ()
        there = {part.leaf.name.removeprefix("action."): range(part.at.start, part.at.stop) for part in self._heads}
        given = list(there) if parts is True else list(parts)
        found = tuple(head for name in given for head in there.get(name, ()))
        if sorted(given) != sorted(there) or len(found) + bool(self.continuous) < 2:
            facts = {"value": given, "choices": list(there), "key": "policy.network.autoregressive"}
            raise ConfigurationError("autoregressive_unfit", **facts, count=self.continuous)
        return found

    @cached_property
    def plain(self) -> bool:
        """Whether the column `action` is the index itself."""
        return (
            self.single
            and not self.record.nested
            and (self.record.dtype, self.record.shape) == (np.dtype(np.int64), ())
            and not self._heads[0].start.any()
        )

    @cached_property
    def bounded(self) -> bool:
        """Whether all amounts have room between two bounds."""
        return all(bool((part.high > part.low).all()) for part in self._amounts)

    def encode_choices(self, pick: Pick, lead: tuple[int, ...]) -> NDArray[np.int64]:
        """[*lead] or [*lead, K]: the indices of the actions in columns that `pick` gives."""
        if self.plain:
            return pick("action")
        found = np.empty((*lead, len(self.head_sizes)), np.int64)
        for part in self._heads:
            values = pick(part.leaf.name).reshape(*lead, len(part.start))
            np.subtract(values, part.start, out=found[..., part.at], casting="unsafe")
        return found[..., 0] if self.single else found

    def amount(self, pick: Pick, lead: tuple[int, ...]) -> NDArray[np.float32]:
        """[*lead, D]: the amounts of the actions in columns that `pick` gives."""
        found = np.empty((*lead, self.continuous), np.float32)
        for part in self._amounts:
            found[..., part.at] = (pick(part.leaf.name).reshape(*lead, len(part.scale)) - part.middle) / part.scale
        return found

    def legal(self, pick: Pick, lead: tuple[int, ...]) -> NDArray[np.bool_]:
        """[*lead, C]: which values are legal, of masks in columns `action_mask...`; all where a leaf has none."""
        found = np.ones((*lead, sum(self.head_sizes)), np.bool_)
        for part in self._heads:
            if part.masked is not None:
                found[..., part.masked] = pick(part.leaf.name.replace("action", "action_mask", 1))
        return found

    def decode(
        self, index: NDArray[np.int64], amount: NDArray[np.float32] | None
    ) -> tuple[dict[str, NDArray], NDArray]:
        """column -> what was chosen, [n, *shape], and rows [n] of `Place.acted` for the world."""
        if self.plain:
            return {"action": index}, index
        world = self.record.zeros(len(index))
        targets = {leaf.name: target for leaf, target in self.record.parts(world)}
        columns = dict(targets)
        heads = index.reshape(len(index), len(self.head_sizes))
        for part in self._heads:
            target = targets[part.leaf.name]
            target[...] = (heads[:, part.at] + part.start).reshape(target.shape)
        for numbers in self._amounts:
            assert amount is not None
            target = targets[numbers.leaf.name]
            chosen = amount[:, numbers.at] * numbers.scale + numbers.middle
            columns[numbers.leaf.name] = chosen.astype(target.dtype).reshape(target.shape)
            target[...] = np.fmin(np.fmax(chosen, numbers.low), numbers.high).reshape(target.shape)
        return columns, world

    def describe(self) -> list[dict[str, Any]]:
        """The columns in the order of the network's outputs, as plain data: heads with `sizes` and `start` of each of
        their elements and whether a mask comes along, then numbers with `scale`, `middle` and bounds."""
        heads = [
            {
                "column": part.leaf.name,
                "sizes": list(self.head_sizes[part.at]),
                "start": part.start.tolist(),
                "masked": part.masked is not None,
            }
            for part in self._heads
        ]
        numbers = [
            {
                "column": part.leaf.name,
                "scale": part.scale.tolist(),
                "middle": part.middle.tolist(),
                "low": [None if np.isnan(one) else float(one) for one in part.low],
                "high": [None if np.isnan(one) else float(one) for one in part.high],
            }
            for part in self._amounts
        ]
        return [*heads, *numbers]

    def _add_amounts(self, leaf: Leaf, space: Box) -> None:
        low, high = (_bounds(bound, space) for bound in (space.low, space.high))
        bounded = high > low  # neither is missing
        scale = np.where(bounded, high / 2 - low / 2, 1.0).astype(np.float32)
        middle = np.where(bounded, high / 2 + low / 2, 0.0).astype(np.float32)
        at = slice(self.continuous, self.continuous + space.size)
        self._amounts.append(_Amounts(leaf, at, scale, middle, low.astype(np.float32), high.astype(np.float32)))
        self.continuous += space.size

    def _add_heads(self, leaf: Leaf, place: Place) -> None:
        sizes, starts = _choices(leaf, place)
        masked = None
        if self.masked and isinstance(leaf.space, Discrete | MultiDiscrete):
            masked = slice(sum(self.head_sizes), sum(self.head_sizes) + sum(sizes))
        at = slice(len(self.head_sizes), len(self.head_sizes) + len(sizes))
        self._heads.append(_Heads(leaf, at, np.array(starts, np.int64), masked))
        self.head_sizes += sizes


def _choices(leaf: Leaf, place: Place) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes and first values of the heads of a leaf that is chosen among; ConfigurationError if it cannot be."""
    space = leaf.space
    sizes: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()
    if isinstance(space, Discrete):
        sizes, starts = (space.n,), (space.start,)
    elif isinstance(space, MultiDiscrete):
        sizes = space.nvec
        starts = space.start if isinstance(space.start, tuple) else (space.start,) * len(sizes)
    elif isinstance(space, MultiBinary):
        count = math.prod(space.shape)
        sizes, starts = (2,) * count, (0,) * count
    elif isinstance(space, Box):  # of whole numbers, which are always bounded
        low, high = (_bounds(bound, space) for bound in (space.low, space.high))
        sizes = tuple(int(count) for count in high - low + 1)
        starts = tuple(int(first) for first in low)
    if not sizes or max(sizes) > MOST:
        of = f" of {max(sizes)} values" if sizes else ""
        facts = {"agent": place.name, "field": leaf.name, "space": f"{space.kind}{of}", "limit": MOST}
        raise ConfigurationError("action_space_not_learnable", **facts)
    return sizes, starts


def _bounds(bound: Any, space: Box) -> NDArray[np.float64]:
    """[size] of a bound of `space`, NaN where there is none."""
    given = bound if isinstance(bound, tuple) else [bound] * space.size
    return np.array([np.nan if one is None else one for one in given], np.float64)
