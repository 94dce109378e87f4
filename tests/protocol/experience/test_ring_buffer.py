"""The ring: one memory for writer and reader, whose sequence words tell a whole slot from a torn or recycled one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import SharedMemoryError
from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import FINISHED, FREE, WRITING, Ring, poison
from protocol.memory import shared_file
from protocol.memory.file_lock import RegionLock
from tests.faults import raises
from tests.protocol.parts import LAYOUT, content, line, python

ATTACH = """
import sys
from pathlib import Path
import numpy as np
from protocol.experience.ring_buffer import Ring
from tests.protocol.parts import LAYOUT
ring = Ring.attach(Path(sys.argv[1]), LAYOUT)
print(ring.nonce, ring.slots, int(ring.table["number"][3]), float(ring.columns["reward"][3, 1]), flush=True)
ring.columns["reward"][3, 2] = 77.0
"""

OTHER = Layout((Field("words", "<u8", (64,)),), length=63)
MODES: dict[str, dict[str, Any]] = {
    "lock_free": {"checksums": False},
    "locked": {"checksums": False, "lock_timeout": 1.0},
    "checksums": {"checksums": True},
}
modes = pytest.mark.parametrize("mode", MODES.values(), ids=MODES.keys())


def _fill(ring: Ring, block: slice, first: int) -> None:
    ring.begin(block)
    for slot in range(block.start, block.stop):
        for name, value in content(ring.layout, first + slot - block.start).items():
            ring.columns[name][slot] = value
    ring.finish(block, np.arange(first, first + block.stop - block.start, dtype=np.uint64), ring.layout.length, 1)


def test_B8_unwritten_memory_is_visible_poison(memory_dir: Path) -> None:
    """B8 in spirit: what was never written cannot be taken for data."""
    fields = [Field(dtype, dtype) for dtype in ("<f4", "<f8", "<i4", "<i8", "|i1", "|u1", "<u8", "|b1")]
    ring = Ring.create(memory_dir / "rookery-r-a", Layout(tuple(fields), 4), 3)
    assert all(np.isnan(ring.columns[name]).all() for name in ("<f4", "<f8"))
    assert all((ring.columns[name] == np.iinfo(name).min).all() for name in ("<i4", "<i8", "|i1"))
    assert (ring.columns["|u1"] == 0xAA).all()
    assert (ring.columns["<u8"] == 0xAAAAAAAAAAAAAAAA).all()
    assert ring.columns["|b1"].all()
    assert (ring.table["state"] == FREE).all()
    ring.remove()


def test_B9_B12_another_process_attaches_the_same_ring_and_leaves_it_alive(memory_dir: Path) -> None:
    """B9: what A writes B reads, with equal cursors, and back. B12, U12: its exit unlinks nothing."""
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 4, checksums=True, lock_timeout=1.0)
    _fill(ring, slice(2, 4), 10)
    with python(ATTACH, ring.path) as process:
        nonce, slots, number, reward = line(process).split()
        assert process.wait(60) == 0
    assert (nonce, int(slots), int(number)) == (ring.nonce, 4, 11)
    assert float(reward) == ring.columns["reward"][3, 1]
    assert ring.columns["reward"][3, 2] == 77.0
    assert ring.path is not None
    assert ring.path.exists()
    again = Ring.attach(ring.path, LAYOUT)
    assert np.array_equal(again.table, ring.table)
    assert again.locked
    assert again.checksums
    again.close()
    ring.remove()
    assert not (memory_dir / "rookery-r-a").exists()


@modes
def test_a_slot_is_intact_until_it_is_begun_again(memory_dir: Path, mode: dict[str, Any]) -> None:
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 6, **mode)
    for first, block in ((1, slice(0, 2)), (3, slice(2, 4)), (5, slice(4, 6))):
        _fill(ring, block, first)
    records = ring.table.copy()
    assert (records["state"] == FINISHED).all()
    assert (records["number"] == np.arange(1, 7)).all()
    assert ring.intact(records).all()
    ring.begin(slice(2, 4))
    assert (ring.table["state"][2:4] == WRITING).all()
    assert ring.intact(records).tolist() == [True, True, False, False, True, True]
    ring.begin(np.array([5]))
    ring.begin(np.array([5]))  # beginning twice is beginning once
    assert ring.intact(records).tolist() == [True, True, False, False, True, False]
    _fill(ring, slice(2, 4), 7)
    assert ring.intact(records).tolist() == [True, True, False, False, True, False]  # recycled: whole, but another one
    assert ring.intact(ring.table[2:4].copy()).all()
    ring.remove()


@modes
def test_L4_nothing_is_locked_by_step_and_nothing_at_all_without_locks(
    memory_dir: Path, mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U17: two locks (gate and data) when a block of many steps begins and two when it is finished, or none."""
    taken: list[int] = []
    real = RegionLock._try

    def counted(lock: RegionLock, byte: int, kind: int) -> bool:
        taken.append(byte)
        return real(lock, byte, kind)

    monkeypatch.setattr(RegionLock, "_try", counted)
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 6, **mode)
    for first in (1, 3, 5):
        _fill(ring, slice(first - 1, first + 1), first)
    steps = 6 * LAYOUT.length
    assert len(taken) == (3 * 4 if "lock_timeout" in mode else 0) < steps
    with ring.reading():
        assert (len(taken) > 3 * 4) == ring.locked == ("lock_timeout" in mode)
    ring.remove()
    assert not Ring.create(None, LAYOUT, 2, lock_timeout=1.0).locked, "private memory has nobody to lock out"


