"""The members of a league's library that actors of one node have at hand, where they do not see the run's folder.

In flows: checksums that the coordinator told; files from it, each fetched once by one actor of the node and checked.
Out flow: files in shared memory, which all actors of the node read. Whoever has one at hand holds it; who lets go of it
last removes it. What one leaves that is killed goes with the next one that ends in order: no coordinator sees the node.

Acting never waits: what is not there yet is fetched by a thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

from protocol.control.file_fetch import Fetching
from protocol.errors import RookeryError, SharedMemoryError, Timeout
from protocol.memory.shared_file import PREFIX, Counters, SharedFile, memory_dir, sweep
from workers.league.policy_pool import PoolEntry, checksum

log = logging.getLogger(__name__)

_MARK = ".library"
"""In names of files, behind the run's: no worker's name begins so."""
_LOOK_EVERY = 0.05
"""Seconds from one look for what another actor of the node fetches to the next."""


class PoolCache:
    """Of the run `run`. `fetch` gets a file from the coordinator, giving up after so many seconds of silence."""

    def __init__(self, run: str, fetch: Fetching, counters: Counters, seconds: float) -> None:
        self._run, self._fetch, self._counters, self._seconds = run, fetch, counters, seconds
        self._held: dict[str, SharedFile] = {}
        """checksum -> what is at hand."""
        self._wanted: SimpleQueue[PoolEntry | None] = SimpleQueue()
        self._asked: set[str] = set()
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._fault: RookeryError | None = None
        self._thread = threading.Thread(target=self._work, name="library", daemon=True)
        self._thread.start()

    def get(self, entry: PoolEntry) -> Path | None:
        """The file of a member, None as long as it is on its way. Raises what fetching it ended with."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            there = self._held.get(entry.checksum)
            if there is not None:
                return there.path
            if entry.checksum not in self._asked:
                self._asked.add(entry.checksum)
                self._wanted.put(entry)
        return None

    def release(self, entry: PoolEntry) -> None:
        """It is in memory no more."""
        with self._lock:
            there = self._held.pop(entry.checksum, None)
        if there is not None:
            there.remove()

    def close(self) -> None:
        """Lets go of all, and removes what nobody has any more."""
        self._stop.set()
        self._wanted.put(None)
        self._thread.join(timeout=5)
        while self._held:
            self._held.popitem()[1].remove()
        sweep(f"{self._run}-{_MARK}")

    def _work(self) -> None:
        while (entry := self._wanted.get()) is not None and not self._stop.is_set():
            try:
                there = self._download(entry)
            except Timeout as fault:  # asked again when it is drawn again
                log.warning("event=member_not_fetched member=%s reason=%s", entry.name, fault.coded)
                there = None
            except (RookeryError, OSError) as fault:
                with self._lock:
                    self._fault = fault if isinstance(fault, RookeryError) else _unkept(entry, fault)
                return
            with self._lock:
                self._asked.discard(entry.checksum)
                if there is not None:
                    self._held[entry.checksum] = there

    def _download(self, entry: PoolEntry) -> SharedFile | None:
        path = memory_dir() / f"{PREFIX}{self._run}-{_MARK}-{entry.checksum}"
        with self._file_lock(path.with_name(f"{path.name}.lock")) as alone:
            if not alone:
                return None
            there = _whole(path, entry)
            if there is not None:
                return there
            data = self._fetch(entry.name, entry.checksum, self._seconds, self._stop)
            self._counters.add("league_fetched")
            log.info("event=fetched member=%s bytes=%d checksum=%s", entry.name, len(data), entry.checksum)
            file = SharedFile.create(path, len(data))
            with file.buffer as memory:
                memory[:] = data
            return file

    @contextmanager
    def _file_lock(self, path: Path) -> Iterator[bool]:
        """While one actor of the node sees to a file, the others wait; False where this one is to end."""
        while not self._stop.is_set():
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(descriptor).st_nlink:  # else whoever had it has just removed it
                    try:
                        yield True
                    finally:
                        path.unlink()
                    return
            except BlockingIOError:
                time.sleep(_LOOK_EVERY)
            finally:
                os.close(descriptor)
        yield False


def _whole(path: Path, entry: PoolEntry) -> SharedFile | None:
    """What another actor of the node has at hand; what one left that was killed while it wrote is removed."""
    if not path.exists():
        return None
    try:
        there = SharedFile.attach(path)
    except SharedMemoryError:  # who had it has just let go of it
        return None
    with there.buffer as memory:
        sound = checksum(bytes(memory)) == entry.checksum
    if sound:
        return there
    there.remove()
    return None


def _unkept(entry: PoolEntry, fault: OSError) -> SharedMemoryError:
    return SharedMemoryError("library_member_unkept", member=entry.name, file=memory_dir(), reason=fault.strerror)
