"""Shared memory as plain files: reserved at creation, held by shared locks, removed only when nobody holds one.

Every process that uses a file keeps a shared `flock` on it, which the kernel releases at any death. Whoever obtains the
exclusive lock therefore knows that no user is left and may unlink the file; nobody guesses by process numbers.

`Counters` are named 64-bit numbers in a file of their own, which survive the death of their worker. It begins with a
line of JSON (names, padded to a page), then one float64 or int64 a name.
"""

from __future__ import annotations

import errno
import fcntl
import json
import mmap
import os
import stat
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError

PREFIX = "rookery-"
_REMEDY = (
    "enlarge it, set ROOKERY_MEMORY to a larger file system, or lower environment.copies, credits or buffer_capacity"
)
_OURS = 0o700
_LOCK_SECONDS = 1.0
"""How long to wait for a shared lock; a sweep holds the exclusive one for an instant."""


def memory_dir() -> Path:
    """Where shared memory lives: `ROOKERY_MEMORY`, else a folder of this user's alone in /dev/shm, or where there is
    none in the folder for temporary files. SharedMemoryError where it is somebody else's."""
    given = os.environ.get("ROOKERY_MEMORY")
    if given:
        path = Path(given)
        if not path.is_dir():
            raise SharedMemoryError("memory_folder_missing", file=given, key="ROOKERY_MEMORY")
        return path
    shm = Path("/dev/shm")
    parent = shm if shm.is_dir() and os.access(shm, os.W_OK) else Path(tempfile.gettempdir())
    path = parent / f"rookery.{os.geteuid()}"
    path.mkdir(mode=_OURS, exist_ok=True)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != _OURS:
        raise SharedMemoryError("memory_folder_of_others", file=path, mode=stat.S_IMODE(status.st_mode))
    return path


class SharedFile:
    """One mapped file. `buffer` is its memory; drop all views on it before `close`."""

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path = path
        self.size = size
        self.descriptor = descriptor
        """The open file; less than 0 once it is closed."""
        try:
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError) as fault:  # too large for any memory, or made shorter since it was looked at
            raise SharedMemoryError("shared_memory_unopenable", file=path, reason=fault) from None

    @property
    def buffer(self) -> memoryview:
        """The memory itself."""
        return memoryview(self._map)

    @classmethod
    def create(cls, path: Path, size: int) -> SharedFile:
        """A new file of `size` zero bytes whose space is reserved now, so that no later write can fail.

        A dead process's file of this name is replaced. Raises SharedMemoryError if a living one holds it or the file
        system has not enough room.
        """
        end = time.monotonic() + _LOCK_SECONDS / 4
        while True:
            try:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                if unlink_if_unused(path) or time.monotonic() < end:  # it may be in the hands of a sweep
                    continue
                raise SharedMemoryError("shared_memory_in_use", file=path) from None
            _lock_shared(descriptor, path)
            if os.fstat(descriptor).st_nlink:
                break
            os.close(descriptor)  # a sweep took it between creation and lock
        try:
            reserve(descriptor, path, size, _REMEDY)
            return cls(path, descriptor, size)
        except BaseException:
            path.unlink(missing_ok=True)
            os.close(descriptor)
            raise

    @classmethod
    def attach(cls, path: Path) -> SharedFile:
        """Maps an existing file; SharedMemoryError if it is gone or no plain file."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else fault
            raise SharedMemoryError("shared_memory_unopenable", file=path, reason=reason) from None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise SharedMemoryError("shared_memory_not_plain_file", file=path)
            _lock_shared(descriptor, path)
            status = os.fstat(descriptor)
            if status.st_nlink == 0 or status.st_size == 0:
                raise SharedMemoryError("shared_memory_just_removed", file=path)
            return cls(path, descriptor, status.st_size)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def short(self) -> bool:
        """Whether somebody made the file shorter: reading what is mapped beyond its end would kill the process."""
        return os.fstat(self.descriptor).st_size < self.size

    def close(self) -> None:
        """Unmaps and gives up the lock; may be called twice."""
        if self.descriptor < 0:
            return
        fcntl.flock(self.descriptor, fcntl.LOCK_UN)  # the map holds a duplicate descriptor: unlock for both
        with suppress(BufferError):  # a view still lives somewhere: the memory goes with its last view
            self._map.close()
        os.close(self.descriptor)
        self.descriptor = -1

    def remove(self) -> None:
        """Closes, and unlinks the file unless another process still holds it."""
        self.close()
        unlink_if_unused(self.path)


def _lock_shared(descriptor: int, path: Path) -> None:
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                raise SharedMemoryError("shared_memory_locked", file=path, seconds=_LOCK_SECONDS) from None
            time.sleep(0.001)


def reserve(descriptor: int, path: Path, size: int, remedy: str) -> None:
    """Room for `size` bytes of an open file that is to be mapped, what lies in it kept: writing to a map of a file
    whose file system is full would kill the process. SharedMemoryError with the `remedy` where there is no room."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size)
        else:  # macOS: writing is the only way to reserve
            for at in range(os.fstat(descriptor).st_size, size, 1 << 20):
                os.pwrite(descriptor, bytes(min(1 << 20, size - at)), at)
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        raise SharedMemoryError(
            "no_room_for_shared_memory", file=path.parent, size=size / 2**20, remedy=remedy
        ) from None


def files(run: str = "") -> Iterator[Path]:
    """The files of `run`, or of all runs, in the memory folder."""
    yield from sorted(memory_dir().glob(f"{PREFIX}{run}-*" if run else f"{PREFIX}*"))


def sweep(run: str = "") -> list[Path]:
    """Unlinks every file of `run`, or of all runs, that no living process holds; returns them."""
    return [path for path in files(run) if unlink_if_unused(path)]


def unlink_if_unused(path: Path) -> bool:
    """Removes the file unless a living process holds it; whether it did."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held, named = os.fstat(descriptor), os.lstat(path)
        if (held.st_dev, held.st_ino) != (named.st_dev, named.st_ino):
            return False  # since it was opened, another process removed it and made a new one
        path.unlink()
        return True
    except (BlockingIOError, FileNotFoundError):
        return False
    finally:
        os.close(descriptor)


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