def test_with_checksums_changed_memory_is_torn_though_its_sequence_word_looks_right(memory_dir: Path) -> None:
    """What a processor that reorders stores could show."""
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 2, checksums=True)
    _fill(ring, slice(0, 2), 1)
    records = ring.table.copy()
    ring.columns["reward"][1, 0] += 1
    assert ring.intact(records).tolist() == [True, False]
    assert ring.current(records).all()  # which is why it takes the checksum
    ring.remove()


@settings(max_examples=50, deadline=None)
@given(
    uses=st.lists(
        st.lists(st.tuples(st.integers(0, LAYOUT.length), st.integers(0, LAYOUT.before)), min_size=3, max_size=3),
        min_size=1,
        max_size=6,
    ),
    name=st.sampled_from(sorted(MODES)),
)
def test_whatever_lay_in_a_slot_before_only_its_valid_rows_are_no_poison_B8(
    uses: list[list[tuple[int, int]]], name: str
) -> None:
    """Rows beyond those a segment has hold neither an earlier use's nor half-written data, in any mode."""
    ring = Ring.create(shared_file.memory_dir() / "rookery-r-a", LAYOUT, 3, **MODES[name])
    before, length, shown = LAYOUT.before, LAYOUT.length, {"observation": 1}
    for use, rows in enumerate(uses):
        valid, history = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        whole = bool((valid == length).all() and (history == before).all())
        ring.begin(slice(0, 3))
        for field in LAYOUT.fields:
            if field.per == "row":  # a block of whole segments is left as it is, so that its writer writes just these
                written = before + length + shown.get(field.name, 0) if whole else LAYOUT.rows
                ring.columns[field.name][:, :written] = use % 2
        ring.finish(slice(0, 3), np.arange(1, 4, dtype=np.uint64), valid, history)
        assert ((ring.table["state"] == FINISHED) == (valid > 0)).all()
        assert ring.intact(ring.table.copy()).all()
        for slot in range(3):
            for field in LAYOUT.fields:
                if field.per == "slot":
                    continue
                last = before + valid[slot] + (shown.get(field.name, 0) if valid[slot] else 0)
                real = np.zeros(before + length + 1, bool)
                real[before - history[slot] : last] = True
                column = ring.columns[field.name][slot]
                assert (column[real] == use % 2).all()
                unwritten = column[~real].copy()
                poison(unwritten)
                assert column[~real].tobytes() == unwritten.tobytes()
    ring.remove()


