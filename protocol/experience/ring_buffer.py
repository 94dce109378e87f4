"""Segment slots in shared memory between one writer and the learner of one policy.

A file is a header page, a table with one record a slot, and the layout's columns. The writer fills slots in place; the
record's sequence word is odd while it does, so that a reader which compares the word after copying with the one that
was announced can never train on a torn or recycled slot. A *locked* ring, the reference, lets the writer besides take
no slot while a reader copies; the same reader's code serves both.
Legend: `S` slots, `R` rows of a slot (`before + T + 1`), `n` slots at once.
"""

from __future__ import annotations

import json
import mmap
import os
import platform
import secrets
import threading
import zlib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.experience.layout import Layout
from protocol.memory.file_lock import RegionLock
from protocol.memory.shared_file import Counters, SharedFile

_MAGIC = b"ROOKRING"
_PAGE = 4096
_WORDS = 8
_OPTIONS = ("slots", "nonce", "checksums", "lock_timeout")
_BOOTSTRAP = ("observation", "action_mask", "moment")
"""The fields that have one row more than are valid, or where a space is nested, those that their names begin with."""
_UNLOCKED: AbstractContextManager[None] = nullcontext()
FREE, WRITING, FINISHED = 0, 1, 2
_ODD = np.uint64(1)
_NO_NUMBER = np.zeros(1, np.uint64)

RECORD = np.dtype(
    [
        ("sequence", "<u8"),
        ("number", "<u8"),
        ("stream", "<u8"),
        ("stream_sequence", "<u8"),
        ("version_min", "<u8"),
        ("version_max", "<u8"),
        ("slot", "<u4"),
        ("checksum", "<u4"),
        ("valid", "<u2"),
        ("before", "<u2"),
        ("state", "|u1"),
        ("episode", "|u1", (3,)),
    ]
)
"""One slot's record (64 bytes): on the wire exactly as in memory. `episode` is a number of 24 bits, the lowest first:
how many episodes of the stream had ended before the segment's first row."""
LUMP = np.dtype((np.void, RECORD.itemsize))
"""A record as a whole: as such numpy copies it several times as fast as field by field."""

Records = Any
"""An array of RECORD. The types of its fields are not known statically: a type checker that was told only that it is an
array would try numpy's overloads at every use of a field and learn nothing."""

Place = slice | NDArray[np.int64]
"""An index of slots."""

ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
"""Whether this processor makes stores visible in program order; where it does not, checksums are used as well."""


