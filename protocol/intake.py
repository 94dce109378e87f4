"""What a receiver believes of a message from elsewhere: everything in it is checked before any of it is used.

In flows: raw frames after a `Segments` header. Out flow: records and columns that fit their layout, or a WireError.
Legend: `n` segments of a message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.layout import Layout
from protocol.ring import RECORD

__all__ = ["check_actions", "check_final_rows", "largest_frame", "read_columns", "read_frame", "read_records", "shown"]

_MOST = 2**63
_LEAST_FRAME = 65_536
"""Bytes that a frame may have whatever the layout is: more than any header of segments."""


def largest_frame(layout: Layout, segments: int) -> int:
    """Bytes of the largest frame in a message of at most `segments` segments: compressed ones may grow a little."""
    largest = max(RECORD.itemsize, *(layout.slot_bytes(field) for field in layout.fields)) * segments
    return max(_LEAST_FRAME, largest + largest // 128 + 1024)


def read_records(frame: Any, count: int, layout: Layout) -> NDArray[np.void]:
    """[n] of RECORD, a copy: numbers that grow, rows that the layout has."""
    buffer = _buffer(frame)
    if len(buffer) != count * RECORD.itemsize or count == 0:
        raise WireError(f"{len(buffer)} bytes of records for {count} segments, expected {RECORD.itemsize} each")
    records = np.frombuffer(buffer, RECORD).copy()
    numbers = records["number"]
    if int(numbers[0]) == 0 or int(numbers[-1]) >= _MOST or not bool((numbers[1:] > numbers[:-1]).all()):
        raise WireError("records whose segment numbers do not grow from 1; number segments consecutively")
    _check_rows(records, layout)
    return records


def _check_rows(records: NDArray[np.void], layout: Layout) -> None:
    """WireError unless every record has 1..T valid rows and no more history than `layout`."""
    valid, before = records["valid"], records["before"]
    if int(valid.min()) < 1 or int(valid.max()) > layout.length or int(before.max()) > layout.before:
        raise WireError(
            f"a record with {int(valid.min())} to {int(valid.max())} rows and {int(before.max())} of history, its "
            f"layout has 1 to {layout.length} and {layout.before}; use the same configuration and release"
        )


def read_columns(frames: Sequence[Any], count: int, layout: Layout) -> dict[str, NDArray]:
    """Views on the frames, one a field in the layout's order, each [n, ...]; nothing is copied.

    Truth values are 0 or 1: whatever computes with others may take them for both.
    """
    columns = {}
    for field, frame in zip(layout.fields, frames, strict=True):
        buffer = read_frame(frame, layout.slot_bytes(field) * count, f"field {field.name!r}")
        if field.dtype == "|b1" and len(buffer) and int(np.frombuffer(buffer, np.uint8).max()) > 1:
            raise WireError(f"field {field.name!r} with a truth value that is neither 0 nor 1; send one byte, 0 or 1")
        columns[field.name] = np.frombuffer(buffer, np.dtype(field.dtype)).reshape(layout.shape(field, count))
    if "final_row" in columns:
        check_final_rows(columns["final_row"], layout)
    return columns


def read_frame(frame: Any, expected: int, what: str) -> Any:
    """The bytes of a frame, of which there must be so many."""
    buffer = _buffer(frame)
    if len(buffer) != expected:
        raise WireError(f"{what} with {len(buffer)} bytes, expected {expected}; use the same release")
    return buffer


def shown(records: NDArray[np.void], layout: Layout) -> NDArray[np.bool_]:
    """[n, R]: the rows that hold an observation: history, valid ones and the one for bootstrapping."""
    row = np.arange(layout.rows) - layout.before
    return np.asarray((row >= -records["before"][:, None].astype(int)) & (row <= records["valid"][:, None]))


def check_final_rows(final_row: NDArray, layout: Layout) -> None:
    """WireError unless every entry [n, K] of the side table names one of the T rows, or none (-1)."""
    if final_row.size and (int(final_row.min()) < -1 or int(final_row.max()) >= layout.length):
        raise WireError(f"a final_row outside -1..{layout.length - 1}; use the same configuration and release")


def check_actions(action: NDArray, records: NDArray[np.void], layout: Layout, actions: int) -> None:
    """WireError unless every action [n, R] in a valid row is one of 0..`actions` - 1: it becomes an index."""
    taken = action[:, layout.before : layout.before + layout.length]
    valid = records["valid"]
    if int(valid.min()) < layout.length:
        taken = taken[np.arange(layout.length) < valid[:, None]]
    if taken.size and (int(taken.min()) < 0 or int(taken.max()) >= actions):
        raise WireError(f"an action outside 0..{actions - 1}; use the same configuration and release")


def _buffer(frame: Any) -> Any:
    return frame.buffer if isinstance(frame, zmq.Frame) else frame
