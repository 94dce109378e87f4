"""What a stranger sends is checked before any of it is used."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import FINISHED, RECORD
from protocol.experience.validation import (
    ActionCheck,
    check_final_rows,
    check_finite,
    largest_frame,
    read_columns,
    read_records,
)
from protocol.spaces import Agent, Box, Dict, Discrete, MultiBinary, MultiDiscrete, Place, World
from tests.faults import raises
from tests.protocol.parts import LAYOUT, content

DTYPES = st.sampled_from(["|u1", "|i1", "|b1", "<i2", "<i4", "<i8", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8"])


def _records(count: int = 3, first: int = 1) -> np.ndarray:
    records = np.zeros(count, RECORD)
    records["number"] = np.arange(first, first + count)
    records["valid"], records["state"] = LAYOUT.length, FINISHED
    return records


def _frames(count: int = 3) -> list[bytes]:
    parts = [content(LAYOUT, number) for number in range(1, count + 1)]
    return [np.stack([part[field.name] for part in parts]).tobytes() for field in LAYOUT.fields]


def _set(name: str, index: int, value: int) -> Callable[[np.ndarray], None]:
    def change(records: np.ndarray) -> None:
        records[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (_set("valid", 1, LAYOUT.length + 1), "record_rows_beyond_layout"),
        (_set("valid", 2, 0), "record_rows_beyond_layout"),
        (_set("before", 0, LAYOUT.before + 1), "record_rows_beyond_layout"),
        (_set("number", 0, 0), "segment_numbers_not_growing"),
        (_set("number", 1, 1), "segment_numbers_not_growing"),
        (_set("number", 2, 2**63), "segment_numbers_not_growing"),
        (_set("state", 1, 1), "record_not_finished"),
        (_set("sequence", 2, 7), "record_not_finished"),
    ],
)
def test_records_with_impossible_rows_or_numbers_are_refused(change: Callable[[np.ndarray], None], kind: str) -> None:
    records = _records()
    change(records)
    with raises(WireError, kind):
        read_records(records.tobytes(), 3, LAYOUT)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (63, 1), (65, 1), (64, 2)])
def test_records_of_the_wrong_size_are_refused(size: int, count: int) -> None:
    with raises(WireError, "records_wrong_size", value=size, count=count):
        read_records(bytes(size), count, LAYOUT)


@pytest.mark.parametrize("change", [-1, 1, 64])
@pytest.mark.parametrize("which", range(len(LAYOUT.fields)))
def test_a_field_of_the_wrong_size_is_named(which: int, change: int) -> None:
    frames = _frames()
    frames[which] = frames[which][:change] if change < 0 else frames[which] + bytes(change)
    with raises(WireError, "frame_wrong_size", field=LAYOUT.fields[which].name):
        read_columns(frames, 3, LAYOUT)


@pytest.mark.parametrize("row", [LAYOUT.length, -2])
def test_a_final_row_outside_the_segment_is_refused(row: int) -> None:
    final = np.full((3, 2), -1, np.int32)
    check_final_rows(final, LAYOUT)
    final[1] = LAYOUT.length - 1
    check_final_rows(final, LAYOUT)
    final[2, 1] = row
    with raises(WireError, "final_row_outside_layout", limit=LAYOUT.length - 1):
        check_final_rows(final, LAYOUT)
    frames = _frames()
    frames[-1] = final.tobytes()
    with raises(WireError, "final_row_outside_layout"):
        read_columns(frames, 3, LAYOUT)


def test_an_action_that_the_policy_does_not_have_is_refused_in_valid_rows_alone() -> None:
    """It would be an index beyond the logits: on a GPU the end of the process."""
    records, rows = _records(), LAYOUT.before + LAYOUT.length
    records["valid"] = (LAYOUT.length, 1, LAYOUT.length)
    action = np.full((3, LAYOUT.rows), 4, np.int64)
    action[:, : LAYOUT.before] = action[:, rows:] = np.iinfo(np.int64).min
    action[1, LAYOUT.before + 1 :] = 99
    check = ActionCheck(_place(action=Discrete(n=5)))
    check({"action": action}, records, LAYOUT)
    for wrong in (5, -1):
        spoilt = action.copy()
        spoilt[2, rows - 1] = wrong
        with raises(WireError, "segment_action_outside_space", field="action", value=wrong, expected="0..4"):
            check({"action": spoilt}, records, LAYOUT)


def _place(**spaces: Any) -> Place:
    return World(id="w", agents=(Agent(name="a", observation=Box(shape=(1,)), **spaces),)).places[0]


@pytest.mark.parametrize(
    ("space", "good", "wrong", "kind"),
    [
        (Discrete(n=3, start=2), 4, 1, "segment_action_outside_space"),
        (MultiDiscrete(nvec=(2, 3), start=(0, 5)), [1, 7], [1, 8], "segment_action_outside_space"),
        (MultiBinary(shape=(2,)), [0, 1], [0, 2], "segment_action_outside_space"),
        (Box(shape=(2,), dtype="int32", low=(0, -2), high=4), [4, -2], [0, -3], "segment_action_outside_space"),
    ],
)
def test_an_action_of_any_space_is_one_that_there_is(space: Any, good: Any, wrong: Any, kind: str) -> None:
    """Amounts are kept as they were drawn, beyond the bounds of a box as well."""
    records, rows = _records(), LAYOUT.before + LAYOUT.length
    action = np.empty((3, LAYOUT.rows, *space.shape), space.dtype)
    action[...] = good
    action[:, rows:] = np.array(wrong).astype(space.dtype)
    check = ActionCheck(_place(action=space))
    check({"action": action}, records, LAYOUT)
    action[1, rows - 1] = wrong
    with raises(WireError, kind, field="action"):
        check({"action": action}, records, LAYOUT)


def test_an_action_is_one_that_was_legal() -> None:
    records, rows = _records(), LAYOUT.before + LAYOUT.length
    hands = Dict(spaces={"left": Discrete(n=3, start=1), "force": Box(shape=(1,)), "right": MultiDiscrete(nvec=(2, 2))})
    columns = {
        "action.left": np.full((3, LAYOUT.rows), 2),
        "action.force": np.zeros((3, LAYOUT.rows, 1), np.float32),
        "action.right": np.tile([0, 1], (3, LAYOUT.rows, 1)),
        "action_mask.left": np.tile([False, True, False], (3, LAYOUT.rows, 1)),
        "action_mask.right": np.tile([True, False, False, True], (3, LAYOUT.rows, 1)),
    }
    check = ActionCheck(_place(action=hands, action_mask=True))
    assert set(check.columns) == columns.keys() - {"action.force"}
    check(columns, records, LAYOUT)
    for name, wrong in (("action.left", 1), ("action.right", [1, 1]), ("action.right", [0, 0])):
        spoilt = {**columns, name: columns[name].copy()}
        spoilt[name][0, rows - 1] = wrong
        with raises(WireError, "segment_action_not_legal", field=name):
            check(spoilt, records, LAYOUT)


def test_a_truth_value_is_0_or_1() -> None:
    frames = _frames()
    which = next(i for i, field in enumerate(LAYOUT.fields) if field.dtype == "|b1")
    frames[which] = bytes([2]) + frames[which][1:]
    with raises(WireError, "segment_truth_value_wrong", field="terminated"):
        read_columns(frames, 3, LAYOUT)


def test_no_honest_frame_is_larger_than_the_largest() -> None:
    assert largest_frame(LAYOUT, 3) == 65_536
    wide = Layout((Field("observation", "<f8", (1000,)), Field("final_row", "<i4", (1,), "slot")), 64)
    assert largest_frame(wide, 5) >= 5 * wide.slot_bytes(wide.fields[0])
    tiny = Layout((Field("observation", "|u1"),), 1)
    assert largest_frame(tiny, 100_000) >= 100_000 * RECORD.itemsize


@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_any_segments_of_any_layout_come_out_as_they_went_in(data: st.DataObject) -> None:
    """Records and columns of layouts with every dtype, shapes with zeros among them, and any number of segments."""
    shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
    names = [f"field_{i}" for i in range(data.draw(st.integers(1, 4)))]
    fields = [
        Field(n, data.draw(DTYPES), data.draw(shapes), data.draw(st.sampled_from(("row", "slot")))) for n in names
    ]
    layout = Layout(tuple(fields), data.draw(st.integers(1, 5)), data.draw(st.integers(0, 3)))
    count = data.draw(st.integers(1, 4))
    records = np.zeros(count, RECORD)
    records["number"] = sorted(data.draw(st.sets(st.integers(1, 2**63 - 1), min_size=count, max_size=count)))
    records["valid"] = data.draw(st.lists(st.integers(1, layout.length), min_size=count, max_size=count))
    records["before"] = data.draw(st.lists(st.integers(0, layout.before), min_size=count, max_size=count))
    for name in ("sequence", "stream", "stream_sequence", "version_min", "version_max"):
        records[name] = data.draw(st.lists(st.integers(0, 2**64 - 1), min_size=count, max_size=count))
    records["sequence"] &= np.uint64(2**64 - 2)
    records["state"] = FINISHED
    assert np.array_equal(read_records(records.tobytes(), count, layout), records)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    frames = [rng.integers(0, 2, layout.slot_bytes(f) * count, dtype=np.uint8).tobytes() for f in fields]
    columns = read_columns(frames, count, layout)
    for field, frame in zip(fields, frames, strict=True):
        assert columns[field.name].shape == layout.shape(field, count)
        assert columns[field.name].tobytes() == frame
    assert layout == Layout(tuple(fields), layout.length, layout.before)
    described = json.loads(json.dumps(layout.describe()))
    again = Layout(
        tuple(Field(n, d, tuple(s), p) for n, d, s, p in described["fields"]), described["length"], described["before"]
    )
    assert again.hash == layout.hash


def _segments() -> dict[str, np.ndarray]:
    parts = [content(LAYOUT, number) for number in (1, 2, 3)]
    return {field.name: np.stack([part[field.name] for part in parts]) for field in LAYOUT.fields}


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("field", ["observation", "reward"])
def test_a_number_that_is_not_finite_is_refused_in_rows_that_are_real_alone_H1(field: str, value: float) -> None:
    records, columns = _records(), _segments()
    records["valid"], records["before"] = (LAYOUT.length, 2, LAYOUT.length), (0, LAYOUT.before, 0)
    last = LAYOUT.before + 2 - (field == "reward")  # an observation more, to bootstrap from
    columns[field][0, 0] = columns[field][1, last + 1] = columns[field][2, 0] = value
    check_finite(columns, records, LAYOUT)
    for segment, row in ((0, LAYOUT.before), (1, last), (2, LAYOUT.before + LAYOUT.length - 1)):
        broken = {**columns, field: columns[field].copy()}
        broken[field][segment, row] = value
        with raises(WireError, "segment_field_not_finite", field=field):
            check_finite(broken, records, LAYOUT)


def test_numbers_whose_squares_are_too_large_are_finite() -> None:
    records, columns = _records(), _segments()
    columns["observation"][...] = 1e30
    columns["reward"][...] = np.finfo(np.float32).max
    check_finite(columns, records, LAYOUT)
    columns["observation"][0, LAYOUT.before] = np.nan
    with raises(WireError, "segment_field_not_finite", field="observation"):
        check_finite(columns, records, LAYOUT)
