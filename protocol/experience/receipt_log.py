"""What a policy's learner has settled: per actor incarnation the highest segment number, in a file that survives it.

"Settled" means copied out, refused or known to be overwritten: such a number is never received again.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from protocol.errors import SharedMemoryError
from protocol.memory.shared_file import reserve

__all__ = ["ReceiptLog"]

_ENTRY = np.dtype([("actor", "S128"), ("incarnation", "<u8"), ("settled", "<u8"), ("count", "<u8")])
_ENTRIES = 16_384


class ReceiptLog:
    """`path` None keeps it in memory only (a learner without a run's folder). A file's room is reserved at once:
    SharedMemoryError where there is none."""

    def __init__(self, path: Path | None) -> None:
        size = _ENTRY.itemsize * _ENTRIES
        if path is None:
            self._map = mmap.mmap(-1, size)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                reserve(descriptor, path, size, "free some or give another --run-dir")
                self._map = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        self._table = np.ndarray((_ENTRIES,), _ENTRY, buffer=self._map)
        self._settled, self._count = self._table["settled"], self._table["count"]
        self._index: dict[tuple[str, int], int] = {}
        for i in range(_ENTRIES):
            if not self._table["incarnation"][i]:
                break
            self._index[self._table["actor"][i].decode(), int(self._table["incarnation"][i])] = i

    def acknowledged(self, actor: str, incarnation: int) -> int:
        """The highest settled number of this actor incarnation; 0 for none."""
        index = self._index.get((actor, incarnation))
        return 0 if index is None else int(self._settled[index])

    def acknowledge(self, actor: str, incarnation: int, number: int, count: int) -> None:
        """Everything up to `number` is settled, `count` segments more than before; what was settled stays so."""
        key = (actor, incarnation)
        index = self._index.get(key)
        if index is None:
            if incarnation < 1 or len(actor.encode()) > _ENTRY["actor"].itemsize:
                raise ValueError(f"actor {actor!r} of incarnation {incarnation} cannot be entered in a ledger")
            index = len(self._index)
            if index == _ENTRIES:
                raise SharedMemoryError("ledger_full", limit=_ENTRIES)
            self._table["actor"][index] = actor.encode()
            self._settled[index] = number
            self._count[index] = count
            self._table["incarnation"][index] = incarnation  # last: an entry counts once this is not zero
            self._index[key] = index
        else:
            self._settled[index] = max(number, int(self._settled[index]))
            self._count[index] += np.uint64(count)

    def entries(self) -> dict[tuple[str, int], int]:
        """(actor, incarnation) -> highest settled number."""
        return {key: int(self._settled[i]) for key, i in self._index.items()}

    def counts(self) -> dict[tuple[str, int], int]:
        """(actor, incarnation) -> segments settled."""
        return {key: int(self._count[i]) for key, i in self._index.items()}
