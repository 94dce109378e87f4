"""Counters in a file of their own: named 64-bit numbers that survive the death of their worker.

The file begins with a line of JSON (names, padded to a page), then one float64 or int64 a name.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError
from protocol.memory.shared_file import reserve

_PAGE = 4096
_LARGEST = 2**24


class Counters:
    """`add` and `set` by name; whole numbers stay exact up to 2**63. `path` None keeps them in memory only; a file's
    room is reserved at once: SharedMemoryError where there is none."""

    def __init__(self, path: Path | None, names: Sequence[str], seconds: Sequence[str] = ()) -> None:
        self._path, self._index, self._whole = path, dict[str, int](), len(names)
        self._int = np.empty(0, np.int64)
        self._take(names, seconds)

    def extend(self, names: Sequence[str]) -> None:
        """More of those that are no whole numbers, from 0, in a page that takes the old one's place when it has all
        that is in that; for the thread that counts, as what another one adds at that moment may be lost. As at first,
        SharedMemoryError where there is no room."""
        every = [*self._index]
        if names:
            self._take(every[: self._whole], [*every[self._whole :], *names])

    def _take(self, names: Sequence[str], seconds: Sequence[str]) -> None:
        path, index = self._path, {name: i for i, name in enumerate((*names, *seconds))}
        head = json.dumps({"counters": list(names), "seconds": list(seconds)}).encode() + b"\n"
        offset = -(-len(head) // _PAGE) * _PAGE
        size = offset + 8 * len(index)
        if path is None:
            taken = mmap.mmap(-1, size)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_name(f".{path.name}")
            descriptor = os.open(aside, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                reserve(descriptor, aside, size, "free some or give another --run-dir")
                taken = mmap.mmap(descriptor, size)
            except BaseException:
                aside.unlink()
                raise
            finally:
                os.close(descriptor)
        taken[: len(head)] = head
        numbers: NDArray[np.int64] = np.ndarray((len(index),), np.int64, buffer=taken, offset=offset)
        numbers[: len(self._int)] = self._int
        if path is not None:
            aside.rename(path)  # whoever finds the page finds a whole one
        self._int, self._float = numbers, numbers.view(np.float64)
        self._index = index  # last: who tells of them meanwhile finds every number where it was

    def add(self, name: str, value: float = 1) -> None:
        """Adds to a counter."""
        index = self._index[name]
        if index < self._whole:
            self._int[index] += int(value)
        else:
            self._float[index] += value

    def set(self, name: str, value: float) -> None:
        """Sets a counter that is a level."""
        index = self._index[name]
        if index < self._whole:
            self._int[index] = int(value)
        else:
            self._float[index] = value

    @property
    def names(self) -> Collection[str]:
        """Of all of them."""
        return self._index.keys()

    def __getitem__(self, name: str) -> float:
        index = self._index[name]
        return int(self._int[index]) if index < self._whole else float(self._float[index])

    def snapshot(self) -> dict[str, float]:
        """All of them by name."""
        return {name: self[name] for name in self._index}


def read_counters(path: Path | str) -> dict[str, float]:
    """What a page of a worker, dead or alive, says; SharedMemoryError if it is none, OSError if it is not there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, min(_LARGEST, os.fstat(descriptor).st_size))
    finally:
        os.close(descriptor)
    try:
        names, whole, offset = _head(data[: data.index(b"\n")])
        count = len(names)
        integers = np.frombuffer(data, np.int64, whole, offset).tolist()
        seconds = np.frombuffer(data, np.float64, count - whole, offset + 8 * whole).tolist()
        return dict(zip(names, [*integers, *seconds], strict=True))
    except (ValueError, KeyError, TypeError, RecursionError) as fault:
        raise SharedMemoryError("counters_unreadable", file=path, reason=str(fault)) from None


@lru_cache(64)
def _head(line: bytes) -> tuple[tuple[str, ...], int, int]:
    """Names, how many of them count in whole numbers, and where the numbers begin. Workers of a role have the same."""
    head = json.loads(line)
    names = tuple(map(str, [*head["counters"], *head["seconds"]]))
    return names, len(head["counters"]), -(-(len(line) + 1) // _PAGE) * _PAGE
