"""The replay mode: transitions sampled in place from the rings, checked for having been whole while copied.

Entries are segments in order of admission; the newest `capacity` rows are sampled over (segment, row), uniformly or by
priority.
Legend: `b` transitions of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config.run import Sampled
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import RECORD, Records, Ring, place_of
from protocol.experience.shared_obs import SharedObs
from protocol.weights.manifest import Version, lag
from workers.algorithms.common.batches import SequenceBatch, TransitionBatch
from workers.learning.buffers.device_transfer import DeviceTransfer
from workers.learning.buffers.nstep_gather import gather, gather_all
from workers.learning.buffers.prioritized import PrioritizedSample, PrioritizedSampler
from workers.learning.buffers.replay_checkpoint import (
    counts_in,
    greatest_in,
    kept_arrays,
    priorities_in,
    random_state,
    restored,
    set_random_state,
)
from workers.learning.buffers.ring_table import RingTable
from workers.learning.buffers.segment_check import BufferContext, Fault, SegmentCheck
from workers.learning.buffers.segment_index import SegmentIndex
from workers.learning.diagnostics.refused_batches import Origin
from workers.planning.rate_limiter import RateLimiter
from workers.policies.interface import Interface
from workers.runtime.state_capture import State

_ATTEMPTS = 10
_CHUNK = 256
_AT_ONCE = 1 << 16
"""Segments that are admitted at once where nothing paces."""
_NEVER = np.uint64(2**64 - 1)
"""A sequence word that no slot has: its record is never drawn again."""


Drawn = TypeVar("Drawn", TransitionBatch, SequenceBatch)
_Whence = tuple[list[tuple[str, int]], Records, NDArray[np.int64], list[int]]
"""Actors, records, rows and ends before them [b] of a batch."""


class _Batch(NamedTuple):
    """What was drawn."""

    sent: dict[str, torch.Tensor]
    """Its columns, on their way to the device."""
    fresh: int
    """How many of its segments had never been drawn before."""
    versions: NDArray[np.uint64]
    """[b]: of the weights that acted"""


class _Prefetched(NamedTuple):
    """The next batch, with where it came from, and what a checkpoint says as long as nobody has it: the random state
    and the rows that the rate limiter knew of, both from before."""

    batch: _Batch
    origins: _Whence
    random: NDArray[np.uint64]
    sampled: int


class ReplayRoom(NamedTuple):
    """How much may be replayed: about `capacity` rows in no more segments than full ones would be (memory is planned
    for these, however short the segments are), and of each actor's ring the newest `ring_blocks` blocks of `block`
    slots, which it keeps (however few of these slots are segments): nothing is overwritten while it is copied."""

    capacity: int
    ring_blocks: int
    block: int = 1


class ReplayBuffer(Generic[Drawn]):
    """All rows of one policy that may be replayed: records in order of admission. Without a `rate_limiter` nothing
    paces it: all rows there will ever be are there at first, and their versions are those of another run.
    """

    _kind: Any = TransitionBatch

    def __init__(
        self,
        context: BufferContext,
        interface: Interface,
        config: Sampled,
        room: ReplayRoom,
        rate_limiter: RateLimiter | None,
        seed: int,
    ) -> None:
        layout, capacity = context.layout, room.capacity
        self._check = SegmentCheck(context)
        judged = ("version", "truncated", "terminated", "final_row")
        self._judged = [form.name for form in layout.forms if form.real or form.name in judged]
        """Columns that are looked at before a segment is admitted."""
        self._policy, self._interface, self._layout, self._config = context.policy, interface, layout, config
        self._capacity = capacity
        self._source, self._counters, self._carrier = context.source, context.counters, DeviceTransfer(context.device)
        self._rate_limiter = rate_limiter
        self._at_once = max(1, rate_limiter.insertion // layout.length) if rate_limiter is not None else _AT_ONCE
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._room = room
        self._all = SegmentIndex(RingTable(room.block, room.ring_blocks))
        segments = max(1, capacity // layout.length)
        alpha = config.priority_alpha
        self._priorities = PrioritizedSampler(segments, layout.length, alpha) if alpha > 0 else None
        self._drawn: PrioritizedSample | None = None
        """The rows of the last batch, where priorities chose them."""
        self._last: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        """Records and rows [b] of the batch that was drawn last."""
        self._ahead: _Prefetched | None = None
        self._origins: _Whence | None = None
        """Of the last batch, where it was drawn ahead or another one has been since."""
        self._too_few = False
        """Whether the last batch that might have been drawn was not, as there are too few rows."""
        self._most = 0
        """Rows that there ever were at once."""

    @property
    def rows(self) -> int:
        """Rows that may be sampled."""
        return self._all.rows

    def fill(self, now: Version | None = None, everything: bool = False) -> None:
        """Takes in what has arrived as far as the rate limiter lets it, or (at the end) all of it, except what nothing
        can be learned from; `now` is the policy's newest version, if versions are its own. Where what is here
        makes no batch, more comes in all the same: segments may be so short, and both sides would wait for each other.
        So it does where most was written over while this learner was away: else a few rows would be replayed over and
        over.
        """
        arrivals = self._source.arrivals(self._policy)
        while arrivals:
            arrival = arrivals[0]
            records, ring = arrival.records[: self._at_once], arrival.ring
            rate_limiter = None if everything or self._too_few or self._emptied else self._rate_limiter
            may_insert = rate_limiter is None or rate_limiter.may_insert(int(records["valid"].sum()))
            if not may_insert:
                break
            self._too_few = False
            arrival.records = arrival.records[len(records) :]
            if len(arrival.records) == 0:
                arrivals.popleft()
            with ring.reading():
                faults = self._faults(ring, records, now)
                intact = ring.intact(records)
            if not intact.all():
                torn = len(intact) - int(intact.sum())
                self._counters.add(f"torn.{self._policy}", torn)
                self._counters.add(f"dropped.recycled.{self._policy}", torn)
            fit = records[intact]
            if faults:
                faults = [(fault, wrong & intact) for fault, wrong in faults]  # who is overwritten did nothing wrong
                fit = records[intact & ~self._refuse(faults, arrival, records)]
            self._count(len(fit), self._all.append(fit, arrival))
            self._source.acknowledge(self._policy, arrival, int(records["number"][-1]), len(records))
        self._source.flush_acks()
        self._counters.set(f"rate_limited.{self._policy}", sum(len(arrival.records) for arrival in arrivals))
        self._evict()
        self._most = max(self._most, self.rows)

    def next_batch(self, now: Version, progress: float = 0.0) -> Drawn | None:
        """A batch, or None: not ready. `progress` in [0, 1] is how much of the run is over: weights of prioritised rows
        make up for all of it at the end."""
        if self._ahead is not None:
            batch, self._origins, self._ahead = self._ahead.batch, self._ahead.origins, None
        else:
            found, self._origins = self._sample(progress), None
            if found is None:
                return None
            batch = found
        self._counters.add(f"trained.{self._policy}", batch.fresh)
        self._counters.add(f"held.{self._policy}", -batch.fresh)
        if self._rate_limiter is not None:
            self._count_lag(lag(now, batch.versions))
        self._carrier.synchronize(batch.sent)
        drawn: Drawn = self._kind(**batch.sent)
        return drawn

    def prepare(self, now: Version) -> None:
        """While the last batch is trained on beside the host: the next one, on its way to the device. Nothing where the
        errors of the last one have a say in it."""
        if not self._carrier.overlaps or self._ahead is not None or self._priorities is not None:
            return
        self._origins = self._origins or self._places_of_last()
        before = random_state(self._rng), self._rate_limiter.sampled if self._rate_limiter is not None else 0
        batch = self._sample(0.0)
        if batch is not None:
            self._ahead = _Prefetched(batch, self._places_of_last(), *before)

    def _sample(self, progress: float) -> _Batch | None:
        self._evict()
        size = self._config.batch_size
        if self._rate_limiter is not None and not self._rate_limiter.may_sample:
            return None
        for _ in range(_ATTEMPTS):
            places = self._places(size, progress) if self.rows >= size else None
            self._too_few = places is None
            if places is None:
                return None
            batch = self._copy(*places)
            if batch is not None:
                if self._rate_limiter is not None:
                    self._rate_limiter.sampled += self._rows_at(places[0])
                return batch
            self._evict()
        return None  # the actor is overwriting faster than can be copied; `torn` says so

    def learned(self, errors: torch.Tensor) -> None:
        """The rows of the last batch had these errors [b]."""
        if self._priorities is not None and self._drawn is not None:
            self._priorities.learn(self._drawn, errors.cpu().numpy())

    def provenance(self) -> list[Origin]:
        """Where each transition of the last batch came from; to be asked before anything more is admitted."""
        actors, records, row, ends = self._origins or self._places_of_last()
        return [Origin.of(*one) for one in zip(actors, records, row.tolist(), ends, strict=True)]

    def _places_of_last(self) -> _Whence:
        """What is known now of the places of the batch that was drawn last."""
        if self._last is None:
            return [], np.zeros(0, RECORD), np.zeros(0, np.int64), []
        index, row = self._last
        actors = [self._all.actors[number] for number in self._all.actor[index]]
        ends = self._all.ends_before(index, row, self._layout.before).tolist()
        return actors, self._all.records[index], row, ends

    def state(self, rows: int) -> dict[str, NDArray]:
        """For a checkpoint, in plain arrays: random state, counts, and segments of the newest `rows` rows at most. What
        is all there at first will be there again: of that priorities alone."""
        ahead = self._ahead  # which will be drawn again
        state: dict[str, NDArray] = {"random": ahead.random if ahead is not None else random_state(self._rng)}
        if self._priorities is not None:
            state["greatest"] = np.array([self._priorities.greatest])
        if self._rate_limiter is None:
            every = self._all.evicted_offset + self._all.every
            return state if self._priorities is None else {**state, "priority": self._follow().weights(every)}
        sampled = ahead.sampled if ahead is not None else self._rate_limiter.sampled
        state["governor"] = np.array([self._rate_limiter.inserted, sampled], np.int64)
        index = self._all.newest(rows)
        if len(index):
            weights = self._follow().weights(self._all.evicted_offset + index) if self._priorities is not None else None
            state |= kept_arrays(self._all.kept(index, weights), self._all.rings)
        return state

    def load_state(self, state: Mapping[str, NDArray]) -> None:
        """Goes on from what `state` gave, before anything is admitted. Without rows in it the buffer has to fill up as
        at the start; ConfigurationError for what does not fit."""
        set_random_state(self._rng, state.get("random", np.zeros(0)))
        greatest = greatest_in(state)
        if self._priorities is not None and greatest is not None:
            self._priorities.greatest = greatest
        if self._rate_limiter is None:
            self.fill()
            if self._priorities is not None and "priority" in state:
                weights = priorities_in(state, self._all.tail - self._all.head, self._layout.length)
                self._follow().restore(self._all.evicted_offset + self._all.head, weights)
            return
        inserted, sampled = counts_in(state)
        if "records" not in state:
            return
        kept, ring = restored(state, self._layout, self._interface.place)
        self._rate_limiter.inserted, self._rate_limiter.sampled = inserted, sampled
        self._all.restore(kept, ring)
        self._evict()
        if self._priorities is not None and kept.priority is not None:
            self._follow().restore(self._all.evicted_offset + self._all.head, kept.priority[self._all.head :])

    def get_state(self) -> State:
        """For a cut of lock-step: `state` with all rows, and what is known of the last attempt to draw a batch."""
        return {**self.state(self.rows), "too_few": np.array([self._too_few])}

    def set_state(self, state: State) -> None:
        """The inverse, as `load_state`."""
        self.load_state(state)
        self._too_few = bool(state["too_few"][0])

    def move_out(self) -> None:
        """Keeps what it has in memory of its own: rings may be written over from now on, by what it never sees."""
        if not self.rows:
            return
        state, drawn = self.get_state(), self._all.sampled[self._all.newest(self.rows)]
        slots = self._all.evict(self._all.tail - self._all.head)
        if len(slots):
            self._source.release(self._policy, slots)
        self._all = SegmentIndex(RingTable(self._room.block, self._room.ring_blocks))
        self.set_state(state)
        self._all.sampled[: len(drawn)] = drawn

    @property
    def _emptied(self) -> bool:
        """Whether less is left than it takes to start with, and less than half of what there was."""
        return self._rate_limiter is not None and self.rows < min(
            self._rate_limiter.min_size_to_sample, self._most // 2
        )

    def uses(self, ring: Ring) -> bool:
        """Whether anything of `ring` may still be sampled."""
        return self._all.uses(ring)

    def _faults(self, ring: Ring, records: Records, now: Version | None) -> list[Fault]:
        """What is wrong with segments [n] of `ring`."""
        place = place_of(records["slot"])
        columns = {name: ring.columns[name][place] for name in self._judged}
        faults = self._check.numbers(columns, records)
        if now is not None and self._rate_limiter is not None:
            rows = slice(self._layout.before, self._layout.before + self._layout.length)
            faults += self._check.versions(records, now)
            faults += self._check.row_versions(columns["version"][:, rows], records, now)
        return faults

    def _refuse(self, faults: Sequence[Fault], arrival: Arrival, records: Records) -> NDArray[np.bool_]:
        """[n]: which segments of `arrival` are not admitted."""
        unfit = self._check.refuse(faults, records, [(arrival.actor, arrival.incarnation)] * len(records))
        self._counters.add(f"received.{self._policy}", int(unfit.sum()))
        if arrival.owned:
            self._source.release(self._policy, records["slot"][unfit])
        return unfit

    def _count(self, segments: int, rows: int) -> None:
        if self._rate_limiter is not None:
            self._rate_limiter.inserted += rows
        self._counters.add(f"received.{self._policy}", segments)
        self._counters.add(f"held.{self._policy}", segments)
        self._counters.add(f"rows_received.{self._policy}", rows)

    def _evict(self) -> None:
        """Forgets the oldest records: those beyond the capacity, and those that their actor has overwritten."""
        while self._all.head < self._all.tail:
            span = slice(self._all.head, min(self._all.tail, self._all.head + _CHUNK))
            surplus, index = self.rows - self._capacity, np.arange(span.start, span.stop)
            many = index < self._all.tail - self._capacity // self._layout.length
            gone = (self._all.ends[span] - self._all.forgotten <= surplus) | many | ~self._all.usable(index)
            count = len(gone) if gone.all() else int(np.argmin(gone))
            if count == 0:
                return
            slots = self._all.evict(count)
            if len(slots):
                self._source.release(self._policy, slots)

    def _places(self, size: int, progress: float) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """Records and rows [b] of a batch; None if too few are usable."""
        if self._priorities is None:
            return self._choose(size)
        self._drawn = self._draw(self._priorities, size, progress)
        return None if self._drawn is None else (self._drawn.record - self._all.evicted_offset, self._drawn.row)

    def _rows_at(self, index: NDArray[np.int64]) -> int:
        """Rows of a batch of the records `index` [b]."""
        return len(index)

    def _follow(self) -> PrioritizedSampler:
        """The priorities, of the records that there are now."""
        assert self._priorities is not None
        valid = self._all.records["valid"][self._all.alive]
        self._priorities.sync(
            self._all.evicted_offset + self._all.head, self._all.evicted_offset + self._all.tail, valid
        )
        return self._priorities

    def _draw(self, priorities: PrioritizedSampler, size: int, progress: float) -> PrioritizedSample | None:
        """`size` usable rows by priority."""
        self._follow()
        start = self._config.priority_beta
        beta = start + (1 - start) * progress
        drawn = priorities.draw(size, beta, self._rng)
        if drawn is not None and not self._all.usable(drawn.record - self._all.evicted_offset).all():
            every = self._all.every  # a faster actor's older ones lie in the middle
            priorities.forget(self._all.evicted_offset + every[~self._all.usable(every)])
            drawn = priorities.draw(size, beta, self._rng)
        if drawn is None or priorities.rows < size:
            return None
        return drawn

    def _choose(self, size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
        """`size` different rows as (record [b], row in its segment [b]); None if fewer are usable."""
        chosen = self._distinct(size, self.rows) + self._all.forgotten
        index = self._all.head + np.searchsorted(self._all.ends[self._all.alive], chosen, side="right")
        if self._all.usable(index).all():
            return index, chosen - (self._all.ends[index] - self._all.records["valid"][index])
        every = self._all.every  # a faster actor's older ones lie in the middle: count without them
        valid = np.where(self._all.usable(every), self._all.records["valid"][every], 0).astype(np.int64)
        ends = np.cumsum(valid)
        if int(ends[-1]) < size:
            return None
        chosen = self._distinct(size, int(ends[-1]))
        found = np.searchsorted(ends, chosen, side="right")
        return self._all.head + found, chosen - (ends[found] - valid[found])

    def _copy(self, index: NDArray[np.int64], row: NDArray[np.int64]) -> _Batch | None:
        """The transitions at these places, in their order; None if one was overwritten meanwhile."""
        found = gather_all(self._all, index, row, self._gather)
        torn = len(index) - int(found.intact.sum())
        if torn:
            self._all.records["sequence"][index[~found.intact]] = _NEVER
            self._counters.add(f"torn.{self._policy}", torn)
            return None
        self._last = index, row
        fresh = np.unique(index[~self._all.sampled[index]])
        self._all.sampled[fresh] = True
        if self._drawn is not None:
            found.columns["weight"] = self._drawn.weight
        columns = {name: torch.from_numpy(array) for name, array in found.columns.items()}
        return _Batch(self._carrier.send_copies(columns), len(fresh), found.versions)

    def _gather(
        self, ring: Ring, records: Records, row: NDArray[np.int64], common: SharedObs | None
    ) -> tuple[dict[str, NDArray], NDArray[np.bool_]]:
        """The columns of a batch that begin at `row` [b] of the segments in `records` [b] of `ring`, and whether all
        that was asked for was there [b]."""
        return gather(ring, self._interface, self._layout, records, row, self._config, common)

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
