"""What a receiver believes of a message from elsewhere: everything in it is checked before any of it is used.

In flows: raw frames after a `Segments` header. Out flow: records and columns that fit their layout, or a WireError.
Legend: `n` segments of a message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import FINISHED, RECORD, Records
from protocol.spaces import Box, Discrete, MultiDiscrete, Place

_MOST = 2**63
_ONE = np.uint16(1)
_LEAST_FRAME = 65_536
"""Bytes that a frame may have whatever the layout is: more than any header of segments."""


def largest_frame(layout: Layout, segments: int) -> int:
    """Bytes of the largest frame in a message of at most `segments` segments: compressed ones may grow a little."""
    largest = max(RECORD.itemsize, *(layout.slot_bytes(field) for field in layout.fields)) * segments
    return max(_LEAST_FRAME, largest + largest // 128 + 1024)


def read_records(frame: Any, count: int, layout: Layout) -> Records:
    """[n] of RECORD, a copy: finished segments, numbers that grow, rows that the layout has."""
    buffer = _buffer(frame)
    if len(buffer) != count * RECORD.itemsize or count == 0:
        raise WireError("records_wrong_size", value=len(buffer), count=count, expected=RECORD.itemsize)
    records = np.frombuffer(bytearray(buffer), RECORD)
    numbers = records["number"]
    if int(numbers[0]) == 0 or int(numbers[-1]) >= _MOST or not (numbers[1:] > numbers[:-1]).all():
        raise WireError("segment_numbers_not_growing")
    if (records["state"] != FINISHED).any() or int(np.bitwise_or.reduce(records["sequence"])) & 1:
        raise WireError("record_not_finished")
    check_rows(records, layout)
    return records


def check_rows(records: Records, layout: Layout) -> None:
    """WireError unless every record has 1..T valid rows and no more history than `layout`."""
    valid, before = records["valid"], records["before"]
    if int((valid - _ONE).max()) >= layout.length or int(before.max()) > layout.before:  # 0 - 1 is the largest
        raise WireError(
            "record_rows_beyond_layout",
            least=int(valid.min()),
            most=int(valid.max()),
            history=int(before.max()),
            limit=layout.length,
            history_limit=layout.before,
        )


def read_columns(frames: Sequence[Any], count: int, layout: Layout) -> dict[str, NDArray]:
    """Views on the frames, one a field in the layout's order, each [n, ...]; nothing is copied.

    Truth values are 0 or 1: whatever computes with others may take them for both.
    """
    columns = {}
    for form, frame in zip(layout.forms, frames, strict=True):
        buffer = frame.buffer if frame.__class__ is zmq.Frame else frame
        if len(buffer) != form.nbytes * count:
            raise WireError(
                "frame_wrong_size",
                what=f"field {form.name!r}",
                value=len(buffer),
                expected=form.nbytes * count,
                field=form.name,
            )
        column = np.frombuffer(buffer, form.dtype)
        if form.truth and len(buffer) and int(column.view(np.uint8).max()) > 1:
            raise WireError("segment_truth_value_wrong", field=form.name)
        columns[form.name] = column.reshape(count, *form.shape)
    if "final_row" in columns:
        check_final_rows(columns["final_row"], layout)
    return columns


def read_frame(frame: Any, expected: int, what: str) -> Any:
    """The bytes of a frame, of which there must be so many."""
    buffer = _buffer(frame)
    if len(buffer) != expected:
        raise WireError("frame_wrong_size", what=what, value=len(buffer), expected=expected)
    return buffer


def observed_rows(records: Records, layout: Layout) -> NDArray[np.bool_]:
    """[n, R]: the rows that hold an observation: history, valid ones and the one for bootstrapping."""
    row = np.arange(layout.rows) - layout.before
    return np.asarray((row >= -records["before"][:, None].astype(int)) & (row <= records["valid"][:, None]))


def check_final_rows(final_row: NDArray, layout: Layout) -> None:
    """WireError unless every entry [n, K] of the side table names one of the T rows, or none (-1)."""
    if final_row.size and (int(final_row.min()) < -1 or int(final_row.max()) >= layout.length):
        raise WireError("final_row_outside_layout", limit=layout.length - 1, field="final_row")


def check_finite(columns: Mapping[str, NDArray], records: Records, layout: Layout) -> None:
    """WireError if a real row of segments [n] has a number that is not finite; what is not a row may hold any."""
    for field, form in zip(layout.fields, layout.forms, strict=True):
        if form.real and not np.isfinite(columns[field.name][_real(field, columns, records, layout)]).all():
            raise WireError("segment_field_not_finite", field=field.name)


def _real(field: Field, columns: Mapping[str, NDArray], records: Records, layout: Layout) -> NDArray[np.bool_]:
    """[n, ...]: which entries of a field mean something."""
    if field.name.startswith("final_"):
        return np.asarray(columns["final_row"] >= 0)
    if field.per == "slot":
        return np.ones(len(records), np.bool_)
    if field.name.partition(".")[0] == "observation":
        return observed_rows(records, layout)
    row = np.arange(layout.rows) - layout.before
    return np.asarray((row >= 0) & (row < records["valid"][:, None].astype(int)))


class ActionCheck:
    """What the actions of a policy may be: choices become indices, and one that was not legal has no probability.

    `columns`: those it looks at.
    """

    def __init__(self, place: Place) -> None:
        self._ranges: list[tuple[str, Any, Any, bool]] = []
        """A leaf's first and last index, and whether these are one number for all its elements."""
        self._masked: list[tuple[str, str, Any, tuple[int, ...]]] = []
        masks = {leaf.name: leaf for leaf in (place.masked.leaves if place.masked is not None else ())}
        for leaf in place.acted.leaves:
            space = leaf.space
            if isinstance(space, Box) and space.dtype.startswith("float"):
                continue  # numbers are judged with all others (workers/learning/buffers/segment_check.py)
            low, high = space.span
            self._ranges.append((leaf.name, low, high, np.ndim(low) == 0 and np.ndim(high) == 0))
            mask = leaf.name.replace("action", "action_mask", 1)
            if mask in masks and isinstance(space, Discrete | MultiDiscrete):
                self._masked.append((leaf.name, mask, np.asarray(low, np.int64), space.sizes))
        self.columns = (*(name for name, *_ in self._ranges), *masks)

    def __call__(self, columns: Mapping[str, NDArray], records: Records, layout: Layout) -> None:
        """WireError unless every action in a valid row of segments [n] is one that there is, and was legal."""
        valid = records["valid"]
        real = None if int(valid.min()) == layout.length else np.arange(layout.length) < valid[:, None]
        rows = slice(layout.before, layout.before + layout.length)

        def taken(name: str) -> NDArray:
            return columns[name][:, rows] if real is None else columns[name][:, rows][real]

        for name, low, high, alike in self._ranges:
            action = taken(name)
            if alike:
                outside = bool(action.size) and (int(action.min()) < low or int(action.max()) > high)
            else:
                outside = bool(((action < low) | (action > high)).any())
            if outside:
                value = int(action[(action < low) | (action > high)].flat[0])
                raise WireError("segment_action_outside_space", field=name, value=value, expected=_span(low, high))
        for name, mask, low, sizes in self._masked:
            legal = taken(mask)
            index = (taken(name) - low).reshape(*legal.shape[:-1], len(sizes))
            index = index + np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
            if not np.take_along_axis(legal, index, -1).all():
                raise WireError("segment_action_not_legal", field=name)


def _span(low: Any, high: Any) -> str:
    return f"{low}..{high}" if np.ndim(low) == 0 and np.ndim(high) == 0 else "the choices of its elements"


def _buffer(frame: Any) -> Any:
    return frame.buffer if isinstance(frame, zmq.Frame) else frame
