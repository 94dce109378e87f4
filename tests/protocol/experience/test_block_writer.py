"""Blocks are numbered in the order in which they are finished, and one without a segment is free again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from protocol.experience.block_writer import BlockWriter
from protocol.experience.flow_control import CreditWindow
from protocol.experience.ring_buffer import FINISHED, FREE, WRITING, Ring
from tests.protocol.parts import BLOCK, LAYOUT


@pytest.fixture
def writer(memory_dir: Path) -> BlockWriter:
    return BlockWriter(Ring.create(None, LAYOUT, 4 * BLOCK), CreditWindow(4, 3, 1, "stream", "block"), BLOCK)


def test_segments_get_consecutive_numbers_and_slots_without_a_row_none(writer: BlockWriter) -> None:
    numbers, announced = [], []
    for valid, count in ((LAYOUT.length, 2), (np.array([0, 3]), 1), (np.array([2, 0]), 1)):
        slots = writer.take()
        assert slots is not None
        assert (writer.ring.table["state"][slots] == WRITING).all()
        assert writer.finish(slots, valid, 0) == count
        numbers += writer.ring.segments(slots)["number"].tolist()
        expected = np.where(np.broadcast_to(valid, BLOCK) > 0, FINISHED, FREE)
        assert (writer.ring.table["state"][slots] == expected).all()
        announced += [(block.first, block.last) for block in writer.credit.announce()]
    assert numbers == [1, 2, 3, 4]
    assert announced == [(1, 2), (3, 3), (4, 4)]


@pytest.mark.parametrize("nothing", [0, np.zeros(BLOCK, np.int64)], ids=["one number", "one a slot"])
def test_a_block_without_a_segment_is_free_again(writer: BlockWriter, nothing: int | np.ndarray) -> None:
    slots = writer.take()
    assert slots is not None
    assert writer.finish(slots, nothing, 0) == 0
    assert (writer.ring.table["state"] == FREE).all()
    assert writer.credit.idle
    assert writer.take() == slots
