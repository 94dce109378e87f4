"""Which rows of a ring there are to be seen: the newest ones of all finished segments, and of one's own open segment.

In flow: a ring whose segments are consecutive pieces of one row of rows. Out flows: where the row of a number lies, and
whether what was copied was whole.
Legend: `m` segments, `S` slots, `R` rows of a slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.experience.layout import Field, Layout
from protocol.experience.ring_buffer import FINISHED, Ring
from protocol.memory.shared_file import Counters

_SETTLED = 0
"""The reader's word that says how many rows were sampled, or will never be."""
_ATTEMPTS = 10
Copied = TypeVar("Copied")


@dataclass(frozen=True)
class RowSpec:
    """Rows with states [*shape], the newest `capacity` of which are kept, to be stacked `frames` at a time."""

    shape: tuple[int, ...]
    capacity: int = 10_000
    frames: int = 1
    segment_length: int = 64

    def __post_init__(self) -> None:
        if min(self.capacity, self.frames, *self.shape, self.segment_length) < 1 or self.segment_length > 65_535:
            raise ConfigurationError("row_spec_malformed", value=self)

    @cached_property
    def layout(self) -> Layout:
        """Four columns of rows, and for each segment the number of its first row."""
        fields = (
            Field("state", "<f4", self.shape),
            Field("action", "<i8"),
            Field("reward", "<f4"),
            Field("done", "<f4"),
            Field("first", "<u8", (), "slot"),
        )
        return Layout(fields, self.segment_length)

    @property
    def slots(self) -> int:
        """Enough for `capacity` rows beside the segment being written."""
        return -(-self.capacity // self.segment_length) + 1

    @property
    def payload_bytes(self) -> int:
        """Bytes of `capacity` rows; `Rows.nbytes` says what their ring takes with all that comes on top."""
        return math.prod(self.shape) * self.capacity * 4 + self.capacity * 16


class RowWindow:
    """Rows `head` to `total - 1` of `ring`. `opened` says (slot, rows) of the segment that this process is writing;
    None where another process writes."""

    def __init__(
        self, ring: Ring, spec: RowSpec, counters: Counters, opened: Callable[[], tuple[int, int]] | None
    ) -> None:
        self._ring, self._spec, self._counters, self._opened = ring, spec, counters, opened
        self._sampled = np.zeros(spec.capacity, np.bool_)
        """Of the visible rows, by number modulo capacity."""
        self._seen: tuple[bytes, int] = (b"", 0)
        self._checked = np.zeros(ring.slots, np.uint64)
        """The sequence word with which each slot's checksum was right."""
        self._records = ring.table[:0].copy()
        self._first: NDArray[np.int64] = np.zeros(0, np.int64)
        self.head = self.total = 0
        self.head, self.total = self._look() or (0, 0)
        self._settled = self.head  # what was gone before is nobody's loss
        self._counters.set("fill", self.total - self.head)

    def __len__(self) -> int:
        return self.total - self.head

    def refresh(self) -> None:
        """Follows the writer; rows that left without having been sampled are counted."""
        found = self._look()
        if found is None:
            return
        head, total = found
        left = np.arange(self.head, min(head, self.total)) % self._spec.capacity
        lost = head - self.head - int(np.count_nonzero(self._sampled[left]))
        self._sampled[left] = False
        self._settled += lost
        self.head, self.total = head, total
        self._counters.add("rows_overwritten_unsampled", lost)
        self._counters.set("fill", total - head)

    def column(self, name: str) -> NDArray:
        """[S * R, ...]: a column of rows, its slots one behind the other."""
        column = self._ring.columns[name]
        return column.reshape(-1, *column.shape[2:])

    def places(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the rows `numbers` lie in a `column`."""
        segment = self._segments(numbers)
        return self._records["slot"][segment].astype(np.int64) * self._spec.layout.rows + numbers - self._first[segment]

    def whole(
        self, copy: Callable[[], tuple[NDArray[np.int64], Copied] | None]
    ) -> tuple[NDArray[np.int64], Copied] | None:
        """What `copy` returns, row numbers and what it made of those rows, their stacks and their successors, once
        nothing of this was overwritten meanwhile; None if it returns None or the writer is too fast."""
        for _ in range(_ATTEMPTS):
            with self._ring.reading():
                self.refresh()
                found = copy()
                if found is None or self._opened is not None or self._intact(found[0]):
                    return found
            self._counters.add("torn")
            self._seen, self._checked[:] = (b"", 0), 0
        return None

    def mark(self, numbers: NDArray[np.int64]) -> None:
        """These rows were sampled; the writer may know."""
        place = numbers % self._spec.capacity
        self._settled += int(np.count_nonzero(~self._sampled[place]))
        self._sampled[place] = True
        self._ring.words[_SETTLED] = self._settled

    def settled(self) -> int:
        """How many rows the reader has sampled, or missed for ever."""
        return int(self._ring.words[_SETTLED])

    def _segments(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self._first, numbers, side="right") - 1

    def _intact(self, numbers: NDArray[np.int64]) -> bool:
        last = self._segments(np.minimum(numbers + 1, self.total - 1))
        oldest = self._segments(np.maximum(numbers - self._spec.frames + 1, self.head))
        used = np.zeros(len(self._first), np.bool_)
        for back in range(int((last - oldest).max()) + 1 if numbers.size else 0):
            used[np.maximum(last - back, oldest)] = True
        return bool(self._ring.intact(self._records[used]).all())

    def _look(self) -> tuple[int, int] | None:
        """(head, total) of the segments that there are now; None if they are those of the last time."""
        slot, rows = self._opened() if self._opened is not None else (0, 0)
        seen = (self._ring.table["sequence"].tobytes(), rows)
        if seen == self._seen:
            return None
        if seen[0] == self._seen[0] and rows and self._seen[1]:  # only the open segment has grown
            self._seen, self._records["valid"][-1] = seen, rows
            total = int(self._first[-1]) + rows
            return max(self.head, total - self._spec.capacity), total
        table, first = self._ring.table.copy(), self._ring.columns["first"].astype(np.int64)
        table["slot"] = np.arange(len(table))
        # who begins a slot makes its word odd and then says so in its state; `first` was read in between
        whole = (table["state"] == FINISHED) & (table["sequence"] % 2 == 0) & self._ring.current(table)
        if self._ring.checksums and self._opened is None:
            news = whole & (table["sequence"] != self._checked)
            whole[news] = self._ring.intact(table[news])
            self._checked[whole] = table["sequence"][whole]
        if rows:
            whole[slot], table["valid"][slot] = True, rows
        found = np.flatnonzero(whole)
        found = found[np.argsort(first[found])]
        first, records = first[found], table[found]
        ends = first + records["valid"]
        broken = np.flatnonzero(ends[:-1] != first[1:])
        start = int(broken[-1]) + 1 if len(broken) else 0
        self._seen, self._first, self._records = seen, first[start:], records[start:]
        if len(ends) == 0:
            return self.total, self.total
        total = max(int(ends[-1]), self.head)
        return max(int(first[start]), total - self._spec.capacity, self.head), total
