"""Files that are written all the time while a disk may fill up: whole or not at all, and the run goes on.

In flow: text and bytes. Out flows: the file; False, told in the log and counted, where there was no room for them.
"""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from protocol.errors import disk_fault, disk_full

log = logging.getLogger(__name__)

_TOLD_EVERY = 10.0


class SafeWriter:
    """What one worker writes. `missed`: how often there was no room."""

    def __init__(self) -> None:
        self.missed = 0
        self._told_at = -_TOLD_EVERY

    def replace(self, path: Path, text: str, mode: int = 0o644) -> bool:
        """Puts `text` in place; what was there stays where there is no room. OSError for any other fault. `mode`: who
        may read it, as far as the umask lets anybody."""
        aside = path.with_name(f".{path.name}")
        try:
            aside.unlink(missing_ok=True)  # one that was left may have another mode
            aside.touch(mode)
            aside.write_text(text)
            aside.rename(path)
        except OSError as fault:
            self.record_disk_full(fault)
            aside.unlink(missing_ok=True)
            return False
        return True

    def record_disk_full(self, fault: OSError) -> None:
        """Counts and tells a disk that is full; any other fault is raised again."""
        if not disk_full(fault):
            raise fault
        self.missed += 1
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY:
            self._told_at = now
            log.error("event=disk_full missed=%d error=%s", self.missed, disk_fault(fault))


def sync(path: Path) -> None:
    """Returns when what is written of a file, or of the names in a folder, outlasts the machine."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendFile:
    """A file that grows by whole records."""

    def __init__(self, path: Path, disk: SafeWriter) -> None:
        self._disk = disk
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def append(self, record: bytes) -> bool:
        """Adds `record`; False, and nothing of it is there, where there is no room."""
        before = self.size
        try:
            left = memoryview(record)
            while len(left):
                left = left[os.write(self._descriptor, left) :]
        except OSError as fault:
            os.ftruncate(self._descriptor, before)
            self._disk.record_disk_full(fault)
            return False
        return True

    @property
    def size(self) -> int:
        """Bytes there are."""
        return os.fstat(self._descriptor).st_size

    def shorten(self, size: int) -> None:
        """Keeps its first `size` bytes, of as many as there are."""
        os.ftruncate(self._descriptor, min(size, self.size))

    def close(self) -> None:
        """Closes it."""
        os.close(self._descriptor)
