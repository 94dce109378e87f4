"""What a policy is shown of a row: the columns of all that it may see, as one vector of numbers.

In flow: the leaves of an agent's own observations and of the common one, but for evaluation-only ones; or these alone,
which a central critic is shown besides. Out flow: arrays [..., *shape]. One box on its own is shown as it is, in its
own shape and dtype; anything else is a vector of float32, leaf after leaf: numbers as they are, each choice as many
numbers as it has values, of which one is 1 (one-hot).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Box, Leaf, Place, dtype_of
from protocol.spaces.primitive import Discrete, MultiDiscrete, Text

__all__ = ["EncodedField", "ObservationEncoding"]

MOST = 1 << 24
"""Numbers that a policy is shown at most."""
Pick = Callable[[str], NDArray]
"""column -> its rows [..., *shape of the leaf]"""


@dataclass(frozen=True, slots=True)
class EncodedField:
    """One column's place in the vector: numbers `at`..`at + width` of it."""

    column: str
    at: int
    width: int
    choices: tuple[tuple[int, int], ...] = ()
    """(first, how many) values of each element in C order, where each is shown one-hot."""

    def write(self, target: NDArray[np.float32], rows: NDArray) -> None:
        """Fills this part of `target` [..., D]; an element with none of its values is shown as zeros."""
        if not self.choices:
            target[..., self.at : self.at + self.width] = rows.reshape(*target.shape[:-1], self.width)
            return
        elements = rows.reshape(*target.shape[:-1], len(self.choices))
        at = self.at
        for element, (first, count) in enumerate(self.choices):
            values = np.arange(first, first + count)
            np.equal(elements[..., element, None], values, out=target[..., at : at + count], casting="unsafe")
            at += count


class ObservationEncoding:
    """What the policy of the agent at `place` is shown; `common` is what all agents see besides. `privileged`: what
    only learners see, instead."""

    def __init__(self, place: Place, common: Box | None = None, privileged: bool = False) -> None:
        parts: list[EncodedField] = []
        width = 0
        for leaf in place.observed.leaves:
            if leaf.evaluation_only == privileged:
                parts.append(_part(leaf, width))
                width += parts[-1].width
        if common is not None:
            parts.append(EncodedField("common", width, math.prod(common.shape)))
            width += parts[-1].width
        if not 0 < width <= MOST:
            raise ConfigurationError(
                "shown_width_out_of_range",
                agent=place.name,
                role="critic" if privileged else "policy",
                value=width,
                limit=MOST,
            )
        self.parts = tuple(parts)
        self.width = width
        leaf = place.observed.leaves[0]
        own = common is None and not privileged
        self.is_identity = own and not place.observed.nested and isinstance(leaf.space, Box)
        """Whether the one column `observation` is shown as it is."""
        self.shape: tuple[int, ...] = leaf.space.shape if self.is_identity else (width,)
        self.dtype = dtype_of(leaf.space) if self.is_identity else np.dtype(np.float32)

    def encode(self, pick: Pick, lead: tuple[int, ...]) -> NDArray:
        """Rows [*lead, *shape] of what `pick` gives for each column (`common` among them)."""
        if self.is_identity:
            return pick("observation")
        target = np.empty((*lead, self.width), np.float32)
        self.write(pick, target)
        return target

    def write(self, pick: Pick, target: NDArray[np.float32]) -> None:
        """The same into `target` [..., D], where what is shown is not plain."""
        for part in self.parts:
            part.write(target, pick(part.column))


def _part(leaf: Leaf, at: int) -> EncodedField:
    space = leaf.space
    choices: tuple[tuple[int, int], ...] = ()
    if isinstance(space, Discrete):
        choices = ((space.start, space.n),)
    elif isinstance(space, MultiDiscrete):
        first = space.start if isinstance(space.start, tuple) else (space.start,) * len(space.nvec)
        choices = tuple(zip(first, space.nvec, strict=True))
    elif isinstance(space, Text):
        choices = ((1, len(space.charset)),) * space.max_length
    width = sum(count for _, count in choices) if choices else math.prod(space.shape)
    return EncodedField(leaf.name, at, width, choices)
