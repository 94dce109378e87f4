"""The ring: one memory for writer and reader, whose sequence words tell a whole slot from a torn or recycled one."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import SharedMemoryError
from protocol.layout import Field, Layout
from protocol.memory import SharedFile
from protocol.ring import FINISHED, FREE, RECORD, WRITING, Ring
from tests.protocol.parts import LAYOUT, content, line, python

ATTACH = """
import sys
from pathlib import Path
import numpy as np
from protocol.ring import Ring
from tests.protocol.parts import LAYOUT
ring = Ring.attach(Path(sys.argv[1]), LAYOUT)
print(ring.nonce, ring.slots, int(ring.table["number"][3]), float(ring.columns["reward"][3, 1]), flush=True)
ring.columns["reward"][3, 2] = 77.0
"""

HAMMER = """
import sys
from pathlib import Path
import numpy as np
from protocol.ring import Ring
from tests.protocol.test_ring import WIDE
ring = Ring.attach(Path(sys.argv[1]), WIDE)
print("ready", flush=True)
number, column = 1, ring.columns["words"]
while True:
    for at in range(0, ring.slots, 2):
        block = slice(at, at + 2)
        ring.begin(block)
        for slot in (at, at + 1):
            body = column[slot].reshape(-1)
            body[:-1] = np.uint64(number + slot - at) * np.arange(1, body.size, dtype=np.uint64)
            body[-1] = body[:-1].sum()
        ring.finish(block, [number, number + 1], WIDE.length, 0)
        number += 2
