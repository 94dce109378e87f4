"""Rows: added one at a time, sampled as stacks with their successors, in this process or another.

Row number `g` of a test has the state (g, g + 0.5), action g, reward 2 g, unless a test says otherwise.
"""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigurationError, EnvironmentFault, SharedMemoryError
from protocol.memory.row_buffer import RowBuffer, RowReader, RowSpec
from protocol.memory.row_reader import EMPTY, Description, RowBatch
from tests.faults import raises
from tests.protocol.parts import line, python

SPEC = RowSpec((2,), capacity=24, frames=3, segment_length=5)
MODES: list[dict[str, Any]] = [{}, {"lock_timeout": 60.0}, {"checksums": True}]
NAMES = ["lock_free", "locked", "checksums"]

WRITER = """
import sys
from protocol.memory.row_buffer import RowBuffer
from tests.protocol.memory.test_row_buffer import SPEC, put
rows = RowBuffer("rows", SPEC)
put(rows, range(17))
print(rows.description.name, rows.description.layout, flush=True)
sys.stdin.readline()
put(rows, range(17, 33))
print("more", flush=True)
sys.stdin.readline()
"""


ENDLESS = """
import json
import sys
import numpy as np
from protocol.memory.row_buffer import RowBuffer
from tests.protocol.memory.test_row_buffer import FAST
rows = RowBuffer("rows", FAST, **json.loads(sys.argv[1]))
print(rows.description.name, rows.description.layout, flush=True)
at = 0
while True:
    numbers = np.arange(at, at + 7)
    states = np.repeat(numbers[:, None], FAST.shape[0], 1) + [0, 0.5] * 200
    rows.add_batch(states, numbers, 2.0 * numbers, numbers % 50 == 0)
    at = (at + 7) % 2**22  # exact as a float32
"""
FAST = RowSpec((400,), capacity=60, frames=3, segment_length=5)


class Clock:
    """Time that a test moves on."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def put(rows: RowBuffer, numbers: range, ends: tuple[int, ...] = ()) -> None:
    """Adds rows by number; those in `ends` are done."""
    for g in numbers:
        assert rows.add([g, g + 0.5], g, 2.0 * g, g in ends)


@contextmanager
def private(spec: RowSpec = SPEC, **options: Any) -> Iterator[RowBuffer]:
    """Rows without a file."""
    rows = RowBuffer(None, spec, **options)
    try:
        yield rows
    finally:
        rows.close()


@contextmanager
def shared(spec: RowSpec = SPEC, **options: Any) -> Iterator[tuple[RowBuffer, RowReader]]:
    """A writer, and a reader that attached its file."""
    rows = RowBuffer("rows", spec, **options)
    reader = RowReader.attach(rows.description, spec)
    try:
        yield rows, reader
    finally:
        reader.close()
        rows.close()


def check(batch: RowBatch, frames: int, ends: tuple[int, ...]) -> None:
    """Every stack, successor and flag of a batch follows from its action, the row's number."""
    for i, g in enumerate(batch.action[:, 0].tolist()):
        stack = np.arange(g - frames + 1, g + 1)
        want = np.stack([stack, stack + 0.5], 1)
        done = g in ends
        assert batch.state[i].tolist() == want.ravel().tolist()
        assert batch.next_state[i].tolist() == [0.0] * 2 * frames if done else (want + 1).ravel().tolist()
        assert batch.reward[i, 0] == 2.0 * g
        assert batch.done[i, 0] == done
        assert batch.valid[i, 0] == (not any(h in ends for h in stack[:-1].tolist()))


def test_B1_payload_has_the_documented_types_and_bytes() -> None:
    """B1: f32, i64, f32, f32; what comes on top is reported."""
    spec = RowSpec((75,))
    assert spec.payload_bytes == 3_160_000
    kinds = [(f.name, f.dtype) for f in spec.layout.fields if f.per == "row"]
    assert kinds == [("state", "<f4"), ("action", "<i8"), ("reward", "<f4"), ("done", "<f4")]
    with private(spec) as rows:
        assert spec.payload_bytes < rows.nbytes < 1.1 * spec.payload_bytes


