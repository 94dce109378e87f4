"""Values of spaces that need no policy: drawn by chance, and whatever is legal first.

In flow: a record, and what is legal. Out flow: rows of it.

Legend: `n` rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces.primitive import Box, Discrete, MultiBinary, MultiDiscrete, Text
from protocol.spaces.row_format import Leaf, RowFormat, field_of


def random_rows(
    record: RowFormat, rows: int, generator: np.random.Generator, masks: NDArray[Any] | None = None
) -> NDArray[Any]:
    """[rows]: choices legal by `masks`, all with equal probability; numbers evenly between their bounds, normally
    distributed where they have none, exponentially beside a single one (as Gymnasium samples them)."""
    drawn = record.zeros(rows)
    for leaf, column in record.parts(drawn):
        draw(leaf, column, _mask(masks, leaf), generator)
    return drawn


def first_legal(record: RowFormat, rows: int, masks: NDArray[Any] | None = None) -> NDArray[Any]:
    """[rows]: the first choice of those that are legal by `masks`; of numbers the one nearest to 0."""
    found = record.zeros(rows)
    for leaf, column in record.parts(found):
        space = leaf.space
        match space:
            case Discrete() | MultiDiscrete():
                for target, start, _, legal in _elements(space, column, _mask(masks, leaf)):
                    target[:] = start if legal is None else start + legal.argmax(axis=1)
            case Box():
                low, high = space.span
                column[...] = 0 if low is None else np.clip(column, low, high)
            case Text():
                column[:, : space.min_length] = 1
    return found


def draw(leaf: Leaf, column: NDArray[Any], mask: NDArray[Any] | None, generator: np.random.Generator) -> None:
    """Fills [n, *shape] as `random_rows`; `mask` [n, choices] where not all are legal."""
    space = leaf.space
    match space:
        case Discrete() | MultiDiscrete():
            for target, start, choices, legal in _elements(space, column, mask):
                if legal is None:
                    target[:] = start + generator.integers(choices, size=len(target))
                else:
                    target[:] = start + ((1 + generator.random(legal.shape)) * legal).argmax(axis=1)
        case MultiBinary():
            column[...] = generator.integers(2, size=column.shape)
        case Text():
            places = generator.integers(1, len(space.charset) + 1, size=column.shape)
            lengths = generator.integers(space.min_length, space.max_length + 1, size=(len(column), 1))
            column[...] = np.where(np.arange(space.max_length) < lengths, places, 0)
        case Box():
            column[...] = _numbers(space, column, generator)


def _numbers(space: Box, column: NDArray[Any], generator: np.random.Generator) -> NDArray[Any]:
    low, high = space.span
    if column.dtype.kind != "f":
        return generator.integers(low, high, size=column.shape, dtype=column.dtype.type, endpoint=True)
    if low is None:
        return generator.standard_normal(column.shape)
    below, above = (np.broadcast_to(np.asarray(bound, np.float64), column.shape) for bound in (low, high))
    bounded, beyond = np.isfinite(below) & np.isfinite(above), generator.standard_exponential(column.shape)
    drawn = np.where(np.isfinite(below), below + beyond, np.where(np.isfinite(above), above - beyond, 0))
    free = np.isinf(below) & np.isinf(above)
    drawn[free] = generator.standard_normal(int(free.sum()))
    chance = generator.random(int(bounded.sum()))
    drawn[bounded] = below[bounded] * (1 - chance) + above[bounded] * chance
    return np.clip(drawn.astype(column.dtype), low, high)


def _elements(
    space: Discrete | MultiDiscrete, column: NDArray[Any], mask: NDArray[Any] | None
) -> Iterator[tuple[NDArray[Any], int, int, NDArray[Any] | None]]:
    """(a view [n] on its part of the column, first choice, number of choices, mask [n, choices]) of each element."""
    at = 0
    for k, (start, choices) in enumerate(zip(np.ravel(space.span[0]).tolist(), space.sizes, strict=True)):
        place: Any = (slice(None), *np.unravel_index(k, space.shape)) if space.shape else slice(None)
        yield column[place], start, choices, None if mask is None else mask[:, at : at + choices]
        at += choices


def _mask(masks: NDArray[Any] | None, leaf: Leaf) -> NDArray[Any] | None:
    """That of one leaf."""
    if masks is None or masks.dtype.names is None:
        return masks
    name = field_of(leaf)
    return masks[name] if name in masks.dtype.names else None
