"""The slots that a seat is writing, one a stream: at which row each stream stands, and which rows wait to be whole.

In flows: turns of streams, together or each at its own pace. Out flow: places in the slots' columns.
Legend: `E` streams, `n` of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Index = slice | NDArray[np.int64]
Rows = int | NDArray[np.int64]


class SegmentBlock:
    """The slots being written, one a stream. `even`: all streams are open and stand at the same row.

    `rows` [E] counts closed rows and `opened` [E] says who has an open one behind them (both only where not even).
    """

    def __init__(
        self, slots: slice, columns: dict[str, NDArray], before: int, even: bool, version: np.uint64, since: float
    ) -> None:
        self.slots, self.columns, self.since = slots, columns, since
        self._before = before
        self.aligned = even
        self._row = 0
        streams = slots.stop - slots.start
        self._everyone: NDArray[np.int64] = np.arange(streams)
        self.rows: NDArray[np.int64] = np.zeros(streams, np.int64)
        self.opened = np.zeros(streams, np.bool_)
        self.ends: NDArray[np.int64] = np.zeros(streams, np.int64)
        """Entries of the side table in use."""
        self.history: Rows = 0
        self.episode: NDArray[np.uint32] = np.zeros(streams, "<u4")
        """[E]: how many episodes of each stream had ended before its first row."""
        self.since_moment = 0
        """The newest moment when it was begun."""
        self.has_outcomes = False
        """Whether an open row may hold a reward already, so that the next one must be added to it."""
        self.version_min = self.version_max = version

    def at(self, streams: Index) -> Rows:
        """The row at which streams stand."""
        return self._row if self.aligned else self.rows[streams]

    def full(self, streams: Index, length: int) -> bool:
        """Whether one of `streams` has no row left."""
        return self._row == length if self.aligned else bool(np.count_nonzero(self.rows[streams] == length))

    def close(self, streams: Index) -> None:
        """The open rows of `streams` are whole."""
        if self.aligned:
            self._row += 1
        else:
            self.rows[streams] += 1
            self.opened[streams] = False

    def open(self, streams: Index) -> None:
        """`streams` have acted: their rows wait for what that brings."""
        if not self.aligned:
            self.opened[streams] = True
            self.columns["reward"][self._everyone[streams], self.rows[streams] + self._before] = 0

    def has_open(self, streams: NDArray[np.int64]) -> bool:
        """Whether all of `streams` have acted and wait for what it brings."""
        return self.aligned or bool(self.opened[streams].all())

    def count(self) -> int:
        """Closed rows of all streams."""
        return self._row * len(self.rows) if self.aligned else int(self.rows.sum())

    def split_streams(self) -> None:
        """From here on each stream has its own row."""
        if self.aligned:
            self.rows[:] = self._row
            self.aligned = False
            self.open(slice(None))

    def align_streams(self) -> bool:
        """Goes back to one row for all where they stand at one; whether they do."""
        if not self.aligned and not self.has_outcomes and np.count_nonzero(self.opened) == len(self.opened):
            first = self.rows.item(0)
            if np.count_nonzero(self.rows == first) == len(self.rows):
                self._row, self.aligned = first, True
        return self.aligned

    def tail(self, names: list[str]) -> dict[str, NDArray]:
        """The last `before` rows of every stream, [E, before, ...] a field, for the next block's history."""
        if self.aligned:
            span = slice(self._row, self._row + self._before)
            return {name: self.columns[name][:, span].copy() for name in names}
        index = self.rows[:, None] + np.arange(self._before)
        return {name: self.columns[name][self._everyone[:, None], index] for name in names}
