"""Segment slots in shared memory between one writer and the learner of one policy.

A file is a header page, a table with one record a slot, and the layout's columns. The writer fills slots in place; the
record's sequence word is odd while it does, so that a reader which compares the word after copying with the one that
was announced can never train on a torn or recycled slot.
Legend: `S` slots, `R` rows of a slot (`before + T + 1`).
"""

from __future__ import annotations

import json
import mmap
import platform
import secrets
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.layout import Layout
from protocol.memory import SharedFile

__all__ = ["FINISHED", "FREE", "RECORD", "WRITING", "Ring", "poison"]

_MAGIC = b"ROOKRING"
_PAGE = 4096
FREE, WRITING, FINISHED = 0, 1, 2

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
        ("reserved", "|u1", (3,)),
    ]
)
"""One slot's record (64 bytes): on the wire exactly as in memory."""

ORDERED_STORES = platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")
"""Whether this processor makes stores visible in program order; where it does not, checksums are used as well."""


class Ring:
    """`slots` slots of `layout`; `columns[name]` is [S, R, *shape] (per slot [S, *shape]), `table` is [S] of RECORD."""

    def __init__(self, layout: Layout, slots: int, memory: SharedFile | mmap.mmap, nonce: str, checksums: bool) -> None:
        self.layout = layout
        self.slots = slots
        self.nonce = nonce
        self.checksums = checksums
        self._memory = memory
        buffer = memory.buffer if isinstance(memory, SharedFile) else memoryview(memory)
        self.table: NDArray[np.void] = np.ndarray((slots,), RECORD, buffer=buffer, offset=_PAGE)
        self.columns = layout.columns(buffer[_PAGE + _table_bytes(slots) :], slots)

    @property
    def path(self) -> Path | None:
        """The file, or None for private memory."""
        return self._memory.path if isinstance(self._memory, SharedFile) else None

    @classmethod
    def create(cls, path: Path | None, layout: Layout, slots: int, checksums: bool | None = None) -> Ring:
        """A new ring, its memory reserved and poisoned; `path` None makes it private to this process.

        `checksums` None: only on processors without ordered stores.
        """
        size = _PAGE + _table_bytes(slots) + layout.offsets(slots)[1]
        checksums = not ORDERED_STORES if checksums is None else checksums
        nonce = secrets.token_hex(8)
        header = {"layout": layout.hash, "slots": slots, "nonce": nonce, "checksums": checksums}
        text = json.dumps(header, separators=(",", ":")).encode()
        memory = mmap.mmap(-1, size) if path is None else SharedFile.create(path, size)
        buffer = memory.buffer if isinstance(memory, SharedFile) else memoryview(memory)
        buffer[len(_MAGIC) : len(_MAGIC) + 4] = len(text).to_bytes(4, "little")
        buffer[12 : 12 + len(text)] = text
        ring = cls(layout, slots, memory, nonce, checksums)
        ring.table["slot"] = np.arange(slots)
        for column in ring.columns.values():
            poison(column)
        buffer[: len(_MAGIC)] = _MAGIC  # last: a reader that sees the magic sees a whole ring
        return ring

    @classmethod
    def attach(cls, path: Path, layout: Layout) -> Ring:
        """The ring that lies at `path`; SharedMemoryError if it is none, or one of another layout."""
        memory = SharedFile.attach(path)
        try:
            header = _read_header(memory.buffer, path, layout)
            if header["layout"] != layout.hash:
                raise SharedMemoryError(
                    f"{path} holds segments of layout {header['layout']}, expected {layout.hash}; "
                    "start actor and learner with the same configuration and release"
                )
            return cls(layout, header["slots"], memory, header["nonce"], header["checksums"])
        except BaseException:
            memory.close()
            raise

    def begin(self, slots: slice | NDArray[np.int64]) -> None:
        """Marks slots as being written; their content is no longer valid for any reader."""
        self.table["sequence"][slots] |= np.uint64(1)
        self.table["state"][slots] = WRITING

    def finish(self, slots: slice, numbers: Sequence[int] | NDArray[np.uint64], valid: int, before: int) -> None:
        """Marks slots as whole: segment numbers, `valid` rows (of T) and `before` rows of history."""
        table = self.table
        table["number"][slots] = numbers
        table["valid"][slots] = valid
        table["before"][slots] = before
        if self.checksums:
            for slot in range(slots.start, slots.stop):
                table["checksum"][slot] = self.checksum(slot)
        table["state"][slots] = FINISHED
        table["sequence"][slots] += np.uint64(1)  # odd -> even

    def checksum(self, slot: int) -> int:
        """CRC-32 of the slot's columns in the layout's order."""
        value = 0
        for column in self.columns.values():
            value = zlib.crc32(np.ascontiguousarray(column[slot]).view(np.uint8).reshape(-1).data, value)
        return value

    def intact(self, records: NDArray[np.void]) -> NDArray[np.bool_]:
        """[n]: whether each announced slot still holds what its record announced; to be asked *after* copying.

        With checksums the memory must also still have the announced one: a copy can only be torn by what is there now.
        """
        same = np.asarray(self.table["sequence"][records["slot"]] == records["sequence"])
        if self.checksums:
            for i in np.flatnonzero(same):
                same[i] = self.checksum(int(records["slot"][i])) == int(records["checksum"][i])
        return same

    def close(self) -> None:
        """Unmaps; the file stays."""
        self.table, self.columns = np.empty(0, RECORD), {}
        self._memory.close() if isinstance(self._memory, SharedFile) else None

    def remove(self) -> None:
        """Unmaps and unlinks unless another process still holds the file."""
        self.close()
        if isinstance(self._memory, SharedFile):
            self._memory.remove()


def poison(column: NDArray) -> None:
    """Fills memory with values that no honest row has: NaN, the most negative integer, 0xAA."""
    kind = column.dtype.kind
    if kind == "f":
        column.fill(np.nan)
    elif kind == "i":
        column.fill(np.iinfo(column.dtype).min)
    elif kind == "u":
        column.view(np.uint8).fill(0xAA)
    else:
        column.fill(True)


def _table_bytes(slots: int) -> int:
    return -(-slots * RECORD.itemsize // _PAGE) * _PAGE


def _read_header(buffer: memoryview, path: Path, layout: Layout) -> dict[str, Any]:
    if len(buffer) < _PAGE or bytes(buffer[:8]) != _MAGIC:
        raise SharedMemoryError(f"{path} is not a ring; remove it with `rookery clean`")
    length = int.from_bytes(buffer[8:12], "little")
    if not 0 < length < _PAGE - 12:
        raise SharedMemoryError(f"{path} has a damaged header; remove it with `rookery clean`")
    try:
        header = json.loads(bytes(buffer[12 : 12 + length]))
        slots = int(header["slots"])
        found = {"layout": str(header["layout"]), "slots": slots, "nonce": str(header["nonce"])}
        found["checksums"] = bool(header["checksums"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise SharedMemoryError(f"{path} has a damaged header; remove it with `rookery clean`") from None
    same = found["layout"] == layout.hash
    if slots < 1 or len(buffer) < _PAGE + _table_bytes(slots) + (layout.offsets(slots)[1] if same else 0):
        raise SharedMemoryError(
            f"{path} announces {slots} slots, which its size contradicts; remove it with `rookery clean`"
        )
    return found
