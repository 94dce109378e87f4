"""What a policy's learner has settled: per actor incarnation the highest segment number, in a file that survives it.

"Settled" means copied out, refused or known to be overwritten: such a number is never received again. There is room for
a bounded number of incarnations: when it is full, those that others of their names have followed are put together, and
only how many of their segments were settled is known from then on.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np

from protocol.errors import SharedMemoryError
from protocol.memory.shared_file import reserve

FORGOTTEN = "", 1
"""Under which those stand that were put together: nobody has that name."""

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
        for i in np.flatnonzero(self._table["incarnation"]).tolist():
            self._index[self._table["actor"][i].decode(), int(self._table["incarnation"][i])] = i
        self._free = np.flatnonzero(self._table["incarnation"] == 0)[::-1].tolist()

    def acknowledged(self, actor: str, incarnation: int) -> int:
        """The highest settled number of this actor incarnation; 0 for none."""
        index = self._index.get((actor, incarnation))
        return 0 if index is None else int(self._settled[index])

    def acknowledge(self, actor: str, incarnation: int, number: int, count: int) -> list[tuple[str, int]]:
        """Everything up to `number` is settled, `count` segments more than before; what was settled stays so. Returns
        the incarnations that were forgotten to make room."""
        forgotten: list[tuple[str, int]] = []
        key = (actor, incarnation)
        index = self._index.get(key)
        if index is None:
            if incarnation < 1 or len(actor.encode()) > _ENTRY["actor"].itemsize:
                raise ValueError(f"actor {actor!r} of incarnation {incarnation} cannot be entered in a ledger")
            if not self._free:
                forgotten = self._make_room()
            index = self._free.pop()
            self._table["actor"][index] = actor.encode()
            self._settled[index] = number
            self._count[index] = count
            self._table["incarnation"][index] = incarnation  # last: an entry counts once this is not zero
            self._index[key] = index
        else:
            self._settled[index] = max(number, int(self._settled[index]))
            self._count[index] += np.uint64(count)
        return forgotten

    def _make_room(self) -> list[tuple[str, int]]:
        """Forgets the older half of the incarnations that have successors."""
        newest: dict[str, int] = {}
        for actor, incarnation in self._index:
            newest[actor] = max(incarnation, newest.get(actor, 0))
        followed = [key for key in self._index if key[1] < newest[key[0]]]
        if not followed:
            raise SharedMemoryError("ledger_full", limit=_ENTRIES)
        forgotten = sorted(followed, key=lambda key: key[1])[: len(followed) // 2 + 1]
        indices = [self._index.pop(key) for key in forgotten]
        count = int(self._count[indices].sum())
        self._table["incarnation"][indices] = 0
        self._free += indices
        self.acknowledge(*FORGOTTEN, 0, count)
        return forgotten

    def entries(self) -> dict[tuple[str, int], int]:
        """(actor, incarnation) -> highest settled number."""
        return {key: int(self._settled[i]) for key, i in self._index.items()}

    def counts(self) -> dict[tuple[str, int], int]:
        """(actor, incarnation) -> segments settled."""
        return {key: int(self._count[i]) for key, i in self._index.items()}
