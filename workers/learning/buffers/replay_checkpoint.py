"""What a checkpoint keeps of replay: random state and counts always, the newest rows on request; of a dataset, which is
there again, random state and priorities.

In flow: records and the rings they lie in, or what an earlier checkpoint says. Out flow: plain arrays for a file, or a
ring of this process's own that holds the same segments. Nothing in a file is believed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, WireError
from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import RECORD, Records, Ring
from protocol.experience.validation import ActionCheck, check_final_rows, check_finite, check_rows
from protocol.spaces import Place
from workers.learning.buffers.ring_table import RingTable

_COLUMN = "column."


class SavedSegments(NamedTuple):
    """Segments that were taken along, oldest first: [n] each."""

    first: int
    """How many were admitted before them, ever."""
    records: Records
    ring: NDArray[np.int32]
    """Numbers of the rings they lay in, from 0 without a gap."""
    actor: NDArray[np.int32]
    actors: list[tuple[str, int]]
    """(name, incarnation), to which `actor` refers."""
    priority: NDArray[np.float64] | None
    """[n, T], where rows are drawn by priority."""


def random_state(generator: np.random.Generator) -> NDArray[np.uint64]:
    """All of a Philox generator's state, [13]."""
    state = generator.bit_generator.state
    parts = [state["state"]["counter"], state["state"]["key"], state["buffer"]]
    rest = [state["buffer_pos"], state["has_uint32"], state["uinteger"]]
    return np.concatenate([*parts, np.array(rest, np.uint64)]).astype(np.uint64)


def set_random_state(generator: np.random.Generator, words: NDArray) -> None:
    """The inverse of `random_state`; ConfigurationError for what is none."""
    if words.dtype != np.uint64 or words.shape != (13,) or words[10] > 4 or words[11] > 1 or words[12] >> 32:
        raise _refused("its random state is none")
    generator.bit_generator.state = {
        "bit_generator": "Philox",
        "state": {"counter": words[:4], "key": words[4:6]},
        "buffer": words[6:10],
        "buffer_pos": int(words[10]),
        "has_uint32": int(words[11]),
        "uinteger": int(words[12]),
    }


def counts_in(state: Mapping[str, NDArray]) -> tuple[int, int]:
    """Rows inserted and sampled so far; ConfigurationError for what cannot be."""
    try:
        _fits("governor", state["governor"], (2,), np.dtype(np.int64))
        inserted, sampled = state["governor"].tolist()
        if not (0 <= inserted < 2**62 and 0 <= sampled < 2**62):
            raise ValueError("its counts cannot be")
    except KeyError:
        raise _refused("its counts are missing") from None
    except ValueError as fault:
        raise _refused(str(fault)) from None
    return inserted, sampled


def greatest_in(state: Mapping[str, NDArray]) -> float | None:
    """The greatest priority yet, if rows were drawn by any; ConfigurationError for what cannot be."""
    if "greatest" not in state:
        return None
    try:
        _fits("greatest", state["greatest"], (1,), np.dtype(np.float64))
        greatest = float(state["greatest"][0])
        if not 0 < greatest < np.inf:
            raise ValueError("its counts cannot be")
    except ValueError as fault:
        raise _refused(str(fault)) from None
    return greatest


def priorities_in(state: Mapping[str, NDArray], segments: int, length: int) -> NDArray[np.float64]:
    """Those of the rows of so many `segments` [n, T], 0 where there is no row; ConfigurationError for others."""
    try:
        return _priorities(state["priority"], segments, length)
    except ValueError as fault:
        raise _refused(str(fault)) from None


