"""What an actor keeps of each stream of an agent: its recurrent state, the return of its episode, and which shared
observations its rows refer to.

In flows: states after each turn; rewards and ends; blocks that begin and end. Out flows: states before a turn and
before the first row of a segment; how many episodes ended, the sums of their returns and lengths; shared observations
(protocol/experience/shared_obs.py) that are kept as long as a block refers to them.

Legend: `E` streams, `n` of them, `S` numbers of a state, `R` rows of a slot.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.experience.shared_obs import SharedObsWriter
from workers.rollout.segment_block import Index, SegmentBlock


class RecurrentState:
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

    def reset(self, streams: NDArray[np.int64]) -> None:
        """An episode of `streams` has ended."""
        self._now[streams] = 0

    def begin(self, column: NDArray[np.float32], opened: NDArray[np.int64]) -> None:
        """Fills `column` [E, S] with what is remembered before row 0: for the streams `opened`, who bring an open row
        along, before that one; for the others before their next."""
        column[...] = self._now
        column[opened] = self._before[opened]


class EpisodeReturns:
    """Of `streams` streams. The episodes that begin before the opening of the run is closed are told apart, those that
    end long afterwards too: whoever counts what has ended by then counts the short ones only."""

    def __init__(self, streams: int) -> None:
        self._returns = np.zeros(streams)
        self._everyone: NDArray[np.int64] = np.arange(streams)
        self._turns, self._lengths = 0, np.zeros(streams, np.int64)
        """Steps of all streams together, and [E] how many more each has made in its present episode."""
        self._episodes, self._sum, self._steps = 0, 0.0, 0
        self.ended: NDArray[np.uint32] = np.zeros(streams, np.uint32)
        """[E]: episodes of each stream that have ended so far."""
        self._opening = True
        self._early = np.zeros(streams, np.bool_)
        """[E]: whether its present episode began in the opening."""
        self._first_episodes, self._first_sum = 0, 0.0

    def act(self, streams: Index) -> None:
        """`streams` make a step each."""
        if isinstance(streams, slice):
            self._turns += 1  # all of them
        else:
            self._lengths[streams] += 1

    def add(self, streams: Index, reward: NDArray[np.float32], done: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Enters rewards; the streams whose episode ended with them."""
        self._returns[streams] += reward
        if self._opening:
            self._early[streams] = True
        if not np.count_nonzero(done):  # a tenth of what `any` takes
            return self._everyone[:0]
        ended = self._everyone[streams][done]
        self._episodes += len(ended)
        self.ended[ended] += np.uint32(1)
        self._sum += float(self._returns[ended].sum())
        self._steps += self._turns * len(ended) + int(self._lengths[ended].sum())
        self._lengths[ended] = -self._turns
        first = ended[self._early[ended]]
        self._first_episodes += len(first)
        self._first_sum += float(self._returns[first].sum())
        self._early[first] = False
        self._returns[ended] = 0.0
        return ended

    def take(self) -> tuple[int, float, int]:
        """(episodes, sum of their returns, and of their lengths) since the last call."""
        taken = (self._episodes, self._sum, self._steps)
        self._episodes, self._sum, self._steps = 0, 0.0, 0
        return taken

    def close_opening(self) -> None:
        """What begins from now on is none of the first."""
        self._opening = False

    @property
    def first(self) -> tuple[int, int, float]:
        """Of the episodes that began in the opening: how many go on, how many have ended, and the sum of their
        returns."""
        return int(np.count_nonzero(self._early)), self._first_episodes, self._first_sum


class SharedObservationRefs:
    """Of the streams of a seat, which are of the copies `copies` [E] among those of a moment. The blocks that refer to
    them are in the ring `ring` (its nonce) and have segments of `length` rows, with `before` rows of history."""

    def __init__(self, common: SharedObsWriter, ring: str, copies: NDArray[np.int64], length: int, before: int) -> None:
        self._common, self._ring, self._copies, self._before = common, ring, copies, before
        self._span = None if common.turns is None else common.turns * length
        """After how many moments a block is shipped with the rows it has."""

    @property
    def now(self) -> int:
        """The newest."""
        return self._common.moment

    def acquire(self, block: SegmentBlock, opened: NDArray[np.int64]) -> None:
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

    def close(self, block: SegmentBlock) -> None:
        """The block refers to nothing later."""
        self._common.close((self._ring, block.slots.start))

    def is_late(self, block: SegmentBlock) -> bool:
        """Whether the block goes on for longer than memory for common observations lasts."""
        return self._span is not None and self._common.moment - block.since_moment > self._span
