"""Rows for loops that add one at a time and train on samples: a view on a ring of one stream's segments.

In flow: rows (state, action, reward, done). Out flow: segments in a ring, whose rows this process sees at once, and one
that attached (protocol/memory/row_reader.py) as soon as their segment is finished: full, or older than `flush_after`.
Legend: `n` stacked frames, `m` rows at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import ArrayLike, NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.experience.ring_buffer import Ring
from protocol.memory.row_reader import EMPTY, Description, RowReader
from protocol.memory.row_window import RowSpec
from protocol.memory.shared_file import PREFIX, Counters, memory_dir

__all__ = ["RowBuffer", "RowReader", "RowSpec"]


class RowBuffer(RowReader):
    """The one who writes rows, and may sample them too. `name` None keeps them private to this process.

    A segment older than `flush_after` seconds is finished at the next row or `flush`; its unused rows stay so. With
    `backpressure`, no more than so many rows are taken that its reader has not sampled yet (give at least
    `batch_size + n + 1`). `extra_data` are named arrays that are saved and loaded with the rows.
    """

    def __init__(
        self,
        name: str | None,
        spec: RowSpec,
        flush_after: float | None = None,
        backpressure: int | None = None,
        checksums: bool | None = None,
        lock_timeout: float | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if backpressure is not None and not spec.frames + 2 <= backpressure <= spec.capacity:
            raise ConfigurationError(
                "rows_backpressure_never_batches",
                backpressure=backpressure,
                frames=spec.frames,
                capacity=spec.capacity,
                least=spec.frames + 2,
                most=spec.capacity,
            )
        path = None if name is None else memory_dir() / f"{PREFIX}{name}"  # so that a sweep finds it
        counters = Counters(None, self.COUNTERS, self.SECONDS)
        ring = Ring.create(path, spec.layout, spec.slots, checksums, lock_timeout, counters)
        self._flush_after, self._backpressure = flush_after, backpressure
        self._added = self._finished = self._rows = 0
        self._since = 0.0
        self.extra_data: dict[str, Any] = {}
        super().__init__(ring, spec, counters, seed, clock, lambda: (self._slot, self._rows))

    @property
    def description(self) -> Description:
        """For who is to attach; ConfigurationError for private rows."""
        path = self._ring.path
        if path is None:
            raise ConfigurationError("rows_are_private")
        return Description(path.name, self.spec.layout.hash)

    def add(self, state: ArrayLike, action: Any, reward: Any, done: Any) -> bool:
        """One row; False if backpressure refuses it. A state [1, *shape] is taken for [*shape]; any other mismatch of
        shape or kind raises EnvironmentFault."""
        seen = np.asarray(state)
        if seen.shape != (1, *self.spec.shape):
            seen = seen[None]
        return self.add_batch(seen, np.atleast_1d(action), np.atleast_1d(reward), np.atleast_1d(done)) == 1

    def add_batch(self, state: ArrayLike, action: ArrayLike, reward: ArrayLike, done: ArrayLike) -> int:
        """`m` rows in order, states [m, *shape] and the rest [m]; how many of them were taken. Errors as of `add`."""
        m = len(np.atleast_1d(action))
        columns = self._columns(m, {"state": state, "action": action, "reward": reward, "done": done})
        if EMPTY in columns["action"]:
            raise EnvironmentFault("row_action_reserved", value=EMPTY, field="action")
        taken = m
        if self._backpressure is not None:
            taken = max(0, min(m, self._backpressure - (self._added - self._window.settled())))
            self.counters.add("rows_refused", m - taken)
        self._put(columns, taken)
        return taken

    def add_empty(self) -> None:
        """n - 1 zero states, so that the stacks of a new episode begin with nothing; they are never sampled."""
        m = self.spec.frames - 1
        columns = {
            "state": np.zeros((m, *self.spec.shape), np.float32),
            "action": np.full(m, EMPTY),
            "reward": np.full(m, np.nan, np.float32),
            "done": np.zeros(m, np.float32),
        }
        self._put(columns, m)

    def flush(self) -> None:
        """Finishes the segment at hand if it is older than `flush_after`; for loops that pause."""
        if self._rows and self._flush_after is not None and self._clock() - self._since > self._flush_after:
            self._finish()

    def clear(self) -> None:
        """Forgets all rows."""
        self._window.refresh()
        self._ring.clear()
        self._rows = 0
        self._window.refresh()

    def save(self, path: Path) -> None:
        """All rows and `extra_data` to a .npz file without pickle, whole or not at all."""
        arrays = dict(zip(("state", "action", "reward", "done"), self[:], strict=True))
        arrays |= {f"extra.{name}": np.asarray(value) for name, value in self.extra_data.items()}
        if any(array.dtype.hasobject for array in arrays.values()):
            raise ConfigurationError("extra_data_not_plain")
        aside = path.with_name(f".{path.name}")
        with aside.open("wb") as file:
            np.savez(file, **arrays)
        aside.replace(path)

    def load(self, path: Path) -> None:
        """What `save` wrote takes the place of all rows: the newest `capacity` of them. ConfigurationError if it cannot
        be read or does not fit; the rows at hand stay then."""
        try:
            with np.load(path, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            m = len(arrays["action"])
            columns = self._columns(m, {name: arrays[name] for name in ("state", "action", "reward", "done")})
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, EnvironmentFault) as fault:
            raise ConfigurationError("rows_file_unreadable", file=path, expected=self.spec, reason=str(fault)) from None
        self.clear()
        self.extra_data = {n.removeprefix("extra."): a for n, a in arrays.items() if n.startswith("extra.")}
        self._put(columns, m)

    def _columns(self, m: int, given: dict[str, ArrayLike]) -> dict[str, NDArray]:
        """What is given as arrays, if they have the shapes and kinds of `m` rows: nothing is broadcast or cut."""
        columns = {name: np.asarray(value) for name, value in given.items()}
        for name, array in columns.items():
            target = self._ring.columns[name]
            shape = (m, *target.shape[2:])
            if array.shape != shape:
                raise EnvironmentFault("row_shape_wrong", field=name, value=list(array.shape), expected=list(shape))
            if not _fits(array.dtype, target.dtype):
                raise EnvironmentFault("row_type_wrong", field=name, value=array.dtype, expected=target.dtype)
        return columns

    def _put(self, columns: dict[str, NDArray], m: int) -> None:
        at = 0
        while at < m:
            slot = self._slot
            if self._rows == 0:
                self._ring.begin(slice(slot, slot + 1))
                self._ring.columns["first"][slot] = self._added
                self._since = self._clock()
            count = min(m - at, self.spec.segment_length - self._rows)
            for name, column in columns.items():
                self._ring.columns[name][slot, self._rows : self._rows + count] = column[at : at + count]
            self._rows += count  # only now is there anything to be seen
            self._added += count
            at += count
            if self._rows == self.spec.segment_length:
                self._finish()
        self.counters.set("rows_added", self._added)
        self.flush()

    @property
    def _slot(self) -> int:
        return self._finished % self._ring.slots

    def _finish(self) -> None:
        slots = slice(self._slot, self._slot + 1)
        self._ring.finish(slots, self._finished + 1, self._rows, 0)
        self._finished += 1
        self._rows = 0


@cache
def _fits(given: np.dtype[Any], target: np.dtype[Any]) -> bool:
    return given.kind in "biuf" and np.can_cast(given, target, "same_kind")