def kept_arrays(kept: SavedSegments, rings: RingTable) -> dict[str, NDArray]:
    """`kept` as plain arrays with all that its segments hold, copied now; those that an actor overwrites meanwhile are
    left out, and where none is left there are no arrays."""
    numbers, ring = np.unique(kept.ring, return_inverse=True)
    columns: dict[str, NDArray] = {}
    whole = np.ones(len(ring), np.bool_)
    for place, number in enumerate(numbers):
        mine = ring == place
        source, _ = rings[number]
        records = kept.records[mine]
        with source.reading():
            for name, column in source.columns.items():
                if name not in columns:
                    columns[name] = np.empty((len(ring), *column.shape[1:]), column.dtype)
                columns[name][mine] = column[records["slot"]]
            whole[mine] = source.intact(records)
    if not whole.any():
        return {}
    arrays = {f"{_COLUMN}{name}": column[whole] for name, column in columns.items()}
    arrays["records"] = kept.records[whole].view(np.uint8).reshape(-1, RECORD.itemsize)
    left = np.unique(ring[whole], return_inverse=True)[1]  # without those of which nothing is left
    arrays["ring"], arrays["actor"] = left.astype(np.int32), kept.actor[whole]
    arrays["actors"] = np.frombuffer(json.dumps(kept.actors).encode(), np.uint8)
    arrays["first"] = np.array([kept.first], np.int64)
    if kept.priority is not None:
        arrays["priority"] = kept.priority[whole]
    return arrays


def restored(arrays: Mapping[str, NDArray], layout: Layout, place: Place) -> tuple[SavedSegments, Ring]:
    """What `kept_arrays` made, and a ring that holds its segments, in slots 0..n-1. ConfigurationError for anything
    that an actor of this policy could not have written."""
    try:
        kept = _read(arrays, layout)
        columns = {field.name: arrays[f"{_COLUMN}{field.name}"] for field in layout.fields}
        for field in layout.fields:
            column = columns[field.name]
            _fits(field.name, column, layout.shape(field, len(kept.records)), np.dtype(field.dtype))
            if field.dtype == "|b1" and column.size and int(column.view(np.uint8).max()) > 1:
                raise ValueError(f"{field.name} has a truth value that is neither 0 nor 1")
        check_rows(kept.records, layout)
        check_final_rows(columns["final_row"], layout)
        check_finite(columns, kept.records, layout)
        ActionCheck(place)(columns, kept.records, layout)
    except KeyError as fault:
        raise _refused(f"{fault.args[0]!r} is missing") from None
    except (ValueError, RecursionError, WireError) as fault:
        raise _refused(str(fault)) from None
    ring = Ring.create(None, layout, len(kept.records), checksums=False)
    kept.records["slot"] = np.arange(len(kept.records))
    ring.table[:] = kept.records
    for name, column in columns.items():
        ring.columns[name][:] = column
    return kept, ring


def _read(arrays: Mapping[str, NDArray], layout: Layout) -> SavedSegments:
    n = len(arrays["records"])
    _fits("records", arrays["records"], (n, RECORD.itemsize), np.dtype(np.uint8))
    records = np.ascontiguousarray(arrays["records"]).view(RECORD).reshape(n).copy()
    actors = [(str(name), int(incarnation)) for name, incarnation in json.loads(arrays["actors"].tobytes())]
    _fits("ring", arrays["ring"], (n,), np.dtype(np.int32))
    _fits("actor", arrays["actor"], (n,), np.dtype(np.int32))
    _fits("first", arrays["first"], (1,), np.dtype(np.int64))
    first = int(arrays["first"][0])
    if not n or not 0 <= first < 2**62 or (records["sequence"] & np.uint64(1)).any():
        raise ValueError("its records contradict each other")
    if not _within(arrays["ring"], n) or not _within(arrays["actor"], len(actors)):
        raise ValueError("its records are of rings or actors that there are not")
    priority = arrays.get("priority")
    if priority is not None:
        _priorities(priority, n, layout.length)
    return SavedSegments(first, records, arrays["ring"], arrays["actor"], actors, priority)


def _priorities(priority: NDArray, segments: int, length: int) -> NDArray[np.float64]:
    _fits("priority", priority, (segments, length), np.dtype(np.float64))
    if not (np.isfinite(priority).all() and (priority >= 0).all()):
        raise ValueError("a priority is no positive number")
    return priority


def _within(numbers: NDArray, count: int) -> bool:
    return bool((numbers >= 0).all() and (numbers < count).all())


def _fits(name: str, array: NDArray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if array.shape != shape or array.dtype != dtype:
        raise ValueError(f"{name} is {array.dtype} {list(array.shape)}, expected {dtype} {list(shape)}")


def _refused(why: str) -> ConfigurationError:
    return ConfigurationError("replay_unusable", reason=" ".join(why.split()))