class Ring:
    """`slots` slots of `layout`; `columns[name]` is [S, R, *shape] (per slot [S, *shape]), `table` is [S] of RECORD."""

    def __init__(
        self,
        layout: Layout,
        slots: int,
        memory: SharedFile | mmap.mmap,
        nonce: str,
        checksums: bool,
        lock_timeout: float | None = None,
        counters: Counters | None = None,
    ) -> None:
        self.layout = layout
        self.slots = slots
        self.nonce = nonce
        self.checksums = checksums
        self._memory = memory
        self._lock = None
        if lock_timeout is not None and isinstance(memory, SharedFile):  # private memory has nobody to lock out
            self._lock = RegionLock(memory.descriptor, memory.path, lock_timeout, counters)
        buffer = memory.buffer if isinstance(memory, SharedFile) else memoryview(memory)
        self.words: NDArray[np.uint64] = np.ndarray((_WORDS,), "<u8", buffer=buffer, offset=_PAGE - 8 * _WORDS)
        """Words at the header page's end that belong to the reader, to tell the writer how far it is."""
        self.table: Records = np.ndarray((slots,), RECORD, buffer=buffer, offset=_PAGE)
        self.columns = layout.columns(buffer[_PAGE + _table_bytes(slots) :], slots)
        self.fields = {name: self.table[name] for name in RECORD.names or ()}
        """The columns of `table`, each [S]."""

    @property
    def path(self) -> Path | None:
        """The file, or None for private memory."""
        return self._memory.path if isinstance(self._memory, SharedFile) else None

    @property
    def locked(self) -> bool:
        """Whether readers and writer lock each other out."""
        return self._lock is not None

    @property
    def nbytes(self) -> int:
        """Bytes of memory: header, records and columns."""
        return ring_size(self.layout, self.slots)

    @classmethod
    def create(
        cls,
        path: Path | None,
        layout: Layout,
        slots: int,
        checksums: bool | None = None,
        lock_timeout: float | None = None,
        counters: Counters | None = None,
    ) -> Ring:
        """A new ring, its memory reserved and poisoned; `path` None makes it private to this process.

        `checksums` None: only on processors without ordered stores. `lock_timeout` seconds make it a locked ring, whose
        waits add to `counters` (protocol/memory/file_lock.py); None: lock-free.
        """
        size = ring_size(layout, slots)
        checksums = not ORDERED_STORES if checksums is None else checksums
        nonce = secrets.token_hex(8)
        header: dict[str, Any] = {"layout": layout.hash, "slots": slots, "nonce": nonce, "checksums": checksums}
        if lock_timeout is not None:
            header["lock_timeout"] = lock_timeout
        text = json.dumps(header, separators=(",", ":")).encode()
        memory = mmap.mmap(-1, size) if path is None else SharedFile.create(path, size)
        buffer = memory.buffer if isinstance(memory, SharedFile) else memoryview(memory)
        buffer[len(_MAGIC) : len(_MAGIC) + 4] = len(text).to_bytes(4, "little")
        buffer[12 : 12 + len(text)] = text
        ring = cls(layout, slots, memory, nonce, checksums, lock_timeout, counters)
        ring.table["slot"] = np.arange(slots)
        for column in ring.columns.values():
            poison(column)
        buffer[: len(_MAGIC)] = _MAGIC  # last: a reader that sees the magic sees a whole ring
        return ring

    @classmethod
    def attach(cls, path: Path, layout: Layout, counters: Counters | None = None) -> Ring:
        """The ring that lies at `path`, locked if it was made so; SharedMemoryError if it is none, or one of another
        layout."""
        memory = SharedFile.attach(path)
        try:
            header = _read_header(memory.buffer, path, layout)
            if header["layout"] != layout.hash:
                raise SharedMemoryError("ring_layout_differs", file=path, value=header["layout"], expected=layout.hash)
            return cls(layout, memory=memory, counters=counters, **{k: header[k] for k in _OPTIONS})
        except BaseException:
            memory.close()
            raise

    def check_whole(self) -> None:
        """SharedMemoryError where somebody made the file shorter since it was mapped: from then on nothing in it is
        intact."""
        if not self.whole:
            raise SharedMemoryError("shared_memory_truncated", file=self.path)

    @property
    def whole(self) -> bool:
        """Whether nobody made the file shorter since it was mapped."""
        memory = self._memory
        if not isinstance(memory, SharedFile):
            return True
        if memory.short:  # the writer, and whoever maps it later, must know before they find zeros there
            os.pwrite(memory.descriptor, bytes(len(_MAGIC)), 0)
            os.ftruncate(memory.descriptor, memory.size)
        return bytes(memory.buffer[: len(_MAGIC)]) == _MAGIC

    def reading(self) -> AbstractContextManager[None]:
        """Around copying and `intact`: in a locked ring no slot changes meanwhile. Timeout where it cannot be had."""
        _ = self.whole  # else copying would end the process; `intact` asks again
        return _UNLOCKED if self._lock is None else self._lock.reading()

    def begin(self, slots: slice | NDArray[np.int64]) -> None:
        """Marks slots as being written; their content is no longer valid for any reader. Rows that nothing is written
        to may show an earlier use until `finish`."""
        with self._writing():
            self.fields["sequence"][slots] |= _ODD
            self.fields["state"][slots] = WRITING

    def finish(
        self,
        slots: slice,
        numbers: int | Sequence[int] | NDArray[np.uint64],
        valid: int | NDArray[np.int64],
        before: int | NDArray[np.int64],
    ) -> int:
        """Marks slots as whole: `valid` rows (of T) and `before` rows of history, one for all or [n]; a slot without a
        row is free. `numbers` [n] are those of its segments, or the first of numbers that follow one another. Returns
        how many segments these are.

        All other rows are poison afterwards, whatever an earlier use left there. Only a block whose segments are all
        whole is left as it is: then the one row that none has, behind the last step, is whatever the writer left there.
        """
        fields, n = self.fields, slots.stop - slots.start
        if isinstance(valid, int):
            count = n if valid else 0
            if isinstance(numbers, int):
                numbers = np.arange(numbers, numbers + n, dtype=np.uint64) if valid else _NO_NUMBER
        else:
            rows = np.broadcast_to(valid, n) > 0
            count = int(rows.sum())
            if isinstance(numbers, int):
                numbers = np.where(rows, numbers + np.cumsum(rows) - 1, 0).astype(np.uint64)
        self._poison_unused(slots, valid, before)
        if self.checksums:
            for slot in range(slots.start, slots.stop):
                fields["checksum"][slot] = self.checksum(slot)
        with self._writing():
            fields["number"][slots] = numbers
            fields["valid"][slots] = valid
            fields["before"][slots] = before
            fields["state"][slots] = _state_of(valid)
            fields["sequence"][slots] += _ODD  # odd -> even
        return count

    def segments(self, slots: slice) -> Records:
        """A copy of the records of `slots` that hold a segment."""
        records = self.table[slots]
        return records[records["valid"] > 0]

    def clear(self) -> None:
        """Every slot is free: no reader finds any segment that was finished before."""
        self.begin(slice(0, self.slots))
        self.finish(slice(0, self.slots), 0, 0, 0)

    def checksum(self, slot: int) -> int:
        """CRC-32 of the slot's columns in the layout's order."""
        value = 0
        for column in self.columns.values():
            value = zlib.crc32(np.ascontiguousarray(column[slot]).view(np.uint8).reshape(-1).data, value)
        return value

    def put(self, slots: slice, records: Records) -> None:
        """Sets the records of `slots`."""
        self.table.view(LUMP)[slots] = records.view(LUMP)

    def current(self, records: Records) -> NDArray[np.bool_]:
        """[n]: whether no announced slot was begun again; says nothing of what was copied from it."""
        return np.asarray(self.fields["sequence"][place_of(records["slot"])] == records["sequence"])

    def intact(self, records: Records) -> NDArray[np.bool_]:
        """[n]: whether each announced slot still holds what its record announced; to be asked *after* copying.

        With checksums the memory must also still have the announced one. A copy can only be torn by what is there now:
        whatever the order in which a processor shows stores, no later reading of a word goes back behind an earlier.
        """
        same = self.current(records) & self.whole
        if self.checksums:
            for i in np.flatnonzero(same):
                same[i] = self.checksum(int(records["slot"][i])) == int(records["checksum"][i])
        return same

    def _writing(self) -> AbstractContextManager[None]:
        return _UNLOCKED if self._lock is None else self._lock.writing()

    def _poison_unused(self, slots: slice, valid: int | NDArray[np.int64], before: int | NDArray[np.int64]) -> None:
        layout = self.layout
        if _all_are(valid, layout.length) and _all_are(before, layout.before):
            return
        row = np.arange(layout.rows)
        end = layout.before + np.asarray(valid).reshape(-1, 1)
        outside = (row < layout.before - np.asarray(before).reshape(-1, 1)) | (row >= end)
        bootstrap = (row == end) & (end > layout.before)
        for field in layout.fields:
            if field.per == "row":
                more = field.name.partition(".")[0] in _BOOTSTRAP
                unused = outside & ~bootstrap if more else outside
                column = self.columns[field.name][slots]
                column[np.broadcast_to(unused, column.shape[:2])] = _poison_of(column.dtype)

    def close(self) -> None:
        """Unmaps; the file stays."""
        self.table, self.words, self.columns, self.fields = np.empty(0, RECORD), np.empty(0, np.uint64), {}, {}
        self._memory.close() if isinstance(self._memory, SharedFile) else None

    def remove(self) -> None:
        """Unmaps and unlinks unless another process still holds the file."""
        self.close()
        if isinstance(self._memory, SharedFile):
            self._memory.remove()


