"""What a seat's rows refer to of that which all agents see in common: kept as long as a block refers to it.

In flow: blocks that begin and end. Out flow: moments held in the common ring (protocol/common.py).
Legend: `E` streams, `R` rows of a slot.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.common import CommonWriter
from workers.acting.block import Block

__all__ = ["Moments"]


class Moments:
    """Of the streams of a seat, which are of the copies `copies` [E] among those of a moment. The blocks that refer to
    them are in the ring `ring` (its nonce) and have segments of `length` rows, with `before` rows of history."""

    def __init__(self, common: CommonWriter, ring: str, copies: NDArray[np.int64], length: int, before: int) -> None:
        self._common, self._ring, self._copies, self._before = common, ring, copies, before
        self._span = None if common.turns is None else common.turns * length
        """After how many moments a block is shipped with the rows it has."""

    @property
    def now(self) -> int:
        """The newest."""
        return self._common.moment

    def hold(self, block: Block, opened: NDArray[np.int64]) -> None:
        """Keeps the moments that a new block refers to: of its history, of its open rows and all from now on. Those
        that are too old are written anew, so that an agent that is away for long holds up no memory."""
        common, moments = self._common, block.columns["moment"]
        refers = np.zeros(moments.shape, np.bool_)
        refers[opened, self._before] = True
        known = np.broadcast_to(block.history, len(moments))[:, None]
        refers[:, : self._before] = np.arange(self._before) >= self._before - known
        stream, row = np.nonzero(refers)
        found, oldest = moments[stream, row], common.moment
        if self._span is not None:
            late = found.astype(np.int64) < common.moment - self._span
            found[late] = common.renew(found[late], self._copies[stream[late]])
            moments[stream, row] = found
        block.since_moment = common.moment
        common.hold((self._ring, block.slots.start), min(oldest, int(found.min(initial=oldest))))

    def close(self, block: Block) -> None:
        """The block refers to nothing later."""
        self._common.close((self._ring, block.slots.start))

    def is_late(self, block: Block) -> bool:
        """Whether the block goes on for longer than memory for common observations lasts."""
        return self._span is not None and self._common.moment - block.since_moment > self._span
