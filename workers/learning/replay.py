"""The replay discipline: transitions sampled in place from the rings, checked for having been whole while copied.

Entries are segments in order of admission; the newest `capacity` rows are sampled over (segment, row), uniformly or by
priority.
Legend: `b` transitions of a batch.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.arrivals import Arrival
from protocol.common import Common
from protocol.config import Replayed
from protocol.counters import Counters
from protocol.layout import Layout
from protocol.ring import RECORD, Ring
from protocol.version import Version, lag
from workers.learning.batches import Transitions
from workers.learning.gather import gather
from workers.learning.governor import Governor
from workers.learning.priorities import Drawn, Priorities
from workers.learning.provenance import Origin
from workers.learning.source import Source
from workers.policies.interface import Interface

__all__ = ["Replay"]

_ATTEMPTS = 10
_CHUNK = 256
_HOST = torch.device("cpu")
_NEVER = np.uint64(2**64 - 1)
"""A sequence word that no slot has: its record is never drawn again."""


class Replay:
    """All rows of one policy that may be replayed: records `head..tail-1` in order of admission, about `capacity` rows
    in no more segments than full ones would be (memory is planned for these, however short the segments are), and of
    each actor's ring the newest `ring_blocks` blocks of `block` slots, which it keeps (however few of these slots are
    segments): nothing is overwritten while it is copied.

    `_ends[i]` counts the rows ever admitted up to record i, so that a row number finds its record by bisection.
    """

    def __init__(
        self,
        policy: str,
        interface: Interface,
        layout: Layout,
        config: Replayed,
        source: Source,
        counters: Counters,
        governor: Governor,
        seed: int,
        capacity: int,
        ring_blocks: int,
        block: int = 1,
        device: torch.device = _HOST,
    ) -> None:
        self._policy, self._interface, self._layout, self._config = policy, interface, layout, config
        self._capacity, self._ring_blocks, self._block = capacity, ring_blocks, block
        self._source, self._counters, self._device = source, counters, device
        self._governor = governor
        self._at_once = max(1, governor.insertion // layout.length)
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._rings: list[Ring] = []
        self._commons: list[Common | None] = []
        """Where the moments lie that segments in each of the rings refer to; a pool is there once for each actor."""
        self._head = self._tail = 0
        self._gone = 0
        """Records that lay in front of those in the arrays."""
        segments = max(1, capacity // layout.length)
        alpha = config.priority_alpha
        self._priorities = Priorities(segments, layout.length, alpha) if alpha > 0 else None
        self._drawn: Drawn | None = None
        """The rows of the last batch, where priorities chose them."""
        self._records = np.empty(2 * _CHUNK, RECORD)
        self._ends = np.zeros(2 * _CHUNK, np.int64)
        self._ring = np.zeros(2 * _CHUNK, np.int32)
        self._actor = np.zeros(2 * _CHUNK, np.int32)
        self._actors: list[tuple[str, int]] = []
        """(name, incarnation) of all that segments came from, to which `_actor` refers."""
        self._last: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        """Records and rows [b] of the last batch."""
        self._sampled = np.zeros(2 * _CHUNK, np.bool_)
        self._ordinal = np.zeros(2 * _CHUNK, np.int64)
        """How many blocks of the same ring were admitted before its own."""
        self._owned: list[bool] = []
        self._admitted: list[int] = []
        """Blocks of each ring so far."""
        self._newest: list[int] = []
        """The last of them, by place in the ring."""
        self._forgotten = 0
        self._too_few = False
        """Whether the last batch that might have been drawn was not, as there are too few rows."""

    @property
    def rows(self) -> int:
        """Rows that may be sampled."""
        return int(self._ends[self._tail - 1]) - self._forgotten if self._tail > self._head else 0

    def admit(self, everything: bool = False) -> None:
        """Takes in what has arrived as far as the governor lets it, or (at the end) all of it. Where what is here makes
        no batch, more comes in all the same: segments may be so short, and both sides would wait for each other."""
        arrivals = self._source.arrivals(self._policy)
        while arrivals:
            arrival = arrivals[0]
            records, ring = arrival.records[: self._at_once], arrival.ring
            may_insert = everything or self._too_few or self._governor.may_insert(int(records["valid"].sum()))
            if not may_insert:
                break
            self._too_few = False
            arrival.records = arrival.records[len(records) :]
            if len(arrival.records) == 0:
                arrivals.popleft()
            with ring.reading():
                intact = ring.intact(records)
            if not intact.all():
                torn = len(intact) - int(intact.sum())
                self._counters.add(f"torn.{self._policy}", torn)
                self._counters.add(f"dropped.recycled.{self._policy}", torn)
            self._append(records[intact], arrival)
            self._source.settle(self._policy, arrival, int(records["number"][-1]), len(records))
        self._source.answer()
        self._counters.set(f"held_back.{self._policy}", sum(len(arrival.records) for arrival in arrivals))
        self._evict()

    def sample(self, now: Version, progress: float = 0.0) -> Transitions | None:
        """A batch, or None: not ready. `progress` in [0, 1] is how much of the run is over: weights of prioritised rows
        make up for all of it at the end."""
        self._evict()
        size = self._config.batch_size
        if not self._governor.may_sample:
            return None
        for _ in range(_ATTEMPTS):
            places = self._places(size, progress) if self.rows >= size else None
            self._too_few = places is None
            if places is None:
                return None
            batch = self._copy(*places, now)
            if batch is not None:
                self._governor.sampled += size
                return batch
            self._evict()
        return None  # the actor is overwriting faster than can be copied; `torn` says so

    def learned(self, errors: torch.Tensor) -> None:
        """The rows of the last batch had these errors [b]."""
        if self._priorities is not None and self._drawn is not None:
            self._priorities.learn(self._drawn, errors.cpu().numpy())

    def provenance(self) -> list[Origin]:
        """Where each transition of the last batch came from; to be asked before anything more is admitted."""
        if self._last is None:
            return []
        index, row = self._last
        order = np.argsort(self._ring[index], kind="stable")  # rings one after another, as they were copied
        index, row = index[order], row[order]
        actors = [self._actors[number] for number in self._actor[index]]
        return [Origin.of(*one) for one in zip(actors, self._records[index], row.tolist(), strict=True)]

    def uses(self, ring: Ring) -> bool:
        """Whether anything of `ring` may still be sampled."""
        known = [i for i, mine in enumerate(self._rings) if mine is ring]
        return bool(np.isin(self._ring[self._head : self._tail], known).any())

    def _append(self, records: NDArray[np.void], arrival: Arrival) -> None:
        n = len(records)
        if n == 0:
            return
        if self._tail + n > len(self._records):
            self._make_room(n)
        where = slice(self._tail, self._tail + n)
        before = int(self._ends[self._tail - 1]) if self._tail > self._head else self._forgotten
        self._records[where] = records
        self._ends[where] = before + np.cumsum(records["valid"], dtype=np.int64)
        number = self._ring_number(arrival.ring, arrival.owned, arrival.common)
        self._ring[where] = number
        self._actor[where] = self._actor_number((arrival.actor, arrival.incarnation))
        block = records["slot"].astype(np.int64) // self._block
        others = np.cumsum(np.diff(block, prepend=self._newest[number]) != 0)
        self._ordinal[where] = self._admitted[number] + others - 1
        self._admitted[number] += int(others[-1])
        self._newest[number] = int(block[-1])
        self._sampled[where] = False
        self._tail += n
        rows = int(self._ends[self._tail - 1]) - before
        self._governor.inserted += rows
        self._counters.add(f"received.{self._policy}", n)
        self._counters.add(f"held.{self._policy}", n)
        self._counters.add(f"rows_received.{self._policy}", rows)

    def _make_room(self, n: int) -> None:
        """Moves what is alive to the front of arrays that are large enough."""
        alive = self._tail - self._head
        size = max(len(self._records), 2 * (alive + n))
        for name in ("_records", "_ends", "_ring", "_actor", "_sampled", "_ordinal"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[:alive] = old[self._head : self._tail]
            setattr(self, name, new)
        self._gone += self._head
        self._head, self._tail = 0, alive

    def _actor_number(self, actor: tuple[str, int]) -> int:
        if actor not in self._actors:
            self._actors.append(actor)
        return self._actors.index(actor)

    def _ring_number(self, ring: Ring, owned: bool, common: Common | None) -> int:
        for number, known in enumerate(self._rings):
            if known is ring and self._commons[number] is common:
                return number
        for number in range(len(self._rings)):  # a number that no record uses any more
            if not (self._ring[self._head : self._tail] == number).any():
                self._rings[number], self._owned[number], self._commons[number] = ring, owned, common
                self._admitted[number], self._newest[number] = 0, -1
                return number
        self._rings.append(ring)
        self._commons.append(common)
        self._owned.append(owned)
        self._admitted.append(0)
        self._newest.append(-1)
        return len(self._rings) - 1

    def _evict(self) -> None:
        """Forgets the oldest records: those beyond the capacity, and those that their actor has overwritten."""
        while self._head < self._tail:
            span = slice(self._head, min(self._tail, self._head + _CHUNK))
            surplus, index = self.rows - self._capacity, np.arange(span.start, span.stop)
            many = index < self._tail - self._capacity // self._layout.length
            gone = (self._ends[span] - self._forgotten <= surplus) | many | ~self._usable(index)
            count = len(gone) if gone.all() else int(np.argmin(gone))
            if count == 0:
                return
            leaving = slice(self._head, self._head + count)
            owned = np.array([self._owned[i] for i in self._ring[leaving]])
            if owned.any():
                self._source.give_back(self._policy, self._records["slot"][leaving][owned])
            self._forgotten = int(self._ends[leaving.stop - 1])
            self._head = leaving.stop

    def _places(self, size: int, progress: float) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Records and rows [b] of a batch; None if too few are usable."""
        if self._priorities is None:
            return self._choose(size)
        self._drawn = self._draw(self._priorities, size, progress)
        return None if self._drawn is None else (self._drawn.record - self._gone, self._drawn.row)

    def _draw(self, priorities: Priorities, size: int, progress: float) -> Drawn | None:
        """`size` usable rows by priority, in the order in which `_copy` gives them."""
        valid = self._records["valid"][self._head : self._tail]
        priorities.follow(self._gone + self._head, self._gone + self._tail, valid)
        start = self._config.priority_beta
        beta = start + (1 - start) * progress
        drawn = priorities.draw(size, beta, self._rng)
        if drawn is not None and not self._usable(drawn.record - self._gone).all():
            every = np.arange(self._head, self._tail)  # a faster actor's older ones lie in the middle
            priorities.forget(self._gone + every[~self._usable(every)])
            drawn = priorities.draw(size, beta, self._rng)
        if drawn is None or priorities.rows < size:
            return None
        return drawn.take(np.argsort(self._ring[drawn.record - self._gone], kind="stable"))

    def _choose(self, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """`size` different rows as (record [b], row in its segment [b]); None if fewer are usable."""
        chosen = self._distinct(size, self.rows) + self._forgotten
        index = self._head + np.searchsorted(self._ends[self._head : self._tail], chosen, side="right")
        if self._usable(index).all():
            return index, chosen - (self._ends[index] - self._records["valid"][index])
        every = np.arange(self._head, self._tail)  # a faster actor's older ones lie in the middle: count without them
        valid = np.where(self._usable(every), self._records["valid"][every], 0).astype(np.int64)
        ends = np.cumsum(valid)
        if int(ends[-1]) < size:
            return None
        chosen = self._distinct(size, int(ends[-1]))
        found = np.searchsorted(ends, chosen, side="right")
        return self._head + found, chosen - (ends[found] - valid[found])

    def _copy(self, index: NDArray[np.int64], row: NDArray[np.int64], now: Version) -> Transitions | None:
        """The transitions at these places; None if one was overwritten meanwhile."""
        parts, lags = [], []
        torn = 0
        for number in np.unique(self._ring[index]):
            mine = self._ring[index] == number
            ring, records = self._rings[number], self._records[index[mine]]
            with ring.reading():
                common = self._commons[number]
                part, there = gather(ring, self._interface, self._layout, records, row[mine], self._config, common)
                parts.append(part)
                versions = ring.columns["version"][records["slot"], self._layout.before + row[mine]]
                intact = ring.intact(records) & there
            lags.append(lag(now, versions))
            torn += len(intact) - int(intact.sum())
            self._records["sequence"][index[mine][~intact]] = _NEVER
        if torn:
            self._counters.add(f"torn.{self._policy}", torn)
            return None
        self._last = index, row
        fresh = np.unique(index[~self._sampled[index]])
        self._sampled[fresh] = True
        self._counters.add(f"trained.{self._policy}", len(fresh))
        self._counters.add(f"held.{self._policy}", -len(fresh))
        self._count_lag(np.concatenate(lags))
        joined = parts[0] if len(parts) == 1 else {n: np.concatenate([part[n] for part in parts]) for n in parts[0]}
        if self._drawn is not None:
            joined["weight"] = self._drawn.weight
        return Transitions(**{name: torch.from_numpy(array).to(self._device) for name, array in joined.items()})

    def _usable(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether these records' slots were not begun again and will not be written next: a pool's never are."""
        first = [0 if o else n - self._ring_blocks for o, n in zip(self._owned, self._admitted, strict=True)]
        return self._current(index) & (self._ordinal[index] >= np.array(first)[self._ring[index]])

    def _current(self, index: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the slots of these records were not begun again since they were admitted."""
        if len(self._rings) == 1:
            return self._rings[0].current(self._records[index])
        whole = np.empty(len(index), np.bool_)
        for number in np.unique(self._ring[index]):
            mine = self._ring[index] == number
            whole[mine] = self._rings[number].current(self._records[index[mine]])
        return whole

    def _distinct(self, size: int, rows: int) -> NDArray[np.int64]:
        """`size` different row numbers of 0..rows-1."""
        if size * 4 > rows:
            return self._rng.permutation(rows)[:size]
        chosen = np.unique(self._rng.integers(rows, size=size))
        while len(chosen) < size:
            more = self._rng.integers(rows, size=size - len(chosen))
            chosen = np.unique(np.concatenate([chosen, more]))
        return chosen

    def _count_lag(self, lags: NDArray[np.int64]) -> None:
        self._counters.add(f"lag_rows.{self._policy}", lags.size)
        self._counters.add(f"lag_sum.{self._policy}", int(lags.sum()))
        self._counters.set(f"lag_max.{self._policy}", max(self._counters[f"lag_max.{self._policy}"], int(lags.max())))
