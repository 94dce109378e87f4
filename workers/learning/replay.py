"""The replay discipline: transitions sampled in place from the rings, checked for having been whole while copied.

Entries are segments in order of admission; the newest `capacity` rows are sampled uniformly over (segment, row).
Legend: `b` transitions of a batch, `F` frames, `R` rows of a slot, `n` steps of a return.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.config import IQN
from protocol.counters import Counters
from protocol.errors import TrainingFault
from protocol.experience import Arrival
from protocol.layout import Layout
from protocol.ring import Ring
from protocol.version import Version, lag
from workers.learning.batches import Transitions
from workers.learning.governor import Governor
from workers.learning.source import Source

__all__ = ["Replay", "gather"]

_ATTEMPTS = 100


class _Entry:
    """A chunk of segments admitted together."""

    __slots__ = ("arrival", "records", "rows", "sampled")

    def __init__(self, arrival: Arrival) -> None:
        self.arrival = arrival
        self.records = arrival.records
        self.rows = int(arrival.records["valid"].sum())
        self.sampled = np.zeros(len(arrival.records), np.bool_)


class Replay:
    """All rows of one policy that may be replayed."""

    def __init__(
        self,
        policy: str,
        layout: Layout,
        config: IQN,
        source: Source,
        counters: Counters,
        governor: Governor,
        seed: int,
    ) -> None:
        self._policy, self._layout, self._config = policy, layout, config
        self._source, self._counters = source, counters
        self._governor = governor
        self._rng = np.random.Generator(np.random.Philox(seed))
        self._entries: deque[_Entry] = deque()
        self.rows = 0

    def admit(self, everything: bool = False) -> None:
        """Takes in what has arrived as far as the governor lets it, or (at the end) all of it."""
        arrivals = self._source.arrivals(self._policy)
        while arrivals and (everything or self._governor.may_insert):
            arrival = arrivals.popleft()
            intact = arrival.ring.intact(arrival.records)
            last, count = int(arrival.records["number"][-1]), len(intact)
            if not intact.all():
                torn = len(intact) - int(intact.sum())
                self._counters.add(f"torn.{self._policy}", torn)
                self._counters.add(f"dropped.recycled.{self._policy}", torn)
                arrival.records = arrival.records[intact]
            self._source.settle(self._policy, arrival, last, count)
            if len(arrival.records) == 0:
                continue
            entry = _Entry(arrival)
            self._entries.append(entry)
            self.rows += entry.rows
            self._governor.inserted += entry.rows
            self._counters.add(f"received.{self._policy}", len(entry.records))
            self._counters.add(f"held.{self._policy}", len(entry.records))
            self._counters.add(f"rows_received.{self._policy}", entry.rows)
        self._evict()

    def sample(self, now: Version) -> Transitions | None:
        """A batch, or None: not ready."""
        self._evict()
        size = self._config.batch_size
        if not self._governor.may_sample or self.rows < size:
            return None
        for _ in range(_ATTEMPTS):
            batch = self._draw(size, now)
            if batch is not None:
                self._governor.sampled += size
                return batch
            self._evict()
        raise TrainingFault(
            f"policy {self._policy!r}: {_ATTEMPTS} batches in a row were overwritten while they were copied; "
            "raise buffer_capacity"
        )

    def _evict(self) -> None:
        """Forgets what is beyond the capacity or was overwritten by its actor."""
        while self._entries:
            oldest = self._entries[0]
            over = self.rows - oldest.rows >= self._config.buffer_capacity
            gone = not oldest.arrival.owned and not bool(oldest.arrival.ring.intact(oldest.records).all())
            if not (over or gone):
                return
            self._entries.popleft()
            self.rows -= oldest.rows
            if oldest.arrival.owned:
                self._source.give_back(self._policy, oldest.records["slot"])

    def uses(self, ring: Ring) -> bool:
        """Whether anything of `ring` may still be sampled."""
        return any(entry.arrival.ring is ring for entry in self._entries)

    def _draw(self, size: int, now: Version) -> Transitions | None:
        chosen = self._distinct(size)
        bounds = np.cumsum([entry.rows for entry in self._entries])
        which = np.searchsorted(bounds, chosen, side="right")
        length = self._layout.length
        parts: list[dict[str, NDArray]] = []
        lags = []
        for index in np.unique(which):
            entry = self._entries[index]
            local = chosen[which == index] - (bounds[index] - entry.rows)
            valid = entry.records["valid"]
            if entry.rows == len(valid) * length:
                segment, row = np.divmod(local, length)
            else:
                ends = np.cumsum(valid, dtype=np.int64)
                segment = np.searchsorted(ends, local, side="right")
                row = local - (ends[segment] - valid[segment])
            records = entry.records[segment]
            part = gather(entry.arrival.ring, self._layout, records, row, self._config)
            versions = entry.arrival.ring.columns["version"][records["slot"], self._layout.before + row]
            if not entry.arrival.ring.intact(records).all():
                self._counters.add(f"torn.{self._policy}", 1)
                return None
            fresh = np.unique(segment[~entry.sampled[segment]])
            entry.sampled[fresh] = True
            self._counters.add(f"trained.{self._policy}", len(fresh))
            self._counters.add(f"held.{self._policy}", -len(fresh))
            parts.append(part)
            lags.append(lag(now, versions))
        self._count_lag(np.concatenate(lags))
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        return Transitions(**{name: torch.from_numpy(array) for name, array in joined.items()})

    def _distinct(self, size: int) -> NDArray[np.int64]:
        """`size` different row numbers of 0..rows-1, sorted."""
        if size * 4 > self.rows:
            return np.sort(self._rng.permutation(self.rows)[:size])
        chosen = np.unique(self._rng.integers(self.rows, size=size))
        while len(chosen) < size:
            more = self._rng.integers(self.rows, size=size - len(chosen))
            chosen = np.unique(np.concatenate([chosen, more]))
        return chosen

    def _count_lag(self, lags: NDArray[np.int64]) -> None:
        self._counters.add(f"lag_rows.{self._policy}", lags.size)
        self._counters.add(f"lag_sum.{self._policy}", int(lags.sum()))
        self._counters.set(f"lag_max.{self._policy}", max(self._counters[f"lag_max.{self._policy}"], int(lags.max())))


def gather(
    ring: Ring, layout: Layout, records: NDArray[np.void], row: NDArray[np.int64], config: IQN
) -> dict[str, NDArray]:
    """n-step transitions that start at `row` [b] of the segments in `records` [b]; the fields of `Transitions`.

    A return ends early at the episode's end and at the segment's last valid row. No row beyond the bootstrap row is
    read.
    """
    rows = layout.rows
    columns = {
        name: ring.columns[name].reshape(ring.slots * rows) for name in ("action", "reward", "terminated", "truncated")
    }
    base = records["slot"].astype(np.int64) * rows + layout.before
    valid = records["valid"].astype(np.int64)
    total = np.zeros(len(row), np.float32)
    discount = np.ones(len(row), np.float32)
    alive = np.ones(len(row), np.bool_)
    last = row.copy()
    for step in range(config.n_step):
        at = row + step
        alive &= at < valid
        index = base + np.minimum(at, valid - 1)
        total += np.where(alive, discount * columns["reward"][index], np.float32(0))
        discount = np.where(alive, discount * np.float32(config.gamma), discount)
        last = np.where(alive, at, last)
        alive &= ~(columns["terminated"][index] | columns["truncated"][index])
    end = base + last
    terminated, truncated = columns["terminated"][end], columns["truncated"][end]
    observation = ring.columns["observation"].reshape(ring.slots * rows, *ring.columns["observation"].shape[2:])
    first = base - records["before"].astype(np.int64)
    stack = _stack_index(base + row, first, columns, config.frames)
    after = _stack_index(end + 1, first, columns, config.frames)
    following = observation[after]
    cut = np.flatnonzero(truncated & ~terminated)
    if len(cut):
        slots = records["slot"][cut]
        entry = np.argmax(ring.columns["final_row"][slots] == last[cut, None], axis=1)
        frames = _stack_index(end[cut], first[cut], columns, config.frames)[:, 1:]
        following[cut, :-1] = observation[frames]
        following[cut, -1] = ring.columns["final_observation"][slots, entry]
    return {
        "observation": observation[stack],
        "action": columns["action"][base + row],
        "reward": total,
        "discount": np.where(terminated, np.float32(0), discount),
        "next_observation": following,
    }


def _stack_index(
    newest: NDArray[np.int64],
    first: NDArray[np.int64],
    columns: dict[str, NDArray],
    frames: int,
) -> NDArray[np.int64]:
    """[b, F] row indices of the stack whose newest frame is `newest`: it reaches neither beyond an episode's first row
    nor beyond `first`, but repeats the first row it may use."""
    index = np.empty((len(newest), frames), np.int64)
    index[:, -1] = newest
    for frame in range(frames - 2, -1, -1):
        following = index[:, frame + 1]
        before = np.maximum(following - 1, first)
        ended = columns["terminated"][before] | columns["truncated"][before]
        index[:, frame] = np.where(ended & (before < following), following, before)
    return index
