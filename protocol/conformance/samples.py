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
from protocol.spaces import Box, Discrete, Leaf, MultiDiscrete, Place, RowFormat, Text, dtype_of

__all__ = ["Masks", "drawn", "drawn_masks", "flaw", "forbidden", "mask_flaw", "masks_of", "nbytes", "split"]

Masks = Mapping[str, list[NDArray[Any]]]
"""Leaf of an action -> of each of its choices, which are legal; not there: all are."""


def nbytes(record: RowFormat | None) -> int:
    """Of one row; 0 where there is none."""
    return 0 if record is None else sum(_size(leaf) for leaf in record.leaves)


def drawn(record: RowFormat, random: np.random.Generator, masks: Masks | None = None) -> bytes:
    """A row in its spaces, at random; of an action, what `masks` allow."""
    return b"".join(_drawn(leaf, random, (masks or {}).get(leaf.name)) for leaf in record.leaves)


def drawn_masks(place: Place, random: np.random.Generator) -> bytes:
    """Masks at random, each of which allows something; none where the place has none."""
    row = np.zeros(nbytes(place.masked), np.uint8)
    for part in (part for parts in masks_of(place, row).values() for part in parts):
        part[:] = random.integers(2, size=len(part))
        part[random.integers(len(part))] = 1
    return row.tobytes()


def masks_of(place: Place, row: Any) -> Masks:
    """Masks as they lie in a frame; views on them."""
    acted = {leaf.name: leaf.space for leaf in place.acted.leaves}
    found = {}
    for leaf, mask in split(place.masked, row) if place.masked is not None else ():
        name = leaf.name.replace("action_mask", "action", 1)
        counts, _ = _choices(acted[name])
        found[name] = np.split(mask.view(np.uint8).reshape(-1), np.cumsum(counts)[:-1])
    return found


def split(record: RowFormat, row: Any) -> list[tuple[Leaf, NDArray[np.generic]]]:
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
    for name, parts in masks_of(place, row).items():
        if not all(part.any() for part in parts):
            return f"{name.replace('action', 'action_mask', 1)} allows nothing"
    return ""


def forbidden(place: Place, masks: Masks, row: bytes) -> str:
    """The leaf of an action, in its spaces, that `masks` forbid; empty if they allow all of it."""
    for leaf, array in split(place.acted, row):
        if leaf.name in masks:
            indices = array.reshape(-1).astype(np.int64) - _choices(leaf.space)[1]
            if not all(part[i] for part, i in zip(masks[leaf.name], indices, strict=True)):
                return leaf.name
    return ""


def _dtype(leaf: Leaf) -> np.dtype[np.generic]:
    return dtype_of(leaf.space).newbyteorder("<")


def _size(leaf: Leaf) -> int:
    return _dtype(leaf).itemsize * math.prod(leaf.space.shape)


def _choices(space: Any) -> tuple[tuple[int, ...], NDArray[np.int64]]:
    """How many values each choice of a Discrete or MultiDiscrete has, and its first one."""
    counts = (space.n,) if isinstance(space, Discrete) else space.nvec
    return counts, np.broadcast_to(np.ravel(space.start), len(counts))


def _drawn(leaf: Leaf, random: np.random.Generator, masks: list[NDArray[Any]] | None) -> bytes:
    space, dtype = leaf.space, _dtype(leaf)
    array = np.zeros(space.shape, dtype)
    if isinstance(space, Discrete | MultiDiscrete):
        counts, starts = _choices(space)
        legal = [np.arange(count) for count in counts] if masks is None else [np.flatnonzero(part) for part in masks]
        array[...] = np.reshape(starts + [random.choice(some) for some in legal], space.shape)
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
