"""The lock of a locked ring: many readers or one writer, and the kernel gives up what a dead process held.

It is an open file description's lock on bytes of the ring's own file, which has nothing to do with the `flock` that
every user keeps on it. In flows: who wants to read or write. Out flow: a critical section, or a Timeout in a sentence.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol.errors import SharedMemoryError, Timeout
from protocol.memory.shared_file import Counters

LOCK_COUNTERS = ("lock_timeouts",)
LOCK_SECONDS = ("waits.lock",)

_GATE, _DATA = 0, 1
"""The two bytes, always locked in this order: who waits to write keeps the gate, so that no new reader overtakes it."""
_SHORTEST, _LONGEST = 20e-6, 1e-3
"""Seconds between two tries."""


class RegionLock:
    """Of the file `path` that is open as `descriptor`. Waits longer than `timeout` seconds raise Timeout; all waits add
    to the counters `waits.lock` and `lock_timeouts`, where `counters` are given. One thread a descriptor."""

    def __init__(self, descriptor: int, path: Path, timeout: float, counters: Counters | None = None) -> None:
        if not hasattr(fcntl, "F_OFD_SETLK"):
            raise SharedMemoryError("region_locks_unsupported", key="policy.ring")
        self._descriptor, self._path, self._timeout, self._counters = descriptor, path, timeout, counters

    @contextmanager
    def reading(self) -> Iterator[None]:
        """As long as this lasts nobody writes; others may read."""
        self._lock(fcntl.F_RDLCK)
        self._unlock(_GATE)
        try:
            yield
        finally:
            self._unlock(_DATA)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """As long as this lasts nobody else reads or writes."""
        self._lock(fcntl.F_WRLCK)
        try:
            yield
        finally:
            self._unlock(_DATA)
            self._unlock(_GATE)

    def _lock(self, kind: int) -> None:
        """The gate, then the data. Who has to wait has waited since it asked."""
        start, pause, waited = time.monotonic(), _SHORTEST, False
        try:
            for byte in (_GATE, _DATA):
                while not self._try(byte, kind):
                    waited = True
                    if time.monotonic() >= start + self._timeout:
                        self._give_up(kind)
                    time.sleep(pause)
                    pause = min(2 * pause, _LONGEST)
        except BaseException:
            self._unlock(_GATE)
            raise
        finally:
            if waited and self._counters is not None:
                self._counters.add("waits.lock", time.monotonic() - start)

    def _give_up(self, kind: int) -> None:
        if self._counters is not None:
            self._counters.add("lock_timeouts")
        purpose = "reading" if kind == fcntl.F_RDLCK else "writing"
        raise Timeout(
            "region_lock_timeout",
            pid=os.getpid(),
            file=self._path,
            purpose=purpose,
            seconds=self._timeout,
            key="policy.ring",
        )

    def _try(self, byte: int, kind: int) -> bool:
        try:
            self._set(byte, kind)
        except (BlockingIOError, PermissionError):  # POSIX lets the system say either
            return False
        return True

    def _unlock(self, byte: int) -> None:
        self._set(byte, fcntl.F_UNLCK)

    def _set(self, byte: int, kind: int) -> None:
        request = struct.pack("hhqqi0q", kind, os.SEEK_SET, byte, 1, 0)  # struct flock
        fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, request)
