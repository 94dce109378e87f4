"""How many runs there is room for: enough, seldom another number, and for each policy by what it alone was given."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from workers.algorithms.common.run_capacity import RunCapacity

PARTS = [torch.arange(0, 16), torch.arange(16, 32)]
"""Two minibatches of 16 segments."""


def ends(one: int, other: int) -> Tensor:
    """[32]: so many in all of each minibatch."""
    found = torch.zeros(32, dtype=torch.int64)
    found[3], found[20] = one, other
    return found


def test_the_first_batch_makes_room_for_more_ends_than_its_own_and_what_needs_less_changes_nothing() -> None:
    for count, size in ((0, 1.5), (1, 2), (4, 3), (20, 4), (26, 6), (112, 8)):
        room = RunCapacity()
        assert room.ensure(ends(0, count), PARTS)
        assert (room.size, room.runs(16)) == (size, 16 * size)
        assert not room.ensure(ends(count, 0), PARTS)
        assert not room.ensure(ends(0, 0), PARTS)
        assert room.size == size


def test_room_grows_for_what_there_is_no_room_for_and_is_not_taken_back() -> None:
    room = RunCapacity()
    room.ensure(ends(0, 0), PARTS)
    assert not room.ensure(ends(8, 8), PARTS), "both minibatches are full"
    assert room.ensure(ends(8, 9), PARTS)
    assert room.size == 3
    assert not room.ensure(ends(0, 0), PARTS)
    assert room.size == 3


def test_too_many_ends_are_unrolled_row_by_row_from_then_on_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    room = RunCapacity()
    assert room.ensure(ends(113, 0), PARTS)
    assert (room.size, room.runs(16)) == (0, 0)
    assert not room.ensure(ends(0, 0), PARTS)
    assert room.size == 0
    assert [record.getMessage() for record in caplog.records] == [
        "event=memory_unrolled way=row_by_row room=0 ends_a_segment=7.1"
    ]


def test_minibatches_of_unlike_sizes_all_find_room() -> None:
    room = RunCapacity()
    room.ensure(ends(0, 0), [torch.arange(16, 32), torch.arange(2, 4)])
    assert room.size == 6, "two segments, and 8 ends to spare"
