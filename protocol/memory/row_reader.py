"""Batches of stacked rows, sampled from a ring that another process writes; or this one, see
protocol/memory/row_buffer.py.

In flow: a window on rows (state, action, reward, done). Out flow: copies of them.
Legend: `F` numbers of a state, `n` stacked frames, `B` rows of a batch, `m` rows at once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.experience.ring_buffer import Ring
from protocol.memory.file_lock import LOCK_COUNTERS, LOCK_SECONDS
from protocol.memory.row_window import RowSpec, RowWindow
from protocol.memory.shared_file import Counters, memory_dir

EMPTY = np.iinfo(np.int64).min
"""The action of a row that only fills stacks up, and is never sampled itself."""
_FIELDS = ("state", "action", "reward", "done")


class RowBatch(NamedTuple):
    """Copies, in memory that the next batch of this size uses again. Stacks have their newest frame last."""

    state: NDArray[np.float32]
    """[B, n * F]"""
    action: NDArray[np.int64]
    """[B, 1], like all that follow but `next_state`"""
    reward: NDArray[np.float32]
    next_state: NDArray[np.float32]
    """[B, n * F]: the stack of the row after; zeros where `done`"""
    done: NDArray[np.float32]
    valid: NDArray[np.float32]
    """0 where the stack reaches back over an end, else 1"""


class Description(NamedTuple):
    """What travels to a process that is to attach: a file's name in the memory folder, and its layout's hash."""

    name: str
    layout: str


class RowReader:
    """The newest `capacity` rows as they become visible: when their segment is finished.

    Counters: rows visible (`fill`), those overwritten or cleared before they were ever sampled, copies thrown away
    because they were overwritten meanwhile (`torn`), seconds between asking in vain and getting a batch (`starved`),
    and waits for the lock of a locked ring.
    """

    COUNTERS = ("rows_added", "rows_refused", "rows_overwritten_unsampled", "fill", "torn", *LOCK_COUNTERS)
    SECONDS = ("starved", *LOCK_SECONDS)

    def __init__(
        self,
        ring: Ring,
        spec: RowSpec,
        counters: Counters,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
        opened: Callable[[], tuple[int, int]] | None = None,
    ) -> None:
        self.spec, self.counters, self._ring, self._clock = spec, counters, ring, clock
        self._window = RowWindow(ring, spec, self.counters, opened)
        self._rng = np.random.default_rng(seed)
        self._batches: dict[int, RowBatch] = {}
        self._starved_since: float | None = None

    @classmethod
    def attach(
        cls,
        description: Description,
        spec: RowSpec,
        counters: Counters | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> RowReader:
        """The rows that another process made; nothing is created. SharedMemoryError where they are gone or others."""
        if description.layout != spec.layout.hash:
            raise SharedMemoryError(
                "rows_layout_differs", rows=description.name, value=description.layout, expected=spec.layout.hash
            )
        counters = counters or Counters(None, cls.COUNTERS, cls.SECONDS)
        ring = Ring.attach(memory_dir() / description.name, spec.layout, counters)
        if ring.slots != spec.slots:
            ring.close()
            raise SharedMemoryError(
                "rows_capacity_differs", rows=description.name, value=ring.slots, expected=spec.slots
            )
        return RowReader(ring, spec, counters, seed, clock)

    @property
    def nbytes(self) -> int:
        """Bytes of the ring: payload, records, the spare segment and the row behind each segment."""
        return self._ring.nbytes

    @property
    def total(self) -> int:
        """Rows ever added, as far as they are visible here: 64 bits."""
        self._window.refresh()
        return self._window.total

    def __len__(self) -> int:
        self._window.refresh()
        return len(self._window)

    def getidx(self) -> int:
        """Where the next row goes, as a row of `capacity`."""
        return self.total % self.spec.capacity

    def __getitem__(self, index: int | slice) -> tuple[Any, Any, Any, Any]:
        """Copies of (state, action, reward, done) of a row, or of a slice [m] of them; 0 is the oldest, -1 the newest.
        IndexError beyond them."""
        window = self._window

        def copy() -> tuple[NDArray[np.int64], tuple[Any, ...]]:
            numbers = np.arange(window.head, window.total)[index]
            place = window.places(numbers)
            return numbers, tuple(np.array(window.column(name)[place]) for name in _FIELDS)

        found = window.whole(copy)
        if found is None:
            raise SharedMemoryError("rows_overwritten_too_fast", field="capacity")
        state, action, reward, done = found[1]
        return state, action, reward, done

    def current_state(self) -> NDArray[np.float32]:
        """[n - 1, *shape]: the newest states, to be stacked with the one that is observed next; zeros for none."""
        wanted = self.spec.frames - 1
        state = np.zeros((wanted, *self.spec.shape), np.float32)
        if wanted:
            newest = self[-wanted:][0]
            state[wanted - len(newest) :] = newest
        return state

    def sample(self, batch_size: int) -> RowBatch | None:
        """`batch_size` different rows with their stacks and successors, none of them across the write head; None as
        long as there are fewer than `batch_size + n + 1` rows."""
        found = self._window.whole(lambda: self._sample(batch_size))
        now = self._clock()
        if self._starved_since is not None:
            self.counters.add("starved", now - self._starved_since)
        self._starved_since = now if found is None else None
        if found is None:
            return None
        numbers, batch = found
        self._window.mark(numbers)
        return batch

    def close(self) -> None:
        """Lets go of the memory; the last one to do so removes it."""
        self._ring.remove()

    def _sample(self, batch_size: int) -> tuple[NDArray[np.int64], RowBatch] | None:
        frames = self.spec.frames
        oldest, ready = self._window.head + frames - 1, len(self._window) - frames - 1
        if batch_size < 1 or ready < batch_size:
            return None
        numbers = oldest + self._rng.choice(ready, batch_size, replace=False)
        if not self._is_transition(numbers).all():
            usable = np.flatnonzero(self._is_transition(np.arange(oldest, oldest + ready)))
            if len(usable) < batch_size:
                return None
            numbers = oldest + usable[self._rng.choice(len(usable), batch_size, replace=False)]
        return numbers, self._copy(numbers)

    def _is_transition(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """[m]: whether rows were really made, and their successors too or not needed."""
        window = self._window
        action, place = window.column("action"), window.places(numbers)
        followed = (action[window.places(numbers + 1)] != EMPTY) | (window.column("done")[place] != 0)
        return np.asarray((action[place] != EMPTY) & followed)

    def _copy(self, numbers: NDArray[np.int64]) -> RowBatch:
        window, batch = self._window, self._batch(len(numbers))
        places = window.places(numbers[:, None] + np.arange(1 - self.spec.frames, 2))
        place, after = places[:, :-1], places[:, 1:]
        shape = (*place.shape, *self.spec.shape)
        state = window.column("state")
        np.take(state, place, axis=0, out=batch.state.reshape(shape), mode="clip")
        np.take(state, after, axis=0, out=batch.next_state.reshape(shape), mode="clip")
        batch.action[:, 0] = window.column("action")[place[:, -1]]
        batch.reward[:, 0] = window.column("reward")[place[:, -1]]
        done = window.column("done")[place]
        batch.done[:, 0] = done[:, -1]
        batch.valid[:, 0] = ~done[:, :-1].any(axis=1)
        batch.next_state[done[:, -1] != 0] = 0
        return batch

    def _batch(self, size: int) -> RowBatch:
        if size not in self._batches:
            wide = (size, self.spec.frames * math.prod(self.spec.shape))
            numbers = [np.empty((size, 1), np.float32) for _ in range(3)]
            self._batches[size] = RowBatch(
                np.empty(wide, np.float32),
                np.empty((size, 1), np.int64),
                numbers[0],
                np.empty(wide, np.float32),
                numbers[1],
                numbers[2],
            )
        return self._batches[size]
