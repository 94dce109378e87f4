"""Who may write, announce and overwrite which block, how many blocks one message announces, and how fast an actor goes
on without a learner. Pure, with time passed in.

`CreditWindow` is a state machine that accounts for every segment. The unit is a block: the slots of all streams of one
group, which are written and finished together. A block is free, being written, in the backlog (finished, not
announced), in flight (announced, not acknowledged) or kept (replay: acknowledged, still sampled). A block in flight is
never overwritten, so no announced segment is lost by a living writer; and at most `credits` blocks are in flight, so no
queue between the two ends can grow.

`SendCoalescer` coalesces: what a message costs both ends hardly depends on how much is in it. A block is held while the
learner has sixteen other messages to take and blocks come within a millisecond of one another, so that the next is
about to come. What took longer, a wait for credit, an acknowledgement that leaves less than sixteen in flight, `flush`
(with each heartbeat), `drain` and the end send what is held. An actor whose blocks take many turns never holds any.

`ActorPacer` is for replay with `drop_oldest`. A learner's rate limiter paces its actors by acknowledging late, and they
wait for it as long as they hear from it. A learner that is stopped or dead says nothing, as a busy one does; so the
actor goes on without it at the pace at which its segments were acknowledged until then, and overwrites the oldest. It
neither stands still nor runs away with the steps of the run, and a learner that comes back finds about as many new rows
as if it had never been away.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from protocol.errors import ConfigurationError
from protocol.transport.sockets import HIGH_WATER


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


class CreditWindow:
    """`blocks` blocks, of which `credits` may be in flight and `writers` are written at the same time."""

    def __init__(
        self,
        blocks: int,
        credits: int,
        writers: int,
        mode: Literal["stream", "replay"],
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
        self.blocks, self._credits = blocks, credits
        self._flow = flow
        self._keeps = mode == "replay"
        self._free: deque[int] = deque(range(blocks))
        self._backlog: deque[Block] = deque()
        self._flight: deque[Block] = deque()
        self._kept: deque[Block] = deque()
        self._settled = 0
        self.backlog = self.travelling = 0
        """Segments finished and not announced, announced and not acknowledged."""
        self.next = 1
        """The number of the next segment."""
        self.dropped = {"overwritten": 0, "no_credit": 0}

    @classmethod
    def of_flight(cls, blocks: int, flight: list[Block]) -> CreditWindow:
        """Nothing is to be written any more: only `flight`, in order, of a ring of `blocks`, is to be announced and
        acknowledged."""
        credit = cls(blocks, max(1, len(flight)), 0, "stream", "block")
        taken = {block.index for block in flight}
        credit._free = deque(index for index in range(blocks) if index not in taken)
        for block in flight:
            credit._flight.append(replace(block, after=credit.newest))
        credit.travelling = sum(block.segments for block in flight)
        credit.next = credit.newest + 1
        return credit

    def bounds(self, segments: int) -> Bounds:
        """What can be held up at most, where a block has `segments` segments.

        Segments are settled in order and stay in the ring until then: all that is settled between a segment's end and
        its own settlement shared the ring with it.
        """
        most = self.blocks * segments
        return Bounds(self._credits, self._credits * segments, most, most - segments)

    @property
    def flight(self) -> tuple[Block, ...]:
        """Announced, unacknowledged blocks, oldest first."""
        return tuple(self._flight)

    @property
    def paced(self) -> bool:
        """Whether a sender without credit waits for a learner that lives, and for no other (`ActorPacer`)."""
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

    def finish(self, index: int, segments: int) -> None:
        """A block was written: its segments get the next numbers and wait to be announced; without any it is free."""
        if not segments:
            self._free.appendleft(index)
            return
        self._backlog.append(Block(index, self.next, self.next + segments - 1))
        self.next += segments
        self.backlog += segments

    def announce(self) -> list[Block]:
        """The blocks that may be announced now; they are in flight from here on."""
        going = []
        while self._backlog and len(self._flight) < self._credits:
            waiting = self._backlog.popleft()
            after = self._flight[-1].last if self._flight else 0
            block = Block(waiting.index, waiting.first, waiting.last, after)
            self._flight.append(block)
            self.backlog -= block.segments
            self.travelling += block.segments
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
        """All segments up to number `settled` are settled; returns the blocks that left flight. A learner that took
        this actor for dead has read in its memory what was finished and not announced: it never is."""
        count = 0
        self._settled = max(self._settled, settled)
        while self._backlog and self._backlog[0].last <= settled:
            block = self._backlog.popleft()
            self._flight.append(block)
            self.backlog -= block.segments
            self.travelling += block.segments
        while self._flight and self._flight[0].last <= settled:
            block = self._flight.popleft()
            self.travelling -= block.segments
            if self._keeps:
                self._kept.append(block)
            else:
                self._free.append(block.index)
            count += 1
        return count

    def _drop(self, block: Block, cause: str) -> int:
        self.dropped[cause] += block.segments
        self.backlog -= block.segments
        return block.index


_BUSY = 16
"""Messages in flight with which a learner has something to do."""
_QUICK = 0.001
"""Seconds in which a block is written where the next one is worth waiting for."""
_MOST_BLOCKS = 8
_MOST_BYTES = 2**23
_MOST_INLINE = 2**22
"""What travels together at most. Columns that travel as well are copied twice on the way, and what is larger has left
the caches by then."""


class SendCoalescer:
    """Blocks of `credit`, of `segments` segments or less and `nbytes` bytes, that are in flight by the books and not
    yet sent. `alone`: none may share a message."""

    def __init__(self, credit: CreditWindow, segments: int, nbytes: int, alone: bool) -> None:
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


_FIRST = 5.0
"""Seconds of silence that are waited for before anything was ever settled."""
_LEAST, _MOST = 0.25, 1.5
"""Seconds of silence that mean nothing on a machine with much to do, and that are too long for an actor to stand still
whatever they mean: at its own pace it does no harm to a learner whose steps take longer. The latter are more than a
beacon takes, by which a learner that seldom settles is heard of."""
_SAMPLES = 64


class ActorPacer:
    """One actor's, of one policy. The unit is a block, as of credit."""

    def __init__(self, now: float) -> None:
        self._heard = self._due = self._began = now
        self._settled, self._repeated = 0, False
        self._course: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        """(time, blocks settled until then) of the newest acknowledgements that settled any."""

    def heard(self, now: float, blocks: int) -> None:
        """The learner acknowledged so many more; none where it repeated itself."""
        self._heard, self._repeated = now, not blocks
        if blocks:
            if not self._settled:
                self._began = now
            self._settled += blocks
            self._course.append((now, self._settled))

    def wait(self, now: float) -> float:
        """Seconds to wait for credit before asking again; 0: go on without it."""
        patience = self._patience
        if now - self._heard <= patience:
            return patience
        return max(0.0, self._due - now)

    def went_on(self, now: float) -> None:
        """A block was taken without credit. What was waited in vain is caught up with."""
        self._due = max(self._due + self._interval, now - self._patience)

    @property
    def _interval(self) -> float:
        """Seconds from one block to the next."""
        if len(self._course) < 2:
            return 0.0
        (first, before), (last, settled) = self._course[0], self._course[-1]
        return (last - first) / (settled - before)

    @property
    def _patience(self) -> float:
        """Seconds of silence that have to be expected: twice the longest of late, within bounds. A learner that only
        repeats itself keeps to its rate; what it settled at once, before it trained, is no pace to go on at."""
        if len(self._course) < 2:
            return _FIRST
        if self._repeated or self._course[-1][0] - self._began < _MOST:
            return _MOST
        times = [time for time, _ in self._course]
        return min(_MOST, max(_LEAST, 2 * max(later - earlier for earlier, later in pairwise(times))))
