"""Who may write, announce and overwrite what: a pure state machine that accounts for every segment.

The unit is a block: the slots of all streams of one group, which are written and finish together. A block is free,
being written, in the backlog (finished, not announced), in flight (announced, not acknowledged) or kept (replay:
acknowledged, still sampled). A block in flight is never overwritten, so no announced segment is ever lost by a living
writer, and at most `credits` blocks are in flight, so no queue between the two ends can grow.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Literal

from protocol.errors import ConfigurationError
from protocol.sockets import HIGH_WATER

__all__ = ["Block", "Bounds", "Credit", "blocks_of"]


@dataclass(frozen=True, slots=True)
class Block:
    """A finished block and the segment numbers first..last in it.

    `after` is the last number that was announced before it and may still be on its way; 0: none is.
    """

    index: int
    first: int
    last: int
    after: int = 0

    @property
    def segments(self) -> int:
        """How many segments it holds."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Bounds:
    """What one writer can hold up at most, whatever happens at the other end."""

    messages: int
    """Announced and not settled; no queue between the two ends is ever longer."""
    flight: int
    """Segments in them."""
    ring: int
    """Segments in memory."""
    behind: int
    """Segments of this writer that are settled between a segment's end and its own settlement: its data are never
    older than the training on these (and on as many of each other actor) makes them."""


def blocks_of(credits: int, segments: int) -> int:
    """How many blocks of `segments` segments `credits` are; ConfigurationError unless they are whole ones."""
    if credits % segments:
        below, above = credits // segments * segments, -(-credits // segments) * segments
        raise ConfigurationError(
            "credits_not_a_multiple",
            credits=credits,
            segments=segments,
            choices=f"{below} or {above}" if below else above,
            key="policy.credits",
        )
    return credits // segments


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
        needed = writers + max(credits, 1)
        if blocks < needed or credits < 1:
            raise ConfigurationError(
                "credits_would_deadlock",
                blocks=blocks,
                credits=credits,
                writers=writers,
                travelling=max(credits, 1),
                limit=needed,
                key="policy.credits",
            )
        if credits >= HIGH_WATER:
            raise ConfigurationError(
                "credits_exceed_socket_queue", credits=credits, limit=HIGH_WATER, key="policy.credits"
            )
        self._blocks, self._credits = blocks, credits
        self._flow = flow
        self._keeps = discipline == "replay"
        self._free: deque[int] = deque(range(blocks))
        self._backlog: deque[Block] = deque()
        self._flight: deque[Block] = deque()
        self._kept: deque[Block] = deque()
        self._waiting = self._travelling = self._settled = self._announced = 0
        self.dropped = {"overwritten": 0, "no_credit": 0}

    @classmethod
    def of_flight(cls, blocks: int, flight: list[Block]) -> Credit:
        """Nothing is to be written any more: only `flight`, in order, of a ring of `blocks`, is to be announced and
        acknowledged."""
        credit = cls(blocks, max(1, len(flight)), 0, "stream", "block")
        taken = {block.index for block in flight}
        credit._free = deque(index for index in range(blocks) if index not in taken)
        for block in flight:
            credit._flight.append(replace(block, after=credit.newest))
        credit._travelling = sum(block.segments for block in flight)
        credit._announced = flight[-1].last if flight else 0
        return credit

    def bounds(self, segments: int) -> Bounds:
        """What can be held up at most, where a block has `segments` segments.

        Segments are settled in order and stay in the ring until then: all that is settled between a segment's end and
        its own settlement shared the ring with it.
        """
        most = self._blocks * segments
        return Bounds(self._credits, self._credits * segments, most, most - segments)

    @property
    def backlog(self) -> int:
        """Segments finished and not announced."""
        return self._waiting

    @property
    def travelling(self) -> int:
        """Segments announced and not acknowledged."""
        return self._travelling

    @property
    def flight(self) -> tuple[Block, ...]:
        """Announced, unacknowledged blocks, oldest first."""
        return tuple(self._flight)

    @property
    def paced(self) -> bool:
        """Whether who has none waits for a learner that lives, and for no other (protocol/pace.py)."""
        return self._keeps and self._flow == "drop_oldest"

    @property
    def messages(self) -> int:
        """How many blocks are in flight."""
        return len(self._flight)

    @property
    def newest(self) -> int:
        """The highest segment number in flight; 0 if none is."""
        return self._flight[-1].last if self._flight else 0

    @property
    def announced(self) -> int:
        """The highest segment number that was ever announced."""
        return self._announced

    @property
    def short(self) -> bool:
        """Whether no more than half of the credit is left."""
        return 2 * len(self._flight) >= self._credits

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
            return self._drop(self._backlog.popleft(), "overwritten")
        if self._flow == "drop_newest" and self._backlog:
            return self._drop(self._backlog.pop(), "no_credit")
        return None

    def finish(self, block: Block) -> None:
        """A block was written; it waits to be announced."""
        self._backlog.append(block)
        self._waiting += block.segments

    def return_(self, index: int) -> None:
        """A block was taken and nothing was written to it."""
        self._free.appendleft(index)

    def announce(self) -> list[Block]:
        """The blocks that may be announced now; they are in flight from here on."""
        going = []
        while self._backlog and len(self._flight) < self._credits:
            waiting = self._backlog.popleft()
            after = self._flight[-1].last if self._flight else 0
            block = Block(waiting.index, waiting.first, waiting.last, after)
            self._flight.append(block)
            self._waiting -= block.segments
            self._travelling += block.segments
            self._announced = block.last
            going.append(block)
        return going

    def again(self, beyond: int = 0) -> list[Block]:
        """The blocks in flight with numbers beyond `beyond`, to be announced once more, in order."""
        return [
            Block(block.index, block.first, block.last, block.after if block.after > self._settled else 0)
            for block in self._flight
            if block.last > beyond
        ]

    def acknowledge(self, settled: int) -> int:
        """All segments up to number `settled` are settled; returns the blocks that left flight."""
        count = 0
        self._settled = max(self._settled, settled)
        while self._flight and self._flight[0].last <= settled:
            block = self._flight.popleft()
            self._travelling -= block.segments
            if self._keeps:
                self._kept.append(block)
            else:
                self._free.append(block.index)
            count += 1
        return count

    def _drop(self, block: Block, cause: str) -> int:
        self.dropped[cause] += block.segments
        self._waiting -= block.segments
        return block.index
