"""Sees what a test leaves behind: processes, threads, descriptors, shared-memory files.

In flows: a `Snapshot` taken before the test. Out flow: `Leaks` after it, of which the guard ends the processes and
removes the files, so that one careless test fails alone.

Every process started under a test inherits `MARK` in its environment; that is how one whose parent died is still known
as ours, while those of another test run on the same machine are left alone.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import psutil

__all__ = ["MARK", "Leaks", "Snapshot", "mark_descendants"]

MARK = "ROOKERY_TEST_RUNS"
"""Environment variable: the marks of the test runs that a process descends from, outermost first."""

SHARED = Path("/dev/shm")
PATIENCE = 30.0
"""Seconds that what a test started may take to go away after it, on a loaded machine too."""
TOLERATED = ("/dev/urandom", "/dev/nvidia", "/dev/dri", "/proc/")
"""Targets of descriptors that libraries open once and keep."""


def mark_descendants(mark: str) -> None:
    """Adds `mark` to the environment that all processes started from now on inherit."""
    os.environ[MARK] = f"{os.environ[MARK]}:{mark}" if MARK in os.environ else mark


@dataclass(frozen=True, slots=True)
class Leaks:
    """What is there after a test and was not before it."""

    processes: tuple[psutil.Process, ...] = ()
    threads: tuple[threading.Thread, ...] = ()
    descriptors: tuple[tuple[int, str], ...] = ()
    files: tuple[Path, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.processes or self.threads or self.descriptors or self.files)

    def report(self) -> str:
        """One line for each leak."""
        lines = [f"process {process.pid}: {_command(process)}" for process in self.processes]
        lines += [f"thread {thread.name!r} (not a daemon)" for thread in self.threads]
        lines += [f"descriptor {number}: {target}" for number, target in self.descriptors]
        lines += [f"shared-memory file {path}" for path in self.files]
        return "\n".join(lines)

    def clean(self) -> None:
        """Kills the processes and removes the files."""
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self.processes, timeout=5)
        for path in self.files:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is at one moment."""

    memory: Path
    mark: str
    processes: frozenset[int]
    threads: frozenset[threading.Thread]
    descriptors: frozenset[tuple[int, str]]
    files: frozenset[Path]

    @classmethod
    def take(cls, memory: Path, mark: str) -> Snapshot:
        """Of this process, of the machine's process numbers, of /dev/shm and of the folder `memory`."""
        return cls(
            memory,
            mark,
            frozenset(psutil.pids()),
            frozenset(threading.enumerate()),
            frozenset(_descriptors()),
            frozenset(_files(memory)),
        )

    def leaks(self, patience: float = PATIENCE) -> Leaks:
        """What came since and has not gone after `patience` seconds."""
        deadline = time.monotonic() + patience
        found = self._now()
        while found and time.monotonic() < deadline:
            if found.descriptors or found.files:
                gc.collect()  # of what is garbage already
            time.sleep(0.05)
            found = self._now()
        return found

    def _now(self) -> Leaks:
        return Leaks(
            tuple(_processes(self.processes, self.mark)),
            tuple(t for t in threading.enumerate() if t not in self.threads and not t.daemon),
            tuple(d for d in _descriptors() if d not in self.descriptors and not _tolerated(*d)),
            tuple(path for path in _files(self.memory) if path not in self.files and not _foreign(path, self.mark)),
        )


def _processes(before: frozenset[int], mark: str) -> Iterator[psutil.Process]:
    for number in [number for number in psutil.pids() if number not in before]:
        with suppress(psutil.Error, OSError):
            process = psutil.Process(number)
            if process.status() == psutil.STATUS_ZOMBIE or "multiprocessing.resource_tracker" in _command(process):
                continue
            if _marked(process, mark) or os.getpid() in [parent.pid for parent in process.parents()]:
                yield process


def _marked(process: psutil.Process, mark: str) -> bool:
    with suppress(psutil.Error, OSError):
        return mark in process.environ().get(MARK, "").split(":")
    return False


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline()) or process.name()
    return "already gone"


def _descriptors() -> Iterator[tuple[int, str]]:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            yield int(name), os.readlink(f"/proc/self/fd/{name}")


def _tolerated(number: int, target: str) -> bool:
    if number == getattr(resource_tracker._resource_tracker, "_fd", None) or target.startswith(TOLERATED):
        return True
    return "/site-packages/" in target or target.startswith(os.path.dirname(os.__file__))


def _files(memory: Path) -> Iterator[Path]:
    yield from memory.rglob("rookery-*")
    if SHARED.is_dir():
        yield from SHARED.glob("rookery-*")


def _foreign(path: Path, mark: str) -> bool:
    """Is a file of /dev/shm in use by a process that no test of this run started?"""
    if path.parent != SHARED:
        return False
    ours = {os.getpid()}
    for process in psutil.process_iter():
        if process.pid in ours or _marked(process, mark):
            continue
        with suppress(OSError):
            if str(path) in Path(f"/proc/{process.pid}/maps").read_text():
                return True
    return False
