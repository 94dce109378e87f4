"""What a recurrent policy remembers of each stream of a seat, at that stream's own pace.

In flows: states after each turn of a stream; ends of episodes. Out flows: states before a turn, and before the first
row of a segment.
Legend: `E` streams, `n` of them, `S` numbers of a state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.acting.block import Index

__all__ = ["Memory"]


class Memory:
    """Of `streams` streams, `numbers` S each. Nothing is zeros."""

    def __init__(self, streams: int, numbers: int) -> None:
        self._now = np.zeros((streams, numbers), np.float32)
        self._before = np.zeros((streams, numbers), np.float32)
        """Before the last turn of each stream."""

    def of(self, streams: Index) -> NDArray[np.float32]:
        """[n, S]: what is remembered now."""
        return self._now[streams]

    def keep(self, streams: Index, state: NDArray[np.float32]) -> None:
        """`streams` have acted and remember `state` [n, S]."""
        self._before[streams] = self._now[streams]
        self._now[streams] = state

    def forget(self, streams: NDArray[np.int64]) -> None:
        """An episode of `streams` has ended."""
        self._now[streams] = 0

    def begin(self, column: NDArray[np.float32], opened: NDArray[np.int64]) -> None:
        """Fills `column` [E, S] with what is remembered before row 0: for the streams `opened`, who bring an open row
        along, before that one; for the others before their next."""
        column[...] = self._now
        column[opened] = self._before[opened]
