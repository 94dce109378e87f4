"""Rows of a record (an observation, its masks, an action) as they lie in frames: made up, measured, and looked through.

In flow: a record of a place. Out flows: bytes; what is wrong with some, in words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Box, Leaf, Place, RowFormat
from protocol.spaces.drawing import draw
from protocol.spaces.row_format import nbytes

Masks = Mapping[str, list[NDArray[Any]]]
"""Leaf of an action -> of each of its choices, which are legal; not there: all are."""


def drawn(record: RowFormat, random: np.random.Generator, masks: Masks | None = None) -> bytes:
    """A row in its spaces, at random; of an action, what `masks` allow."""
    row = record.zeros(1)
    for leaf, column in record.parts(row):
        legal = (masks or {}).get(leaf.name)
        draw(leaf, column, None if legal is None else np.concatenate(legal)[None], random)
    return row.astype(row.dtype.newbyteorder("<")).tobytes()


def drawn_masks(place: Place, random: np.random.Generator) -> bytes:
    """Masks at random, each of which allows something; none where the place has none."""
    row = np.zeros(nbytes(place.masked), np.uint8)
    for part in (part for parts in masks_of(place, row).values() for part in parts):
        part[:] = random.integers(2, size=len(part))
        part[random.integers(len(part))] = 1
    return row.tobytes()


def masks_of(place: Place, row: Any) -> Masks:
    """Masks as they lie in a frame; views on them."""
    acted: dict[str, Any] = {leaf.name: leaf.space for leaf in place.acted.leaves}
    found = {}
    for leaf, mask in split(place.masked, row) if place.masked is not None else ():
        name = leaf.name.replace("action_mask", "action", 1)
        found[name] = np.split(mask.view(np.uint8).reshape(-1), np.cumsum(acted[name].sizes)[:-1])
    return found


def split(record: RowFormat, row: Any) -> list[tuple[Leaf, NDArray[np.generic]]]:
    """Each leaf with its array."""
    dtype, count = record.dtype.newbyteorder("<"), math.prod(record.shape)
    return [*record.parts(np.frombuffer(row, dtype, count).reshape(record.shape))]


def flaw(record: RowFormat, row: bytes) -> str:
    """What is not in its space, in words; empty if all is."""
    for leaf, array in split(record, row):
        space, raw = leaf.space, np.ascontiguousarray(array)
        if isinstance(space, Box):
            if space.dtype == "bool" and raw.view(np.uint8).max(initial=0) > 1:
                return f"{leaf.name} has a byte that is neither 0 nor 1"
            if raw.dtype.kind == "f" and not np.isfinite(raw).all():
                return f"{leaf.name} has a number that is not finite"
            continue
        try:
            space.encode(space.decode(array), leaf.name)
        except (EnvironmentFault, IndexError) as fault:
            return str(fault)
    return ""


def mask_flaw(place: Place, row: bytes) -> str:
    """What is wrong with masks of legal actions, in words; empty if nothing is."""
    if place.masked is None:
        return ""
    if np.frombuffer(row, np.uint8).max(initial=0) > 1:
        return "a mask has a byte that is neither 0 nor 1"
    for name, parts in masks_of(place, row).items():
        if not all(part.any() for part in parts):
            return f"{name.replace('action', 'action_mask', 1)} allows nothing"
    return ""


def forbidden(place: Place, masks: Masks, row: bytes) -> str:
    """The leaf of an action, in its spaces, that `masks` forbid; empty if they allow all of it."""
    for leaf, array in split(place.acted, row):
        if leaf.name in masks:
            indices = np.ravel(array.astype(np.int64) - leaf.space.span[0])
            if not all(part[i] for part, i in zip(masks[leaf.name], indices, strict=True)):
                return leaf.name
    return ""
