"""Finished blocks that may travel together: held for a moment while the next ones are about to come.

What a message costs both ends hardly depends on how much is in it. A block is therefore held while the learner has
sixteen other messages to take and blocks are begun and finished within a millisecond of the one before, so that the
next is about to come. Who writes like this calls again at once, and nothing waits for what may not come: a block that
took longer, a wait for credit, an acknowledgement that leaves less than sixteen in flight, `pump` (with each pulse),
`drain` and the end send what is held. An actor whose blocks take many turns of its environment never holds any, and a
window of credit of no more than sixteen messages never lets one be held.

In flow: blocks as credit lets them go, and when each was begun. Out flow: runs of blocks for one message each. Pure.
"""

from __future__ import annotations

from protocol.credit import Block, Credit

__all__ = ["Holding"]

_BUSY = 16
"""Messages in flight with which a learner has something to do."""
_QUICK = 0.001
"""Seconds in which a block is written where the next one is worth waiting for."""
_MOST_BLOCKS = 8
_MOST_BYTES = 2**23
_MOST_INLINE = 2**22
"""What travels together at most. Columns that travel as well are copied twice on the way, and what is larger has left
the caches by then."""


class Holding:
    """Blocks of `credit`, of `segments` segments or less and `nbytes` bytes, that are in flight by the books and not
    yet sent. `alone`: none may share a message."""

    def __init__(self, credit: Credit, segments: int, nbytes: int, alone: bool) -> None:
        self._credit, self._segments = credit, segments
        self._nbytes, self._alone = nbytes, alone
        self._together = 1
        self.travel(inline=False)
        self._blocks: list[Block] = []
        self._begun: dict[int, float] = {}
        """When each block was begun that is being written, by its first slot."""
        self._finished = 0.0
        self._quick = False

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def waits(self) -> bool:
        """Whether what is held may be held on."""
        others = self._credit.messages - len(self._blocks)
        return self._quick and len(self._blocks) < self._together and others >= _BUSY

    def travel(self, inline: bool) -> None:
        """Whether the columns travel with their header."""
        most = (_MOST_INLINE if inline else _MOST_BYTES) // self._nbytes
        self._together = 1 if self._alone else max(1, min(_MOST_BLOCKS, most))

    def begin(self, slots: slice, now: float) -> None:
        """A block is to be written."""
        self._begun[slots.start] = now

    def finish(self, slots: slice, now: float) -> None:
        """It is whole."""
        self._quick = now - min(self._begun.pop(slots.start), self._finished) < _QUICK
        self._finished = now

    def add(self, blocks: list[Block]) -> None:
        """These may be sent now."""
        self._blocks += blocks

    def runs(self) -> list[tuple[Block, Block]]:
        """First and last block of each message that takes what is held, which is held no more: whole blocks side by
        side share one."""
        held, self._blocks = self._blocks, []
        runs: list[tuple[Block, Block]] = []
        count = 0
        for block in held:
            if runs and count < self._together and self._adjoin(runs[-1][1], block):
                runs[-1] = runs[-1][0], block
                count += 1
            else:
                runs.append((block, block))
                count = 1
        return runs

    def _adjoin(self, one: Block, other: Block) -> bool:
        whole = one.segments == other.segments == self._segments
        return whole and other.index == one.index + 1 and other.first == one.last + 1
