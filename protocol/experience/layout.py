"""The layout of a policy's segments: an ordered table of fields that names, types and shapes every byte of a slot.

In flows: an agent's place in the tree and what its algorithm adds. Out flow: a `Layout`; its hash is in every header.
Legend: `S` slots, `R = before + T + 1` rows of a slot, `T` segment length.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np

from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError, WireError
from protocol.spaces import Box, Leaf, Place, World

ALIGNMENT = 64
OUTPUT = "output."
"""How columns begin that are called like an output of the network, and hold what it said when the policy acted."""
_MOST_FINAL_BYTES, _ROWS_AN_END = 65_536, 8
"""Of the last observations of a segment's episodes, and for how many rows there is room for one where all would be
more: the table would be as large as all else that is seen."""
_ALLOWED = {"|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"}


@dataclass(frozen=True)
class Field:
    """One column: `per` row ([S, R, *shape]) or per slot ([S, *shape])."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    per: Literal["row", "slot"] = "row"

    def __post_init__(self) -> None:
        if self.dtype not in _ALLOWED:
            raise WireError("layout_dtype_not_allowed", field=self.name, value=self.dtype, choices=sorted(_ALLOWED))


class Form(NamedTuple):
    """A field in one slot: `nbytes` bytes of `shape`."""

    name: str
    dtype: np.dtype[Any]
    truth: bool
    real: bool
    nbytes: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Fields of one policy's segments. `before` rows of history, then `length` rows, then one row for bootstrapping."""

    fields: tuple[Field, ...]
    length: int
    before: int = 0

    @property
    def rows(self) -> int:
        """R, the rows of a slot."""
        return self.before + self.length + 1

    @cached_property
    def outputs(self) -> dict[str, Field]:
        """Fields that hold what the policy said, by name."""
        return {field.name: field for field in self.fields if field.name.startswith(OUTPUT)}

    def shape(self, field: Field, slots: int) -> tuple[int, ...]:
        """Shape of a field's column in a ring of `slots` slots."""
        return (slots, self.rows, *field.shape) if field.per == "row" else (slots, *field.shape)

    def slot_bytes(self, field: Field) -> int:
        """Bytes of one field in one slot."""
        return self._slot_bytes[field.name]

    @cached_property
    def _slot_bytes(self) -> dict[str, int]:
        return {f.name: math.prod(self.shape(f, 1)) * np.dtype(f.dtype).itemsize for f in self.fields}

    @cached_property
    def forms(self) -> tuple[Form, ...]:
        """What each field is in a slot, worked out once."""
        return tuple(
            Form(f.name, dtype, dtype.kind == "b", dtype.kind == "f", self._slot_bytes[f.name], self.shape(f, 1)[1:])
            for f, dtype in ((f, np.dtype(f.dtype)) for f in self.fields)
        )

    @cached_property
    def segment_bytes(self) -> int:
        """Payload bytes of one segment over all fields."""
        return sum(self.slot_bytes(field) for field in self.fields)

    def offsets(self, slots: int) -> tuple[list[int], int]:
        """Byte offset of each field's column in a ring of `slots` slots (64-byte aligned), and the total size."""
        offsets, at = [], 0
        for field in self.fields:
            offsets.append(at)
            at += -(-self.slot_bytes(field) * slots // ALIGNMENT) * ALIGNMENT
        return offsets, at

    def columns(self, buffer: memoryview, slots: int) -> dict[str, np.ndarray]:
        """Array views on `buffer`, one a field, without a copy."""
        offsets, _ = self.offsets(slots)
        return {
            field.name: np.ndarray(self.shape(field, slots), np.dtype(field.dtype), buffer=buffer, offset=offset)
            for field, offset in zip(self.fields, offsets, strict=True)
        }

    def describe(self) -> dict[str, object]:
        """Plain data from which `hash` is computed; part of the wire specification."""
        return {
            "length": self.length,
            "before": self.before,
            "fields": [[f.name, f.dtype, list(f.shape), f.per] for f in self.fields],
        }

    @cached_property
    def hash(self) -> str:
        """First 16 hexadecimal digits of the SHA-256 of the compact JSON of `describe()`."""
        text = json.dumps(self.describe(), separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def segment_layout(
    world: World,
    place: Place,
    config: PolicyConfig,
    clocked: bool = False,
    state: int = 0,
    few_ends: bool = False,
) -> Layout:
    """The layout of the segments of the policy of the agent at `place`: a column for each leaf that it sees or does.

    `final_observation` [S, K, *shape] (one for each leaf of the observation) and `final_row` [S, K] (row 0..T-1, or -1
    for none) are the side table of the true last observations of truncated episodes; K is the most truncations that fit
    into one segment. With `few_ends` it is one for eight rows where episodes are of any length and observations large:
    a segment without room for one more ends before its time. What the world's agents see in common is not here:
    `moment` [S, R] refers to it, and `final_common` [S, K, *shape] is that of the side table. A policy that remembers
    `state` numbers has them as `state` [S, n], as they were before row 0. `clocked`: `clock` [S, R] says when a
    simulator saw each observation, in its own seconds.
    """
    common = common_of(world)
    seen = [_column(leaf) for leaf in place.observed.leaves]
    kept = [*seen, *([] if common is None else [Field("common", _stored(common.dtype), tuple(common.shape))])]
    shown = sum(math.prod(field.shape) * np.dtype(field.dtype).itemsize for field in kept)
    few_ends &= config.segment_length * shown > _MOST_FINAL_BYTES
    ends = -(-config.segment_length // (world.episode_steps or (_ROWS_AN_END if few_ends else 1)))
    fields = [
        *seen,
        *(_column(leaf) for leaf in place.acted.leaves),
        *(_column(leaf) for leaf in (place.masked.leaves if place.masked is not None else ())),
        Field("reward", "<f4"),
        Field("terminated", "|b1"),
        Field("truncated", "|b1"),
        Field("version", "<u8"),
        *(Field(name, kind) for name, kind in config.algorithm.row_fields),
        *(Field(OUTPUT + one.name, one.dtype, one.shape) for one in config.declares if one.dtype is not None),
        *(Field(f"final_{field.name}", field.dtype, (ends, *field.shape), "slot") for field in seen),
        Field("final_row", "<i4", (ends,), "slot"),
    ]
    if state:
        fields.append(Field("state", "<f4", (state,), "slot"))
    if clocked:
        fields.append(Field("clock", "<f8"))
    if common is not None:
        fields.append(Field("moment", "<u8"))
        fields.append(Field("final_common", _stored(common.dtype), (ends, *common.shape), "slot"))
    return Layout(tuple(fields), config.segment_length, config.algorithm.before)


def common_of(world: World) -> Box | None:
    """What all agents of `world` observe in common, or None; ConfigurationError for what cannot be delivered once."""
    leaves = world.common
    if not leaves:
        return None
    leaf = leaves[0]
    if len(leaves) > 1 or leaf.owner or leaf.evaluation_only or not isinstance(leaf.space, Box):
        raise ConfigurationError(
            "common_observations_not_one_box", environment=world.id, fields=[leaf.name for leaf in leaves]
        )
    return leaf.space


def common_layout(box: Box, copies: int, moments: int) -> Layout:
    """The layout of a ring of common observations (protocol/experience/shared_obs.py): a slot is a block of `moments`
    moments of `copies` copies, [S, moments, copies, *shape]."""
    return Layout((Field("common", _stored(box.dtype), (copies, *box.shape)),), length=moments - 1)


def _column(leaf: Leaf) -> Field:
    return Field(leaf.name, _stored(leaf.space.dtype), tuple(leaf.space.shape))


def _stored(dtype: str) -> str:
    return np.dtype(dtype).newbyteorder("<").str
