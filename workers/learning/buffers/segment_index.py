"""The segments that may be replayed, in order of admission, and where they lie.

In flow: announcements. Out flows: records, rings and actors by place; what a checkpoint keeps of them.
Legend: `n` segments.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import RECORD, Records, Ring
from workers.learning.buffers.replay_checkpoint import SavedSegments
from workers.learning.buffers.ring_table import RingTable

_FIRST = 512
_COLUMNS = ("records", "ends", "ring", "actor", "sampled", "ordinal")


class SegmentIndex:
    """Records `head`..`tail`-1 of arrays that grow; `ends[i]` counts the rows ever admitted up to record i, so that a
    row number finds its record by bisection."""

    def __init__(self, rings: RingTable) -> None:
        self.rings = rings
        self.head = self.tail = 0
        self.evicted_offset = 0
        """Records that lay in front of those in the arrays."""
        self.forgotten = 0
        """Rows of records that were left behind."""
        self.records = np.empty(_FIRST, RECORD)
        self.ends = np.zeros(_FIRST, np.int64)
        self.ring = np.zeros(_FIRST, np.int32)
        self.actor = np.zeros(_FIRST, np.int32)
        self.actors: list[tuple[str, int]] = []
        """(name, incarnation) of all that segments came from, to which `actor` refers."""
        self.sampled = np.zeros(_FIRST, np.bool_)
        self.ordinal = np.zeros(_FIRST, np.int64)
        """How many blocks of the same ring were admitted before its own."""

    @property
    def alive(self) -> slice:
        """The places of all records."""
        return slice(self.head, self.tail)

    @property
    def every(self) -> NDArray[np.int64]:
        """The same, as an array."""
        return np.arange(self.head, self.tail)

    @property
    def rows(self) -> int:
        """Rows of all records."""
        return int(self.ends[self.tail - 1]) - self.forgotten if self.tail > self.head else 0

    def append(self, records: Records, arrival: Arrival) -> int:
        """Adds the segments `records` [n] of `arrival`; returns how many rows they have."""
        n = len(records)
        if n == 0:
            return 0
        if self.tail + n > len(self.records):
            self._make_room(n)
        where = slice(self.tail, self.tail + n)
        before = int(self.ends[self.tail - 1]) if self.tail > self.head else self.forgotten
        self.records[where] = records
        self.ends[where] = before + np.cumsum(records["valid"], dtype=np.int64)
        number = self.rings.number(arrival, self.ring[self.alive])
        self.ring[where] = number
        self.actor[where] = self._actor_number((arrival.actor, arrival.incarnation))
        self.ordinal[where] = self.rings.ordinals(number, records["slot"])
        self.sampled[where] = False
        self.tail += n
        return int(self.ends[self.tail - 1]) - before

    def evict(self, count: int) -> NDArray[np.uint32]:
        """Forgets the oldest `count` records; the slots among theirs that are a pool's, to be given back."""
        leaving = slice(self.head, self.head + count)
        pooled = self.rings.pooled(self.ring[leaving])
        self.forgotten = int(self.ends[leaving.stop - 1])
        self.head = leaving.stop
        return np.asarray(self.records["slot"][leaving][pooled])

    def usable(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these records' slots were not begun again and will not be written next."""
        return self.rings.usable(self.ring[index], self.ordinal[index], self.records[index])

    def uses(self, ring: Ring) -> bool:
        """Whether any record lies in `ring`."""
        return bool(np.isin(self.ring[self.alive], self.rings.numbers(ring)).any())

    def ends_before(self, index: NDArray[np.int64], row: NDArray[np.int64], before: int) -> NDArray[np.int64]:
        """[n]: how many episodes ended in records `index` [n] before their `row` [n], behind `before` rows of history;
        -1 where a record was overwritten."""
        found = np.full(len(index), -1, np.int64)
        for number in np.unique(self.ring[index]):
            mine = np.flatnonzero(self.ring[index] == number)
            ring, _ = self.rings[number]
            records = self.records[index[mine]]
            with ring.reading():
                ended = ring.columns["terminated"][records["slot"]] | ring.columns["truncated"][records["slot"]]
                whole = ring.intact(records)
            earlier = np.arange(ended.shape[1] - before) < row[mine, None]
            found[mine] = np.where(whole, (ended[:, before:] & earlier).sum(1), -1)
        return found

    def newest(self, rows: int) -> NDArray[np.int64]:
        """The places of the newest usable records, of no more than so many rows."""
        every = self.every
        every = every[self.usable(every)] if len(every) else every
        return every[np.cumsum(self.records["valid"][every][::-1], dtype=np.int64)[::-1] <= rows]

    def kept(self, index: NDArray[np.int64], priority: NDArray[np.float64] | None) -> SavedSegments:
        """The records at `index` [n] for a checkpoint, with the priorities of their rows."""
        first = self.evicted_offset + int(index[0])
        return SavedSegments(first, self.records[index], self.ring[index], self.actor[index], self.actors, priority)

    def restore(self, kept: SavedSegments, ring: Ring) -> None:
        """Begins with `kept`, which lies in `ring`; before anything else is there."""
        n = len(kept.records)
        self._make_room(n)
        self.tail, self.evicted_offset, self.actors = n, kept.first, kept.actors
        self.records[:n], self.ring[:n], self.actor[:n] = kept.records, kept.ring, kept.actor
        self.ends[:n] = np.cumsum(kept.records["valid"], dtype=np.int64)
        self.sampled[:n] = True  # an earlier incarnation has counted them
        self.rings.enter_kept(ring, int(kept.ring.max()) + 1)

    def _make_room(self, n: int) -> None:
        """Moves what is alive to the front of arrays that are large enough."""
        alive = self.tail - self.head
        size = max(len(self.records), 2 * (alive + n))
        for name in _COLUMNS:
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[:alive] = old[self.alive]
            setattr(self, name, new)
        self.evicted_offset += self.head
        self.head, self.tail = 0, alive

    def _actor_number(self, actor: tuple[str, int]) -> int:
        if actor not in self.actors:
            self.actors.append(actor)
        return self.actors.index(actor)