def _all_are(values: int | NDArray[np.int64], value: int) -> bool:
    return values == value if isinstance(values, int) else bool((values == value).all())


def _state_of(valid: int | NDArray[np.int64]) -> Any:
    if isinstance(valid, int):
        return FINISHED if valid else FREE
    return np.where(valid > 0, FINISHED, FREE)


def copied(*records: Records) -> Records:
    """Records [n], [m], ... one behind the other, in memory of their own."""
    return np.frombuffer(bytearray(b"".join([part.tobytes() for part in records])), RECORD)


def place_of(slots: NDArray[np.uint32]) -> Place:
    """An index for columns [S, ...]: where `slots` follow each other a slice, which makes a view."""
    if len(slots) == 0:
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    if last - first == len(slots) - 1 and (last <= first + 1 or bool((slots[1:] > slots[:-1]).all())):
        return slice(first, last + 1)
    return slots.astype(np.int64)


def poison(column: NDArray) -> None:
    """Fills memory with values that no honest row has: NaN, the most negative integer, 0xAA."""
    column[...] = _poison_of(column.dtype)


def _poison_of(dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "f":
        return np.nan
    if dtype.kind == "i":
        return np.iinfo(dtype).min
    return True if dtype.kind == "b" else int.from_bytes(b"\xaa" * dtype.itemsize, "little")


def ring_size(layout: Layout, slots: int) -> int:
    """Bytes of a ring's file."""
    return _PAGE + _table_bytes(slots) + layout.offsets(slots)[1]


def _table_bytes(slots: int) -> int:
    return -(-slots * RECORD.itemsize // _PAGE) * _PAGE


def _read_header(buffer: memoryview, path: Path, layout: Layout) -> dict[str, Any]:
    if len(buffer) < _PAGE or bytes(buffer[:8]) != _MAGIC:
        raise SharedMemoryError("not_a_ring", file=path)
    length = int.from_bytes(buffer[8:12], "little")
    if not 0 < length < _PAGE - 12 - 8 * _WORDS:
        raise SharedMemoryError("ring_header_damaged", file=path)
    try:
        header = json.loads(bytes(buffer[12 : 12 + length]))
        slots = int(header["slots"])
        found = {"layout": str(header["layout"]), "slots": slots, "nonce": str(header["nonce"])}
        found["checksums"] = bool(header["checksums"])
        timeout = header.get("lock_timeout")
        found["lock_timeout"] = None if timeout is None else float(timeout)
        if timeout is not None and not 0 < float(timeout) <= threading.TIMEOUT_MAX:
            raise ValueError("no timeout")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        raise SharedMemoryError("ring_header_damaged", file=path) from None
    same = found["layout"] == layout.hash
    if slots < 1 or len(buffer) < _PAGE + _table_bytes(slots) + (layout.offsets(slots)[1] if same else 0):
        raise SharedMemoryError("ring_slots_contradict_size", file=path, slots=slots)
    return found
