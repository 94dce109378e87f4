"""What a policy is shown of a row: the columns of all that it may see, as one vector of numbers or each as it is.

In flow: the leaves of an agent's own observations and of the common one, but for evaluation-only ones; or these alone,
which a central critic is shown besides. Out flow: arrays [..., *shape]. One box on its own is shown as it is, in its
own shape and dtype; anything else is a vector of float32, leaf after leaf: numbers as they are, each choice as many
numbers as it has values, of which one is 1 (one-hot). To a policy with an encoder nothing is flattened: one leaf on its
own is shown as it is, several side by side as bytes, each in its own dtype, which the encoder takes apart again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Box, Leaf, Place, dtype_of
from protocol.spaces.composite import LeafSpace
from protocol.spaces.primitive import Discrete, MultiDiscrete, Text
from protocol.spaces.row_format import field_of

MOST = 1 << 24
"""Numbers that a policy is shown at most."""
ALIGNMENT = 8
"""Bytes at whose multiples leaves lie that are shown side by side: any dtype can be seen there."""
_SMALLEST = 3
"""Pixels of the shorter side of what is taken for an image."""
Pick = Callable[[str], NDArray]
"""column -> its rows [..., *shape of the leaf]"""


@dataclass(frozen=True, slots=True)
class EncodedField:
    """One column's place in the vector: numbers `at`..`at + width` of it. `path`: what an encoder calls it."""

    column: str
    at: int
    width: int
    path: str
    space: LeafSpace
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
    only learners see, instead. `by_leaf`: to an encoder."""

    def __init__(
        self, place: Place, common: Box | None = None, privileged: bool = False, by_leaf: bool = False
    ) -> None:
        parts: list[EncodedField] = []
        width = 0
        for leaf in place.observed.leaves:
            if leaf.evaluation_only == privileged:
                parts.append(_part(leaf, width))
                width += parts[-1].width
        if common is not None:
            parts.append(EncodedField("common", width, math.prod(common.shape), "common", common))
            width += parts[-1].width
        if not 0 < width <= MOST and not (by_leaf and width):
            raise ConfigurationError(
                "shown_width_out_of_range",
                agent=place.name,
                role="critic" if privileged else "policy",
                value=width,
                limit=MOST,
            )
        self._lay_out(parts, parts[0].column == "observation" and not privileged, by_leaf)

    def _lay_out(self, parts: list[EncodedField], plain: bool, by_leaf: bool) -> None:
        """`plain`: where there is only one part, it is no part of anything."""
        self.parts = tuple(parts)
        self.width = sum(part.width for part in parts)
        space, alone = parts[0].space, plain and len(parts) == 1
        self.is_identity = alone and (by_leaf or isinstance(space, Box))
        """Whether the one column is shown as it is."""
        self.record = _record(parts) if by_leaf and not alone else None
        """How leaves lie side by side, by their paths."""
        self.shape: tuple[int, ...] = (self.width,) if self.record is None else (self.record.itemsize,)
        self.dtype = np.dtype(np.float32 if self.record is None else np.uint8)
        if self.is_identity:
            self.shape, self.dtype = tuple(space.shape), dtype_of(space)

    def of_member(self, name: str) -> ObservationEncoding:
        """What an encoder of the member `name` of a team is shown: its part of this, and what is common."""
        one, parts, at = copy(self), list[EncodedField](), 0
        plain = any(part.path == name for part in self.parts)
        for part in self.parts:
            whose, _, path = part.path.partition(".")
            if part.column == "common" or whose == name:
                path = part.path if part.column == "common" else path or "observation"
                parts.append(replace(part, path=path, at=at))
                at += part.width
        one._lay_out(parts, plain, by_leaf=True)
        return one

    def encode(self, pick: Pick, lead: tuple[int, ...]) -> NDArray:
        """Rows [*lead, *shape] of what `pick` gives for each column (`common` among them)."""
        if self.is_identity:
            return pick(self.parts[0].column)
        target = np.zeros((*lead, *self.shape), self.dtype)
        self.write(pick, target)
        return target

    def write(self, pick: Pick, target: NDArray) -> None:
        """The same into `target` [..., *shape], where what is shown is not plain."""
        leaves = self.leaves(target)
        for part in self.parts:
            if leaves:
                leaves[part.path][...] = pick(part.column)
            else:
                part.write(target, pick(part.column))

    def leaves(self, rows: NDArray) -> dict[str, NDArray]:
        """path -> its own array [..., *shape], a view on `rows` [..., *shape]; nothing where leaves do not lie side by
        side."""
        if self.record is None:
            return {}
        apart = rows.view(self.record)[..., 0]
        return {part.path: apart[part.path] for part in self.parts}

    def numbers(self, rows: NDArray) -> NDArray[np.float32]:
        """Rows [n, ..., *shape] as [n, numbers]: of a choice its value."""
        parts = [part.reshape(len(rows), -1) for part in self.leaves(rows).values() or (rows,)]
        return np.concatenate([part.astype(np.float32) for part in parts], 1)

    def checkable(self, arrays: Mapping[str, NDArray]) -> dict[str, NDArray]:
        """`arrays` of a batch with each leaf on its own, by whose dtypes numbers can be looked at."""
        return dict(self._checkable(arrays))

    def _checkable(self, arrays: Mapping[str, NDArray]) -> Iterator[tuple[str, NDArray]]:
        for name, array in arrays.items():
            leaves = self.leaves(array) if name.endswith("observation") else {}
            yield from ((f"{name}.{path}", leaf) for path, leaf in leaves.items())
            if not leaves:
                yield name, array


def _record(parts: list[EncodedField]) -> np.dtype[Any]:
    if len({part.path for part in parts}) < len(parts):
        raise ConfigurationError("encoder_part_ambiguous", field="common")
    formats = [(dtype_of(part.space), tuple(part.space.shape)) for part in parts]
    offsets, at = [], 0
    for dtype, shape in formats:
        offsets.append(at)
        at += -(-dtype.itemsize * math.prod(shape) // ALIGNMENT) * ALIGNMENT
    return np.dtype({"names": [part.path for part in parts], "formats": formats, "offsets": offsets, "itemsize": at})


def _part(leaf: Leaf, at: int) -> EncodedField:
    choices = _choices(leaf.space)
    width = sum(count for _, count in choices) if choices else math.prod(leaf.space.shape)
    return EncodedField(leaf.name, at, width, field_of(leaf) or leaf.name, leaf.space, choices)


def _choices(space: LeafSpace) -> tuple[tuple[int, int], ...]:
    if isinstance(space, Discrete | MultiDiscrete):
        return tuple(zip(np.ravel(space.span[0]).tolist(), space.sizes, strict=True))
    return ((1, len(space.charset)),) * space.max_length if isinstance(space, Text) else ()


def is_image(space: LeafSpace) -> bool:
    """Bytes or bits of two dimensions, or of three of which one is channels, with sides of three pixels or more; of
    floats those of three that go from 0 to 1, as JAX's worlds show bits and colours."""
    if not isinstance(space, Box) or len(space.shape) not in (2, 3):
        return False
    unit = space.dtype.startswith("float") and len(space.shape) == 3 and (space.low, space.high) == (0, 1)
    sides = space.shape[1:] if channels_first(space.shape) else space.shape[:2]
    return (unit or space.dtype in ("uint8", "bool")) and min(sides) >= _SMALLEST


def channels_first(shape: tuple[int, ...]) -> bool:
    """Whether an image of this shape is [channels, height, width], and not [height, width, channels]."""
    return len(shape) == 3 and shape[0] < min(shape[1:])


def holds_pixels(space: LeafSpace, frames: int = 1) -> bool:
    """An image that nobody has to say is one: bytes from 0 to 255, bits, or floats from 0 to 1, of three dimensions, or
    stacked bytes or bits of two. It is Stable-Baselines3's rule (`is_image_space`), but for images without channels,
    for floats, and for bits, a plane of which shows where things of one kind are, as on boards and in MinAtar."""
    if not is_image(space) or not isinstance(space, Box):
        return False
    full = space.dtype != "uint8" or (space.low, space.high) == (0, 255)
    return full and len(space.shape) + (frames > 1) >= 3