@pytest.mark.parametrize("options", MODES, ids=NAMES)
def test_B2_the_oldest_rows_are_overwritten_one_by_one(options: dict[str, Any]) -> None:
    """B2, U2: never more than the capacity, never fewer once it is reached, counted in 64 bits."""
    with shared(**options) as (rows, _):
        for g in range(100):
            assert len(rows) == min(g, SPEC.capacity)
            assert rows.getidx() == g % SPEC.capacity
            put(rows, range(g, g + 1))
        assert rows.total == rows.counters["rows_added"] == 100
        assert rows[:][1].tolist() == list(range(76, 100))
        rows._added = 2**40  # as after a year
        rows.clear()
        put(rows, range(2))
        assert rows.total == 2**40 + 2
        assert rows[:][1].tolist() == [0, 1]


@pytest.mark.parametrize("batch", [1, 4, 20])
def test_B3_too_little_data_is_not_ready_at_the_boundary_U8(batch: int) -> None:
    """B3, U8: size - frames - 1 is batch - 1, then batch."""
    with private() as rows:
        for g in range(batch + SPEC.frames + 1):
            assert rows.sample(batch) is None
            put(rows, range(g, g + 1))
        assert len(rows) - SPEC.frames - 1 == batch
        assert rows.sample(batch) is not None
        assert rows.sample(batch + 1) is None
        assert rows.sample(0) is None


def test_B4_B17_batches_have_their_shapes_are_allocated_once_and_are_copies() -> None:
    with private() as rows:
        put(rows, range(20))
        batch = rows.sample(7)
        assert batch is not None
        assert [array.shape for array in batch] == [(7, 6), (7, 1), (7, 1), (7, 6), (7, 1), (7, 1)]
        assert [array.dtype.str for array in batch] == ["<f4", "<i8", "<f4", "<f4", "<f4", "<f4"]
        again = rows.sample(7)
        assert again is not None
        assert all(a is b for a, b in zip(batch, again, strict=True))
        for array in again:
            array.fill(-1)
        row = rows[3]
        row[0].fill(-1)
        assert rows[:][0].tolist() == [[g, g + 0.5] for g in range(20)]
        kept = rows[2][0]
        put(rows, range(20, 80))
        assert kept.tolist() == [2, 2.5]


