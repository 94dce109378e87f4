"""Who may write, announce and overwrite what: a pure state machine that accounts for every segment.

The unit is a block: the slots of all streams of one group, which are written and finish together. A block is free,
being written, in the backlog (finished, not announced), in flight (announced, not acknowledged) or kept (replay:
acknowledged, still sampled). A block in flight is never overwritten, so no announced segment is ever lost by a living
writer, and at most `credits` blocks are in flight, so no queue between the two ends can grow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from protocol.errors import ConfigurationError

__all__ = ["Block", "Credit"]


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block and the segment numbers first..last in it."""

    index: int
    first: int
    last: int

    @property
    def segments(self) -> int:
        """How many segments it holds."""
        return self.last - self.first + 1


class Credit:
    """`blocks` blocks, of which `credits` may be in flight and `writers` are written at the same time."""

    def __init__(
        self,
        blocks: int,
        credits: int,
        writers: int,
        discipline: Literal["stream", "replay"],
        flow: Literal["block", "drop_oldest", "drop_newest"],
    ) -> None:
        needed = writers + 1
        if blocks < needed or credits < 1:
            raise ConfigurationError(
                f"{blocks} blocks with {credits} credits would deadlock: {writers} are always being written and one "
                f"must be able to travel; raise credits (or buffer_capacity) so that there are at least {needed} blocks"
            )
        self._credits = credits
        self._flow = flow
        self._keeps = discipline == "replay"
        self._free: deque[int] = deque(range(blocks))
        self._backlog: deque[Block] = deque()
        self._flight: deque[Block] = deque()
        self._kept: deque[Block] = deque()
        self.dropped = {"overwritten": 0, "no_credit": 0}

    @property
    def backlog(self) -> int:
        """Segments finished and not announced."""
        return sum(block.segments for block in self._backlog)

    @property
    def flight(self) -> tuple[Block, ...]:
        """Announced, unacknowledged blocks, oldest first."""
        return tuple(self._flight)

    @property
    def idle(self) -> bool:
        """Whether everything finished is acknowledged."""
        return not self._backlog and not self._flight

    def take(self) -> int | None:
        """A block to write, or None: wait for an acknowledgement."""
        if self._flow == "block" and self._backlog:
            return None
        if self._free:
            return self._free.popleft()
        if self._kept:
            return self._kept.popleft().index
        if self._flow == "drop_oldest" and self._backlog:
            block = self._backlog.popleft()
            self.dropped["overwritten"] += block.segments
            return block.index
        if self._flow == "drop_newest" and self._backlog:
            block = self._backlog.pop()
            self.dropped["no_credit"] += block.segments
            return block.index
        return None

    def finish(self, block: Block) -> None:
        """A block was written; it waits to be announced."""
        self._backlog.append(block)

    def announce(self) -> list[Block]:
        """The blocks that may be announced now; they are in flight from here on."""
        going = []
        while self._backlog and len(self._flight) < self._credits:
            block = self._backlog.popleft()
            self._flight.append(block)
            going.append(block)
        return going

    def acknowledge(self, settled: int) -> int:
        """All segments up to number `settled` are settled; returns the blocks that left flight."""
        count = 0
        while self._flight and self._flight[0].last <= settled:
            block = self._flight.popleft()
            if self._keeps:
                self._kept.append(block)
            else:
                self._free.append(block.index)
            count += 1
        return count
