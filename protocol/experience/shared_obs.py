"""What all agents of a world observe in common, stored once for each copy and turn, however many segments refer to it.

In flow: the common observations of one turn after another, each of which is a *moment* with a number. Out flow: a ring
of moments; for a reader, where the row lies that a segment's column `moment` refers to.

A slot of the ring is a block of `M` moments, its column [slots, M, E, *shape]. A record's `number` is that of its block
plus one (moment m is row m % M of block m // M), its `stream` the writer's. Legend: `E` copies, `n` segments, `R` rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.experience.ring_buffer import FINISHED, Ring
from protocol.messages.core import CommonRows

COMMON = "~common"
"""In the name of an actor's common ring what a policy's name is in that of any other; no policy is called so."""


class SharedObs:
    """One writer's moments in `ring`, to be read."""

    def __init__(self, ring: Ring, writer: int = 0) -> None:
        self.ring, self.writer = ring, np.uint64(writer)
        column = ring.columns["common"]
        self._moments, self._copies = column.shape[1:3]
        self.values: NDArray[Any] = column.reshape(-1, *column.shape[3:])
        """[rows, *shape]: what `rows` gives the places in."""

    def rows(self, moment: NDArray[np.uint64], stream: NDArray[np.uint64]) -> tuple[NDArray[np.int64], NDArray]:
        """Places [n, R] in `values` of the rows that streams [n] refer to by `moment` [n, R], and whether they are
        there [n, R]; never a place beyond. A segment found intact after copying proves that they were not recycled."""
        if not self.ring.whole:
            return np.zeros(moment.shape, np.int64), np.zeros(moment.shape, np.bool_)
        table = self.ring.table
        numbers = np.where(table["stream"] == self.writer, table["number"], np.uint64(0))
        order = np.argsort(numbers)
        block, row = np.divmod(moment, np.uint64(self._moments))
        block = block + np.uint64(1)
        place = np.minimum(np.searchsorted(numbers[order], block), len(order) - 1)
        there = numbers[order][place] == block
        slot = order[place]
        copy = (stream % np.uint64(self._copies)).astype(np.int64)[:, None]
        return (slot * self._moments + row.astype(np.int64)) * self._copies + copy, there


class SharedObsWriter:
    """Writes moments into `ring` and keeps those that a segment may still refer to.

    `turns`: how many groups of copies take turns, where agents come and go at will, so that segments have to end after
    so many moments a row; None where the world tells its `action_period`, for which the ring is large enough.

    Whoever writes a block of segments holds it from its oldest moment on, until the block is taken to be written anew
    and its records are marked so: a segment that a reader finds intact thus had its moments to itself.
    """

    def __init__(self, ring: Ring, turns: int | None = None) -> None:
        self.ring, self.turns = ring, turns
        self._column = ring.columns["common"]
        self.moments, self.copies = self._column.shape[1:3]
        self.moment = self._last = -1
        """That of the present turn; -1: none yet."""
        self._free = deque(range(ring.slots))
        self._slots: dict[int, int] = {}
        """Block -> slot, oldest first."""
        self._held: dict[Hashable, tuple[int, int | None]] = {}

    @classmethod
    def inherited(cls, ring: Ring) -> SharedObsWriter:
        """What an earlier incarnation left in `ring`, to be sent and not to be written on."""
        writer = cls(ring)
        written = np.flatnonzero(ring.table["state"] == FINISHED)
        numbers = {int(ring.table["number"][slot]) - 1: int(slot) for slot in written}
        writer._free.clear()
        writer._slots = dict(sorted(numbers.items()))
        writer.moment = writer._last = (max(numbers, default=-1) + 1) * writer.moments - 1
        return writer

    def has(self, oldest: int, newest: int) -> bool:
        """Whether the blocks of all moments from `oldest` to `newest` are there."""
        return all(block in self._slots for block in range(oldest // self.moments, newest // self.moments + 1))

    @property
    def newest(self) -> NDArray[Any]:
        """[E, *shape]: what is seen in the present turn."""
        return self._row(self.moment)

    def frame(self, first: int, count: int) -> Any:
        """The memory of `count` moments from `first` on, all of one block."""
        block, row = divmod(first, self.moments)
        return self._column[self._slots[block], row : row + count].reshape(-1).view(np.uint8).data

    @property
    def place(self) -> CommonRows:
        """What a reader on this node is told."""
        return CommonRows(ring=str(self.ring.path), nonce=self.ring.nonce)

    def write(self, values: NDArray[Any]) -> int:
        """The common observations [E, *shape] of the next moment; its number."""
        self._next()[...] = values
        self.moment = self._last
        return self.moment

    def renew(self, moments: NDArray[np.uint64], copies: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Writes rows (moment, copy) [n] once more, so that the old moments need not be kept; their new moments [n]."""
        pairs, which = np.unique(np.stack([copies.astype(np.uint64), moments], 1), axis=0, return_inverse=True)
        copy = pairs[:, 0].astype(np.int64)
        rank = np.arange(len(copy)) - np.searchsorted(copy, copy)  # rows of one copy go to different moments
        values = [self._row(int(moment))[c] for c, moment in zip(copy, pairs[:, 1], strict=True)]
        first = self._last + 1
        for place in range(int(rank.max(initial=-1)) + 1):
            row = self._next()
            for i in np.flatnonzero(rank == place):
                row[copy[i]] = values[i]
        return (first + rank[which.reshape(-1)]).astype(np.uint64)

    def hold(self, owner: Hashable, oldest: int, newest: int | None = None) -> None:
        """From here on `owner` refers to moments from `oldest` on, and to none before; to none after `newest`, if that
        is known."""
        self._held[owner] = (oldest, newest)

    def close(self, owner: Hashable) -> None:
        """What `owner` holds ends with the newest moment."""
        self._held[owner] = (self._held[owner][0], self._last)

    def release(self, owner: Hashable) -> None:
        """`owner` refers to nothing."""
        self._held.pop(owner, None)

    def held(self, owner: Hashable) -> tuple[int, int]:
        """The oldest and newest moment that `owner` refers to."""
        oldest, newest = self._held[owner]
        return oldest, self._last if newest is None else newest

    def blocks(self) -> list[tuple[int, int]]:
        """What is held, as (first, last) blocks in order, none touching the next."""
        spans = sorted(self.held(owner) for owner in self._held)
        merged: list[tuple[int, int]] = []
        for oldest, newest in spans:
            first, last = oldest // self.moments, newest // self.moments
            if merged and first <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
            else:
                merged.append((first, last))
        return merged

    def _row(self, moment: int) -> NDArray[Any]:
        """[E, *shape]: a moment that is held, or the newest."""
        block, row = divmod(moment, self.moments)
        found: NDArray[Any] = self._column[self._slots[block], row]
        return found

    def _next(self) -> NDArray[Any]:
        """[E, *shape]: a moment to be written."""
        self.ring.check_whole()
        block, row = divmod(self._last + 1, self.moments)
        if row == 0:
            self._begin(block)
        self._last += 1
        return self._row(self._last)

    def _begin(self, block: int) -> None:
        if not self._free:
            held = {number for first, last in self.blocks() for number in range(first, last + 1)}
            for gone in [number for number in self._slots if number not in held]:
                self._free.append(self._slots.pop(gone))
        if not self._free:
            raise EnvironmentFault("common_moments_used_up", count=self.ring.slots * self.moments)
        slot = self._slots[block] = self._free.popleft()
        record = self.ring.table[slot : slot + 1]
        record["number"], record["state"] = block + 1, FINISHED
