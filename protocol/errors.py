"""Every error a user can meet: one sentence that says what is wrong and what to do."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = [
    "ConfigurationError",
    "EnvironmentFault",
    "Refused",
    "RookeryError",
    "SharedMemoryError",
    "Timeout",
    "TrainingFault",
    "WireError",
    "disk_fault",
    "disk_full",
    "told_in_a_sentence",
]


class RookeryError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what a worker ends with."""

    exit_code = 1


class ConfigurationError(RookeryError):
    """The configuration cannot work; nothing was started."""

    exit_code = 2


class Refused(RookeryError):
    """The coordinator refuses this worker (another release, an identity in use, nothing left to do)."""

    exit_code = 3


class Timeout(RookeryError):
    """A peer did not answer before the deadline."""

    exit_code = 4


class WireError(RookeryError):
    """A message that breaks the specification."""

    exit_code = 5


class SharedMemoryError(RookeryError):
    """Shared memory cannot be created, attached or trusted."""

    exit_code = 6


class EnvironmentFault(RookeryError):
    """An environment, or a program that plays in it, raised or gave what contradicts the environment's spaces."""

    exit_code = 7


class TrainingFault(RookeryError):
    """An update produced numbers that are not finite."""

    exit_code = 8


_FULL = {errno.ENOSPC, errno.EDQUOT}
_DISK = _FULL | {
    errno.EACCES,
    errno.EFBIG,
    errno.EIO,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}


def disk_full(fault: BaseException) -> bool:
    """Whether there is no room, for the time being."""
    return isinstance(fault, OSError) and fault.errno in _FULL


@contextmanager
def told_in_a_sentence(other: str = "another --run-dir") -> Iterator[None]:
    """For a command that a person types: what goes wrong on purpose ends it with one sentence and an exit code of its
    own. `other`: what may be given instead of a place that cannot be written. All else stays a traceback."""
    try:
        yield
    except RookeryError as fault:
        sys.stderr.write(f"rookery: {fault}\n")
        sys.exit(fault.exit_code)
    except OSError as fault:
        said = disk_fault(fault, other)
        if not said:
            raise
        sys.stderr.write(f"rookery: {said}\n")
        sys.exit(1)


def disk_fault(fault: BaseException, other: str = "another --run-dir") -> str:
    """The sentence for a file that cannot be written, with what `other` to give; empty for any other error."""
    if not isinstance(fault, OSError) or fault.errno not in _DISK:
        return ""
    place = f" {os.fspath(fault.filename)}" if fault.filename else ""
    remedy = "free some room" if fault.errno in _FULL else "make it writable"
    return f"cannot write{place}: {fault.strerror}; {remedy} or give {other}"