@settings(max_examples=40, deadline=None)
@given(
    frames=st.integers(1, 4),
    length=st.integers(1, 7),
    capacity=st.integers(8, 30),
    pieces=st.lists(st.integers(1, 9), min_size=1, max_size=12),
    ends=st.sets(st.integers(0, 108), max_size=12),
    mode=st.sampled_from(MODES),
)
def test_B5_B6_B7_every_sample_is_a_stack_and_its_successor_at_any_fill_U7_U9(
    frames: int, length: int, capacity: int, pieces: list[int], ends: set[int], mode: dict[str, Any]
) -> None:
    """B5: valid is 0 iff the stack crosses an end. B6: s' follows s, also around the write head. B7: no index twice."""
    spec = RowSpec((2,), capacity, frames, length)
    with shared(spec, **mode) as (rows, reader):
        at = 0
        for piece in pieces:
            numbers = np.arange(at, at + piece)
            states = np.stack([numbers, numbers + 0.5], 1)
            rows.add_batch(states, numbers, 2.0 * numbers, np.isin(numbers, list(ends)))
            at += piece
            assert (len(rows), reader.total) == (min(at, capacity), at // length * length)
            for sampler in (rows, reader):
                ready = len(sampler) - frames - 1
                for size in {1, max(1, ready // 2), max(1, ready)}:
                    batch = sampler.sample(size)
                    assert (batch is None) == (ready < size)
                    if batch is not None:
                        assert len(set(batch.action[:, 0].tolist())) == size
                        check(batch, frames, tuple(ends))


def test_every_row_that_has_a_successor_is_drawn_alike() -> None:
    with private() as rows:
        put(rows, range(40))
        count = np.zeros(40, int)
        for _ in range(2000):
            batch = rows.sample(5)
            assert batch is not None
            count[batch.action[:, 0]] += 1
    drawn = np.flatnonzero(count)
    assert drawn.tolist() == list(range(40 - 24 + 2, 40 - 2))
    assert count[drawn].min() > 0.8 * 2000 * 5 / 20


def test_B9_another_process_attaches_the_same_rows_and_creates_nothing(memory_dir: Path) -> None:
    """B9: a description travels; what A writes B reads, with equal cursors."""
    with raises(SharedMemoryError, "shared_memory_unopenable"):
        RowReader.attach(Description("rookery-rows", SPEC.layout.hash), SPEC)
    assert list(memory_dir.iterdir()) == []
    with python(WRITER) as process:
        description = Description(*line(process).split())
        other = RowSpec((3,), 24, 3, 5)
        with raises(SharedMemoryError, "rows_layout_differs", value=SPEC.layout.hash, expected=other.layout.hash):
            RowReader.attach(description, other)
        with raises(SharedMemoryError, "rows_capacity_differs", rows=description.name):
            RowReader.attach(description, RowSpec((2,), 99, 3, 5))
        reader = RowReader.attach(description, SPEC)
        assert reader[:][1].tolist() == list(range(15))  # rows 15 and 16 are in a segment that is not full
        assert (reader.total, reader.getidx()) == (15, 15)
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert line(process) == "more"
        assert reader[:][1].tolist() == list(range(6, 30))
        assert (reader.total, reader.getidx()) == (30, 6)
        batch = reader.sample(9)
        assert batch is not None
        check(batch, SPEC.frames, ())
        process.kill()
        process.wait(60)
        assert len(reader) == 24  # B12: the memory outlives who made it
        reader.close()
    assert list(memory_dir.iterdir()) == []


def test_B1_rows_become_visible_to_others_after_flush_after_at_the_latest() -> None:
    clock = Clock()
    with shared(flush_after=5.0, clock=clock) as (rows, reader):
        put(rows, range(2))
        clock.now += 4
        rows.flush()
        assert (len(rows), len(reader)) == (2, 0)
        clock.now += 2
        put(rows, range(2, 3))  # the next row is enough
        assert (len(rows), len(reader)) == (3, 3)
        put(rows, range(3, 5))
        clock.now += 6
        rows.flush()  # and so is asking
        rows.flush()
        put(rows, range(5, 21))
        assert reader[:][1].tolist() == list(range(20))
        for _ in range(20):  # stacks reach over segments that were cut short
            batch = reader.sample(10)
            assert batch is not None
            check(batch, SPEC.frames, ())


def test_rows_of_an_earlier_use_of_a_short_segment_are_never_seen() -> None:
    """No row that is copied out holds poison or what lay there before."""
    clock = Clock()
    with shared(flush_after=5.0, clock=clock) as (rows, reader):
        at = 0
        rng = np.random.default_rng(0)
        for _ in range(60):
            n = int(rng.integers(1, 8))
            put(rows, range(at, at + n))
            at += n
            clock.now += 6 * float(rng.random() < 0.4)
            rows.flush()
            numbers = reader[:][1]
            assert numbers.tolist() == list(range(reader.total - len(reader), reader.total))
            assert np.isfinite(reader[:][0]).all()
            batch = reader.sample(3)
            if batch is not None:
                check(batch, SPEC.frames, ())


def test_B14_empty_rows_fill_stacks_up_and_are_never_sampled_themselves() -> None:
    """B14, D5, U11: a new episode's stacks begin with zeros, as the actor's own do."""
    with private() as rows:
        seen: dict[int, list[float]] = {}
        for first in (0, 6):
            rows.add_empty()
            for g in range(first, first + 6):
                now = np.array([[g + 1, g + 1.5]], np.float32)
                seen[g] = np.concatenate([rows.current_state(), now]).ravel().tolist()
                rows.add(now, g, 0.0, g == 5)
        drawn = set()
        for _ in range(50):
            batch = rows.sample(8)
            assert batch is not None
            assert batch.valid.all()
            assert np.isfinite(batch.reward).all()
            for i, g in enumerate(batch.action[:, 0].tolist()):
                drawn.add(g)
                assert batch.state[i].tolist() == seen[g]
                assert batch.next_state[i].tolist() == ([0.0] * 6 if g == 5 else seen[g + 1])
        assert drawn == set(range(10))
        assert rows.sample(11) is None  # enough rows, but two are empty
        assert EMPTY in rows[:][1]


def test_empty_rows_within_an_episode_leave_no_transition_into_them() -> None:
    with private() as rows:
        put(rows, range(6))
        rows.add_empty()
        put(rows, range(6, 14))
        for _ in range(50):
            batch = rows.sample(6)
            assert batch is not None
            assert 5 not in batch.action


def test_B14_clear_length_index_and_current_state() -> None:
    with shared() as (rows, reader):
        assert (len(rows), rows[:][0].shape) == (0, (0, 2))
        assert rows.current_state().tolist() == [[0, 0], [0, 0]]
        put(rows, range(1))
        assert rows.current_state().tolist() == [[0, 0], [0, 0.5]]
        put(rows, range(1, 8))
        assert rows.current_state().tolist() == [[6, 6.5], [7, 7.5]]
        state, action, reward, done = rows[-2]
        assert (state.tolist(), int(action), float(reward), float(done)) == ([6, 6.5], 6, 12.0, 0.0)
        assert rows[2:4][1].tolist() == [2, 3]
        with pytest.raises(IndexError):
            rows[8]
        assert len(reader) == 5
        rows.clear()
        assert (len(rows), len(reader), rows.sample(1), reader.sample(1)) == (0, 0, None, None)
        put(rows, range(50, 61))
        assert rows[:][1].tolist() == list(range(50, 61))
        assert reader[:][1].tolist() == list(range(50, 60))
        assert rows.total == 19
    with private(RowSpec((2,), 24)) as rows:
        assert rows.current_state().shape == (0, 2)
        rows.add_empty()
        assert len(rows) == 0


def test_B14_save_and_load_keep_rows_and_extra_data_without_pickle(tmp_path: Path) -> None:
    path = tmp_path / "rows.npz"
    with private() as rows, private(RowSpec((2,), 10, 2, 4)) as small:
        put(rows, range(30), ends=(12,))
        rows.add_empty()
        rows.extra_data = {"epsilon": np.float64(0.25), "names": np.array(["a", "b"])}
        rows.save(path)
        before = [a.tolist() for a in rows[:][:2]]
        put(rows, range(100, 110))
        rows.extra_data = {}
        rows.load(path)
        assert [a.tolist() for a in rows[:][:2]] == before
        assert rows.extra_data["epsilon"] == 0.25
        assert rows.extra_data["names"].tolist() == ["a", "b"]
        small.load(path)
        assert small[:][1].tolist() == [*range(22, 30), EMPTY, EMPTY]
        rows.extra_data = {"bad": np.array([object()])}
        with raises(ConfigurationError, "extra_data_not_plain"):
            rows.save(path)
    assert [p.name for p in tmp_path.iterdir()] == ["rows.npz"]


@pytest.mark.parametrize("kind", ["missing", "text", "pickle", "other shape", "a column short"])
def test_what_cannot_be_loaded_is_told_in_a_sentence_and_changes_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "rows.npz"
    good: dict[str, Any] = {
        "state": np.zeros((4, 2)),
        "action": np.arange(4),
        "reward": np.zeros(4),
        "done": np.zeros(4),
    }
    if kind == "text":
        path.write_bytes(b"rows")
    elif kind == "pickle":
        np.savez(path, **(good | {"action": np.array([{}] * 4)}))
    elif kind == "other shape":
        np.savez(path, **(good | {"state": np.zeros((4, 3))}))
    elif kind == "a column short":
        np.savez(path, **{name: array for name, array in good.items() if name != "done"})
    with private() as rows:
        put(rows, range(7))
        with raises(ConfigurationError, "rows_file_unreadable", file=path):
            rows.load(path)
        assert rows[:][1].tolist() == list(range(7))


GOOD = (np.zeros(2, np.float32), 1, 0.5, False)
MISMATCHES = {
    "state too long": ((np.zeros(3), 1, 0.5, False), "row_shape_wrong", "state"),
    "state of words": ((["a", "b"], 1, 0.5, False), "row_type_wrong", "state"),
    "action a fraction": ((np.zeros(2), 1.5, 0.5, False), "row_type_wrong", "action"),
    "two actions": ((np.zeros(2), [1, 2], 0.5, False), "row_shape_wrong", "state"),
    "action of the empty": ((np.zeros(2), EMPTY, 0.5, False), "row_action_reserved", "action"),
    "two rewards": ((np.zeros(2), 1, [0.5, 1], False), "row_shape_wrong", "reward"),
    "reward none": ((np.zeros(2), 1, None, False), "row_type_wrong", "reward"),
    "two ends": ((np.zeros(2), 1, 0.5, [False, True]), "row_shape_wrong", "done"),
}


@pytest.mark.parametrize(("row", "kind", "field"), MISMATCHES.values(), ids=MISMATCHES.keys())
def test_B15_a_row_of_another_shape_or_kind_is_refused_and_none_is_broadcast(row: tuple, kind: str, field: str) -> None:
    with private() as rows:
        rows.add(*GOOD)
        with raises(EnvironmentFault, kind, field=field) as caught:
            rows.add(*row)
        assert "\n" not in str(caught.value)
        assert len(rows) == rows.counters["rows_added"] == 1


def test_B15_one_row_with_a_leading_one_is_flattened() -> None:
    """B15: (1, F) -> (F,), as environments give it."""
    with private() as rows:
        assert rows.add(np.array([[7.0, 8.0]]), np.array([3]), np.float64(0.5), np.bool_(True))
        state, action, reward, done = rows[0]
        assert (state.tolist(), int(action), float(reward), float(done)) == ([7.0, 8.0], 3, 0.5, 1.0)
        assert rows.add_batch(np.zeros((0, 2)), np.zeros(0, int), [], []) == 0
        with raises(EnvironmentFault, "row_shape_wrong", field="state", value=[2], expected=[3, 2]):
            rows.add_batch(np.zeros(2), [1, 2, 3], np.zeros(3), np.zeros(3))


def test_B16_rows_that_leave_unsampled_are_counted_here_and_there() -> None:
    """B16: exactly: what was added is visible, was sampled, or is counted."""
    with shared() as (rows, reader):
        put(rows, range(24))
        drawn: set[int] = set()
        for _ in range(3):
            batch = rows.sample(4)
            assert batch is not None
            drawn |= set(batch.action[:, 0].tolist())
        assert rows.counters["rows_overwritten_unsampled"] == 0
        put(rows, range(24, 100))
        assert len(rows) == rows.counters["fill"] == 24
        assert rows.counters["rows_overwritten_unsampled"] == 76 - len(drawn)
        assert len(reader) == reader.counters["fill"] == 24
        assert reader.counters["rows_overwritten_unsampled"] == 76  # what it never saw it never sampled
        late = RowReader.attach(rows.description, SPEC)
        assert late.counters["rows_overwritten_unsampled"] == 0  # what was gone before is nobody's loss
        late.close()


def test_B16_starvation_is_counted_in_seconds() -> None:
    clock = Clock()
    with private(clock=clock) as rows:
        assert rows.sample(2) is None
        clock.now += 3
        assert rows.sample(2) is None
        put(rows, range(10))
        clock.now += 2
        assert rows.sample(2) is not None
        clock.now += 50
        assert rows.sample(2) is not None
        assert rows.counters["starved"] == pytest.approx(5)


@pytest.mark.parametrize("where", ["here", "there"])
def test_B16_backpressure_refuses_rows_until_the_reader_has_sampled(where: str) -> None:
    with shared(backpressure=10) as (rows, reader):
        numbers = np.arange(12)
        states = np.stack([numbers, numbers + 0.5], 1)
        assert rows.add_batch(states, numbers, numbers, np.zeros(12)) == 10
        assert not rows.add(*GOOD)
        assert rows.counters["rows_refused"] == 3
        assert (rows.total, len(reader)) == (10, 10)
        sampler = reader if where == "there" else rows
        assert sampler.sample(6) is not None
        taken = 0
        while rows.add(*GOOD):
            taken += 1
        assert taken == 6
    with raises(ConfigurationError, "rows_backpressure_never_batches", capacity=24, least=5, most=24):
        RowBuffer(None, SPEC, backpressure=4)


def test_B13_a_reader_never_returns_a_slot_that_was_overwritten_while_it_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The writer comes round between copying and asking: the copy is thrown away and counted, another is made."""
    with shared() as (rows, reader):
        put(rows, range(30))
        real = reader._sample
        overtaken = iter([True, False])

        def slow(size: int) -> object:
            found = real(size)
            if next(overtaken):
                put(rows, range(30, 60))
            return found

        monkeypatch.setattr(reader, "_sample", slow)
        batch = reader.sample(6)
        assert batch is not None
        assert reader.counters["torn"] == 1
        assert batch.action.min() >= 60 - SPEC.capacity
        check(batch, SPEC.frames, ())


@pytest.mark.parametrize("options", MODES, ids=NAMES)
def test_B13_B6_samples_from_a_process_that_never_stops_adding_are_whole(options: dict[str, Any]) -> None:
    """Every number of every stack is that of its row, whichever slots were being overwritten."""
    with python(ENDLESS, json.dumps(options)) as process:
        reader = RowReader.attach(Description(*line(process).split()), FAST)
        drawn: set[int] = set()
        batches, start = 0, time.monotonic()
        while (passed := time.monotonic() - start) < 0.4 or len(drawn) <= FAST.capacity or batches <= 5:
            assert passed < 60
            batch = reader.sample(16)
            if batch is None:
                continue
            batches += 1
            drawn |= set(batch.action[:, 0].tolist())
            row = batch.action + np.repeat(np.arange(-2, 1), 400) + np.tile([0, 0.5], 600)
            assert (batch.state == row).all()
            assert (batch.next_state == np.where(batch.done > 0, 0, row + 1)).all()
            assert (batch.done == (batch.action % 50 == 0)).all()
            assert (batch.reward == 2 * batch.action).all()
        if "lock_timeout" in options:
            assert reader.counters["torn"] == 0
        process.kill()
        process.wait(60)
        reader.close()


def test_a_segment_whose_writer_has_begun_it_but_not_said_so_is_not_seen_B13() -> None:
    """Between the odd word and the state WRITING; by its next number it is the newest, and yet to be written."""
    with shared() as (rows, reader):
        put(rows, range(30))
        assert reader.total == 30
        ring, slot = rows._ring, rows._slot
        ring.fields["sequence"][slot] |= np.uint64(1)
        ring.columns["first"][slot] = 30
        assert reader.total == 30
        assert reader[-1][0].tolist() == [29, 29.5]


def test_a_writer_that_always_comes_round_means_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared() as (rows, reader):
        put(rows, range(30))
        real = reader._sample

        def slow(size: int) -> object:
            found = real(size)
            put(rows, range(rows.total, rows.total + 30))
            return found

        monkeypatch.setattr(reader, "_sample", slow)
        assert reader.sample(6) is None
        assert reader.counters["torn"] == 10


def test_with_checksums_a_changed_byte_is_seen_and_only_what_is_newer_is_sampled() -> None:
    with shared(checksums=True) as (rows, reader):
        put(rows, range(20))
        assert len(reader) == 20
        rows._ring.columns["reward"][1, 2] = 1e9
        assert reader[:][1].tolist() == list(range(10, 20))
        assert reader.counters["torn"] == 1
        for _ in range(20):
            batch = reader.sample(3)
            assert batch is not None
            check(batch, SPEC.frames, ())


def test_a_description_is_plain_data_and_private_rows_have_none() -> None:
    with shared() as (rows, _), private() as hidden:
        assert Description(*json.loads(json.dumps(rows.description))) == rows.description
        with raises(ConfigurationError, "rows_are_private"):
            _ = hidden.description
    for spec in ({"capacity": 0}, {"frames": 0}, {"segment_length": 65_536}, {"shape": (0,)}):
        with raises(ConfigurationError, "row_spec_malformed"):
            RowSpec(**({"shape": (2,)} | spec))


def test_what_the_header_says_of_the_readers_words_is_where_they_are(memory_dir: Path) -> None:
    """The reader's words are the last 64 bytes of the header page."""
    with shared() as (rows, reader):
        put(rows, range(20))
        assert reader.sample(5) is not None
        raw = (memory_dir / "rookery-rows").read_bytes()
        assert struct.unpack_from("<8Q", raw, 4096 - 64) == (5, 0, 0, 0, 0, 0, 0, 0)