"""

WIDE = Layout((Field("words", "<u8", (64,)),), length=63)
"""32 KiB a slot: the last word is the sum of the others."""


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


def test_records_are_the_same_bytes_on_every_machine() -> None:
    assert RECORD.itemsize == 64
    record = np.zeros(1, RECORD)
    record["sequence"], record["valid"], record["state"] = 2, 0x0102, FINISHED
    raw = record.tobytes()
    assert raw[:8] == b"\2" + bytes(7)
    assert raw[56:58] == b"\2\1"
    assert raw[60] == FINISHED


def test_B9_B12_another_process_attaches_the_same_ring_and_leaves_it_alive(memory_dir: Path) -> None:
    """B9: what A writes B reads, with equal cursors, and back. B12, U12: its exit unlinks nothing."""
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 4)
    _fill(ring, slice(2, 4), 10)
    with python(ATTACH, ring.path) as process:
        nonce, slots, number, reward = line(process).split()
        assert process.wait(10) == 0
    assert (nonce, int(slots), int(number)) == (ring.nonce, 4, 11)
    assert float(reward) == ring.columns["reward"][3, 1]
    assert ring.columns["reward"][3, 2] == 77.0
    assert ring.path is not None
    assert ring.path.exists()
    again = Ring.attach(ring.path, LAYOUT)
    assert np.array_equal(again.table, ring.table)
    again.close()
    ring.remove()
    assert not (memory_dir / "rookery-r-a").exists()


@pytest.mark.parametrize("checksums", [False, True])
def test_a_slot_is_intact_until_it_is_begun_again(memory_dir: Path, checksums: bool) -> None:
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 6, checksums)
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


def test_with_checksums_changed_memory_is_torn_though_its_sequence_word_looks_right(memory_dir: Path) -> None:
    """What a processor that reorders stores could show."""
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 2, checksums=True)
    _fill(ring, slice(0, 2), 1)
    records = ring.table.copy()
    ring.columns["reward"][1, 0] += 1
    assert ring.intact(records).tolist() == [True, False]
    ring.remove()


def test_B13_no_torn_slot_is_accepted_from_a_writer_that_never_stops(memory_dir: Path) -> None:
    """B13, U2: one process writes, another copies and checks sums that lie in the data; torn ones are seen."""
    ring = Ring.create(memory_dir / "rookery-r-a", WIDE, 6)  # three blocks: the writer soon comes round to the reader
    accepted = detected = torn = 0
    numbers: set[int] = set()
    with python(HAMMER, ring.path) as process:
        assert line(process) == "ready"
        copy = np.empty((64, 64), np.uint64)
        end = time.monotonic() + 3.0
        while time.monotonic() < end:
            for slot in range(ring.slots):
                record = ring.table[slot : slot + 1].copy()
                if int(record["sequence"][0]) % 2 or record["state"][0] != FINISHED:
                    continue
                np.copyto(copy, ring.columns["words"][slot])
                words = copy.reshape(-1)
                whole = int(words[:-1].sum()) == int(words[-1]) and int(words[0]) == int(record["number"][0])
                if ring.intact(record)[0]:
                    accepted += 1
                    torn += not whole
                    numbers.add(int(record["number"][0]))
                else:
                    detected += 1
    ring.remove()
    assert torn == 0
    assert accepted > 100
    assert len(numbers) > 100  # the writer did go on
    assert detected > 10  # the test can fail: copies were overtaken


def test_a_ring_of_another_layout_is_refused_with_both_hashes(memory_dir: Path) -> None:
    ring = Ring.create(memory_dir / "rookery-r-a", LAYOUT, 2)
    assert ring.path is not None
    with pytest.raises(SharedMemoryError) as caught:
        Ring.attach(ring.path, WIDE)
    assert LAYOUT.hash in str(caught.value)
    assert WIDE.hash in str(caught.value)
    ring.remove()
    assert not (memory_dir / "rookery-r-a").exists()  # the refused one gave up its lock


def _header(**changes: object) -> bytes:
    header: dict[str, object] = {"layout": LAYOUT.hash, "slots": 2, "nonce": "n", "checksums": False}
    header.update(changes)
    return json.dumps({k: v for k, v in header.items() if v != "gone"}).encode()


DAMAGED = {
    "not json": b"{",
    "no text": b"\xff\xfe\xff",
    "a list": b"[1]",
    "a number": b"5",
    "deep": b"[" * 3000,
    "without slots": _header(slots="gone"),
    "without nonce": _header(nonce="gone"),
    "slots are text": _header(slots="x"),
    "slots are a list": _header(slots=[1]),
    "no slots": _header(slots=0),
    "negative slots": _header(slots=-5),
    "more slots than bytes": _header(slots=3),
    "far more slots": _header(slots=2**62),
    "infinitely many": _header(slots=float("inf")),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_header_is_refused_in_a_sentence(memory_dir: Path, text: bytes) -> None:
    path = memory_dir / "rookery-r-a"
    ring = Ring.create(path, LAYOUT, 2)
    ring.close()
    with path.open("r+b") as file:
        file.seek(8)
        file.write(len(text).to_bytes(4, "little") + text)
    with pytest.raises(SharedMemoryError, match="remove it with `rookery clean`"):
        Ring.attach(path, LAYOUT)
    path.unlink()


@pytest.mark.parametrize("raw", [b"\0" * 8192, b"ROOKRING", b"ROOKRING" + bytes(8184), b"ROOKRING" + b"\xff" * 8184])
def test_what_is_no_ring_is_refused(memory_dir: Path, raw: bytes) -> None:
    path = memory_dir / "rookery-r-a"
    path.write_bytes(raw)
    with pytest.raises(SharedMemoryError, match="remove it with `rookery clean`"):
        Ring.attach(path, LAYOUT)
    path.unlink()


def test_a_ring_that_was_cut_short_is_refused(memory_dir: Path) -> None:
    path = memory_dir / "rookery-r-a"
    Ring.create(path, LAYOUT, 100).close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(SharedMemoryError, match="its size contradicts"):
        Ring.attach(path, LAYOUT)
    path.unlink()


def test_a_private_ring_has_no_file(memory_dir: Path) -> None:
    ring = Ring.create(None, LAYOUT, 2)
    assert ring.path is None
    _fill(ring, slice(0, 2), 1)
    assert ring.intact(ring.table.copy()).all()
    ring.remove()
    assert list(memory_dir.iterdir()) == []


def test_an_unfinished_ring_is_none_yet(memory_dir: Path) -> None:
    """The magic is written last."""
    file = SharedFile.create(memory_dir / "rookery-r-a", 100_000)
    with pytest.raises(SharedMemoryError, match="is not a ring"):
        Ring.attach(file.path, LAYOUT)
    file.remove()
