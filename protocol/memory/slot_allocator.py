"""The memory into which a learner, or a relay for it, copies what arrives over the network: one pool a policy, however
many actors.

Slots are given out in runs as long as can be, so that a message is copied with one slice assignment a field; the first
run that is long enough is taken, which keeps the memory in use small and warm.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.experience.layout import Layout
from protocol.experience.ring_buffer import FINISHED, Records, Ring, copied

_EVEN = np.uint64(1)
"""What an odd sequence word lacks."""
POOL = ".pool"
"""End of the name of a relay's pool, which is a ring that many actors' segments lie in."""


class SlotPool:
    """`slots` slots of `layout` in private memory, or in the file `path` for a reader to attach, made when they are
    first needed. `checksums` as in `Ring.create`. Legend: `n` segments."""

    def __init__(self, layout: Layout, slots: int, path: Path | None = None, checksums: bool | None = False) -> None:
        self._layout, self.slots = layout, slots
        self._path, self._checksums = path, checksums
        self._ring: Ring | None = None
        self._starts: list[int] = [0]
        self._stops: list[int] = [slots]
        self.free = slots

    @property
    def ring(self) -> Ring:
        """The memory."""
        if self._ring is None:
            self._ring = Ring.create(self._path, self._layout, self.slots, self._checksums)
        return self._ring

    def check_whole(self) -> None:
        """SharedMemoryError where somebody made its file shorter."""
        if self._ring is not None:
            self._ring.check_whole()

    def store(self, records: Records, columns: Mapping[str, NDArray]) -> Records:
        """Copies `columns` ([n, ...] by field) to free slots, of which there must be n; the records [n] as they lie
        there."""
        ring, at = self.ring, 0
        stored = copied(records)
        stored["state"] = FINISHED
        stored["checksum"] = 0
        for slots in self._take(len(records)):
            part = slice(at, at + slots.stop - slots.start)
            ring.begin(slots)
            for name, column in ring.columns.items():
                column[slots] = columns[name][part]
            stored["slot"][part] = ring.fields["slot"][slots]
            stored["sequence"][part] = ring.fields["sequence"][slots] + _EVEN
            if ring.checksums:
                stored["checksum"][part] = [ring.checksum(slot) for slot in range(slots.start, slots.stop)]
            ring.put(slots, stored[part])
            at = part.stop
        return stored

    def give_back(self, slots: NDArray[np.uint32]) -> None:
        """Slots that are no longer needed; ValueError for what is free already."""
        if len(slots) == 0:
            return
        ordered = np.sort(slots.astype(np.int64))
        cuts = np.flatnonzero(ordered[1:] - ordered[:-1] != 1) + 1
        edges = [0, *cuts.tolist(), len(ordered)]
        for first, end in pairwise(edges):
            self._insert(int(ordered[first]), int(ordered[end - 1]) + 1)

    def close(self) -> None:
        """Lets the memory go; a file is unlinked unless another process still holds it."""
        if self._ring is not None:
            self._ring.remove()

    def _take(self, n: int) -> list[slice]:
        """`n` slots as one run if there is such a one, else as several."""
        if n > self.free:
            raise ValueError(f"{n} slots of a pool with {self.free} free ones")
        self.free -= n
        for i, (start, stop) in enumerate(zip(self._starts, self._stops, strict=True)):
            if stop - start >= n:
                self._shorten(i, n)
                return [slice(start, start + n)]
        pieces = []
        while n:
            start = self._starts[0]
            count = min(n, self._stops[0] - start)
            self._shorten(0, count)
            pieces.append(slice(start, start + count))
            n -= count
        return pieces

    def _shorten(self, i: int, n: int) -> None:
        self._starts[i] += n
        if self._starts[i] == self._stops[i]:
            del self._starts[i], self._stops[i]

    def _insert(self, start: int, stop: int) -> None:
        i = bisect_left(self._starts, start)
        if (
            start < 0
            or stop > self.slots
            or (i and self._stops[i - 1] > start)
            or (i < len(self._starts) and self._starts[i] < stop)
        ):
            raise ValueError(f"slots {start} to {stop - 1} of a pool are free already, or beyond its {self.slots}")
        self.free += stop - start
        before, behind = bool(i) and self._stops[i - 1] == start, i < len(self._starts) and self._starts[i] == stop
        if before and behind:
            self._stops[i - 1] = self._stops[i]
            del self._starts[i], self._stops[i]
        elif before:
            self._stops[i - 1] = stop
        elif behind:
            self._starts[i] = start
        else:
            self._starts.insert(i, start)
            self._stops.insert(i, stop)