def test_whole_segments_are_not_touched_when_they_are_finished(memory_dir: Path) -> None:
    """The usual case costs nothing: the row behind the last one is whatever the writer left there."""
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 2)
    ring.begin(slice(0, 2))
    ring.columns["reward"].fill(7)
    ring.finish(slice(0, 2), [1, 2], LAYOUT.length, LAYOUT.before)
    assert (ring.columns["reward"] == 7).all()
    ring.remove()


@modes
def test_a_cleared_ring_has_no_segment_and_nothing_of_it_is_intact(memory_dir: Path, mode: dict[str, Any]) -> None:
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 4, **mode)
    _fill(ring, slice(0, 4), 1)
    records = ring.table.copy()
    ring.begin(slice(1, 2))
    ring.clear()
    assert (ring.table["state"] == FREE).all()
    assert not ring.intact(records).any()
    assert np.isnan(ring.columns["reward"]).all()
    _fill(ring, slice(0, 4), 5)
    assert ring.intact(ring.table.copy()).all()
    ring.remove()


def test_a_ring_of_another_layout_is_refused_with_both_hashes(memory_dir: Path) -> None:
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 2)
    assert ring.path is not None
    with raises(SharedMemoryError, "ring_layout_differs", value=LAYOUT.hash, expected=OTHER.hash) as caught:
        Ring.attach(ring.path, OTHER)
    assert LAYOUT.hash in str(caught.value)
    assert OTHER.hash in str(caught.value)
    ring.remove()
    assert not (memory_dir / "rookery-r-a").exists()  # the refused one gave up its lock


def _header(**changes: object) -> bytes:
    header: dict[str, object] = {"layout": LAYOUT.hash, "slots": 2, "nonce": "n", "checksums": False}
    header.update(changes)
    return json.dumps({k: v for k, v in header.items() if v != "gone"}).encode()


DAMAGED = {
    "not json": b"{",
    "a list": b"[1]",
    "deep": b"[" * 3000,
    "without slots": _header(slots="gone"),
    "no slots": _header(slots=0),
    "more slots than bytes": _header(slots=3),
    "far more slots": _header(slots=2**62),
    "infinitely many": _header(slots=float("inf")),
    "waits for ever": _header(lock_timeout=float("inf")),
    "never waits": _header(lock_timeout=0),
    "waits in words": _header(lock_timeout="long"),
}
OF_ANOTHER_SIZE = {"no slots", "more slots than bytes", "far more slots"}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_header_is_refused_in_a_sentence(memory_dir: Path, case: str) -> None:
    text = DAMAGED[case]
    path = memory_dir / "rookery-r-a"
    ring = Ring.create(path, LAYOUT, 2)
    ring.close()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(len(text).to_bytes(4, "little") + text)
    kind = "ring_slots_contradict_size" if case in OF_ANOTHER_SIZE else "ring_header_damaged"
    with raises(SharedMemoryError, kind, file=path):
        Ring.attach(path, LAYOUT)
    path.unlink()


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"\0" * 8192, "not_a_ring"),
        (b"ROOKRING", "not_a_ring"),
        (b"ROOKRING" + bytes(8184), "ring_header_damaged"),
        (b"ROOKRING" + b"\xff" * 8184, "ring_header_damaged"),
    ],
)
def test_what_is_no_ring_is_refused(memory_dir: Path, raw: bytes, kind: str) -> None:
    path = memory_dir / "rookery-r-a"
    path.write_bytes(raw)
    with raises(SharedMemoryError, kind, file=path):
        Ring.attach(path, LAYOUT)
    path.unlink()


def test_a_ring_that_was_cut_short_is_refused(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-a"
    Ring.create(path, LAYOUT, 100).close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with raises(SharedMemoryError, "ring_slots_contradict_size"):
        Ring.attach(path, LAYOUT)
    path.unlink()
