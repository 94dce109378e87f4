"""What a stranger sends is checked before any of it is used."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from protocol.errors import WireError
from protocol.intake import check_final_rows, read_columns, read_records
from protocol.ring import RECORD
from tests.protocol.parts import LAYOUT, content


def _records(count: int = 3, first: int = 1) -> np.ndarray:
    records = np.zeros(count, RECORD)
    records["number"] = np.arange(first, first + count)
    records["valid"] = LAYOUT.length
    return records


def _frames(count: int = 3) -> list[bytes]:
    parts = [content(LAYOUT, number) for number in range(1, count + 1)]
    return [np.stack([part[field.name] for part in parts]).tobytes() for field in LAYOUT.fields]


def test_honest_segments_are_read_as_they_are() -> None:
    records = _records()
    assert np.array_equal(read_records(records.tobytes(), 3, LAYOUT), records)
    columns = read_columns(_frames(), 3, LAYOUT)
    assert list(columns) == [field.name for field in LAYOUT.fields]
    for number in (1, 2, 3):
        for name, value in content(LAYOUT, number).items():
            assert np.array_equal(columns[name][number - 1], value)


def _set(name: str, index: int, value: int) -> Callable[[np.ndarray], None]:
    def change(records: np.ndarray) -> None:
        records[name][index] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("valid", 1, LAYOUT.length + 1),
        _set("valid", 1, 65_535),
        _set("valid", 2, 0),
        _set("before", 0, LAYOUT.before + 1),
        _set("before", 0, 65_535),
        _set("number", 0, 0),
        _set("number", 1, 1),
        _set("number", 1, 3),
        _set("number", 1, 2**64 - 1),
        _set("number", 2, 2**63),
        _set("number", 2, 2**64 - 1),
    ],
)
def test_records_with_impossible_rows_or_numbers_are_refused(change: Callable[[np.ndarray], None]) -> None:
    records = _records()
    change(records)
    with pytest.raises(WireError, match="; "):
        read_records(records.tobytes(), 3, LAYOUT)


@pytest.mark.parametrize(("size", "count"), [(0, 0), (0, 1), (63, 1), (65, 1), (128, 1), (64, 2), (64, 2**32 - 1)])
def test_records_of_the_wrong_size_are_refused(size: int, count: int) -> None:
    with pytest.raises(WireError, match="bytes of records"):
        read_records(bytes(size), count, LAYOUT)


@pytest.mark.parametrize("change", [-1, 1, 64])
@pytest.mark.parametrize("which", range(len(LAYOUT.fields)))
def test_a_field_of_the_wrong_size_is_named(which: int, change: int) -> None:
    frames = _frames()
    frames[which] = frames[which][:change] if change < 0 else frames[which] + bytes(change)
    with pytest.raises(WireError, match=LAYOUT.fields[which].name):
        read_columns(frames, 3, LAYOUT)


@pytest.mark.parametrize("row", [LAYOUT.length, 2**31 - 1, -2, -(2**31)])
def test_a_final_row_outside_the_segment_is_refused(row: int) -> None:
    final = np.full((3, 2), -1, np.int32)
    check_final_rows(final, LAYOUT)
    final[1] = LAYOUT.length - 1
    check_final_rows(final, LAYOUT)
    final[2, 1] = row
    with pytest.raises(WireError, match=r"final_row outside -1\.\.3"):
        check_final_rows(final, LAYOUT)
    frames = _frames()
    frames[-1] = final.tobytes()
    with pytest.raises(WireError, match="final_row"):
        read_columns(frames, 3, LAYOUT)
