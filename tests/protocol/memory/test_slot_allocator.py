"""The pool: free slots are given out in runs, each to one owner, and come back in any order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.experience.ring_buffer import FINISHED, RECORD
from protocol.memory.slot_allocator import SlotPool
from tests.protocol.parts import LAYOUT, content


class Owners(RuleBasedStateMachine):
    """Takes and gives back, against a plain set."""

    @initialize(slots=st.integers(1, 24))
    def start(self, slots: int) -> None:
        self.pool = SlotPool(LAYOUT, slots)
        self.taken: list[int] = []

    @precondition(lambda self: self.pool.free)
    @rule(share=st.floats(0, 1))
    def take(self, share: float) -> None:
        n = max(1, round(share * self.pool.free))
        free = sorted(set(range(self.pool.slots)) - set(self.taken))
        runs = np.split(np.array(free), np.flatnonzero(np.diff(free) != 1) + 1)
        pieces = self.pool._take(n)
        got = [slot for piece in pieces for slot in range(piece.start, piece.stop)]
        assert len(got) == n
        assert set(got) <= set(free)
        assert len(set(got)) == n
        assert (len(pieces) == 1) == any(len(run) >= n for run in runs)
        self.taken += got

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        some = data.draw(st.lists(st.sampled_from(self.taken), unique=True))
        self.pool.give_back(np.array(some, np.uint32))
        self.taken = [slot for slot in self.taken if slot not in some]

    @rule(slot=st.integers(-1, 30))
    def what_is_free_cannot_be_given_back(self, slot: int) -> None:
        if slot not in self.taken:
            with pytest.raises(ValueError, match="free already, or beyond"):
                self.pool.give_back(np.array([slot]))

    @invariant()
    def nothing_is_lost(self) -> None:
        if hasattr(self, "pool"):
            assert self.pool.free == self.pool.slots - len(self.taken)
            runs = list(zip(self.pool._starts, self.pool._stops, strict=True))
            assert all(stop < start for (_, stop), (start, _) in pairwise(runs))  # merged, in order


TestOwners = Owners.TestCase
TestOwners.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def _segments(first: int, n: int) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    records = np.zeros(n, RECORD)
    records["number"], records["valid"], records["slot"] = np.arange(first, first + n), LAYOUT.length, 99
    whole = [content(LAYOUT, number) for number in range(first, first + n)]
    return records, {name: np.stack([columns[name] for columns in whole]) for name in whole[0]}


def test_segments_lie_whole_where_their_records_say_also_in_several_runs() -> None:
    pool = SlotPool(LAYOUT, 8)
    first = pool.store(*_segments(1, 4))
    pool.store(*_segments(5, 4))
    pool.give_back(first["slot"][[0, 2]])
    again = pool.store(*_segments(9, 2))
    assert again["slot"].tolist() == [0, 2]
    assert again["number"].tolist() == [9, 10]
    assert (again["state"] == FINISHED).all()
    assert pool.ring.intact(again).all()
    assert pool.ring.intact(first).tolist() == [False, True, False, True]
    for record in again:
        for name, value in content(LAYOUT, int(record["number"])).items():
            assert np.array_equal(pool.ring.columns[name][record["slot"]], value)


def test_a_message_gets_one_run_where_there_is_one_and_the_same_memory_again() -> None:
    """So that a message is one slice assignment a field, into memory that is warm."""
    pool = SlotPool(LAYOUT, 64)
    for _ in range(10):
        records = pool.store(*_segments(1, 4))
        assert records["slot"].tolist() == [0, 1, 2, 3]
        pool.give_back(records["slot"])
    first, second, third = (pool.store(*_segments(1, 4))["slot"] for _ in range(3))
    for slots in (first, third, second):  # the last one closes a gap
        pool.give_back(slots)
    assert len(pool._take(64)) == 1


def test_more_than_is_free_is_an_error() -> None:
    with pytest.raises(ValueError, match="3 slots of a pool with 2 free ones"):
        SlotPool(LAYOUT, 2).store(*_segments(1, 3))
