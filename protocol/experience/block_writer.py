"""Blocks of a ring, written one after the other: what an actor's sender and the sequential reference have in common.

In flow: credit. Out flow: slots to write; numbered, finished blocks that may be announced.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.experience.flow_control import Block, CreditWindow
from protocol.experience.ring_buffer import Ring

__all__ = ["BlockWriter"]


class BlockWriter:
    """Blocks of `block` slots of `ring`, as `credit` allows; whole segments are numbered from 1."""

    def __init__(self, ring: Ring, credit: CreditWindow, block: int) -> None:
        self.ring, self.credit, self.block = ring, credit, block
        self._next = 1

    def slots(self, index: int) -> slice:
        """Of block `index`."""
        return slice(index * self.block, (index + 1) * self.block)

    def take(self) -> slice | None:
        """The slots of a block to write, begun; None without credit."""
        index = self.credit.take()
        if index is None:
            return None
        slots = self.slots(index)
        self.ring.begin(slots)
        return slots

    def finish(self, slots: slice, valid: int | NDArray[np.int64], before: int | NDArray[np.int64]) -> int:
        """The block in `slots` is whole, with so many rows and rows of history, one number for all or one a slot: its
        segments get the next numbers and wait to be announced. Returns how many these are: slots without a row are
        none, and a block without any is free again."""
        first, index = self._next, slots.start // self.block
        count = self.ring.finish(slots, first, valid, before)
        if count == 0:
            self.credit.return_(index)
            return 0
        self._next += count
        self.credit.finish(Block(index, first, self._next - 1))
        return count
