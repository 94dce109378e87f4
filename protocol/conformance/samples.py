"""Rows of a record (an observation, its masks, an action) as they lie in frames: made up, measured, and looked through.

In flow: a record of a place. Out flows: bytes; what is wrong with some, in words.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Box, Discrete, Leaf, MultiDiscrete, Place, RowFormat, Text

__all__ = ["drawn", "flaw", "mask_flaw", "nbytes", "split"]


def nbytes(record: RowFormat | None) -> int:
    """Of one row; 0 where there is none."""
    return 0 if record is None else sum(_size(leaf) for leaf in record.leaves)


def drawn(record: RowFormat | None, random: np.random.Generator) -> bytes:
    """A row in its spaces, at random; of masks, all is legal."""
    return b"" if record is None else b"".join(_drawn(leaf, random) for leaf in record.leaves)


def split(record: RowFormat, row: bytes) -> list[tuple[Leaf, NDArray[np.generic]]]:
    """Each leaf with its array."""
    parts, at = [], 0
    for leaf in record.leaves:
        parts.append(
            (leaf, np.frombuffer(row, _dtype(leaf), math.prod(leaf.space.shape), at).reshape(leaf.space.shape))
        )
        at += _size(leaf)
    return parts


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
    acted = {leaf.name: leaf.space for leaf in place.acted.leaves}
    for leaf, mask in split(place.masked, row):
        space = acted[leaf.name.replace("action_mask", "action", 1)]
        counts = space.nvec if isinstance(space, MultiDiscrete) else (mask.size,)
        if not all(part.any() for part in np.split(mask.reshape(-1), np.cumsum(counts)[:-1])):
            return f"{leaf.name} allows nothing"
    return ""


def _dtype(leaf: Leaf) -> np.dtype[np.generic]:
    return np.dtype(leaf.space.dtype).newbyteorder("<")


def _size(leaf: Leaf) -> int:
    return _dtype(leaf).itemsize * math.prod(leaf.space.shape)


def _drawn(leaf: Leaf, random: np.random.Generator) -> bytes:
    space, dtype = leaf.space, _dtype(leaf)
    array = np.zeros(space.shape, dtype)
    if leaf.role == "action_mask":
        array[...] = 1
    elif isinstance(space, Discrete | MultiDiscrete):
        counts = space.n if isinstance(space, Discrete) else np.reshape(space.nvec, space.shape)
        starts = np.reshape(space.start, space.shape if isinstance(space.start, tuple) else ())
        array[...] = starts + random.integers(counts)
    elif isinstance(space, Text):
        array[: space.min_length] = 1
    elif isinstance(space, Box) and dtype.kind == "f":
        low, high = (_bound(bound, space, far) for bound, far in ((space.low, -1.0), (space.high, 1.0)))
        array[...] = np.clip(random.standard_normal(space.shape), low, np.maximum(low, high))
    elif isinstance(space, Box):
        array[...] = np.broadcast_to(_bound(space.low, space, 0), space.shape)
    return array.tobytes()


def _bound(given: object, space: Box, far: float) -> NDArray[np.float64]:
    """A bound of a box as an array; `far` where there is none."""
    if isinstance(given, tuple):
        return np.array([far if one is None else one for one in given], np.float64).reshape(space.shape)
    return np.array(far if given is None else given, np.float64)
