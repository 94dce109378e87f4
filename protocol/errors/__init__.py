"""Errors that a user or a peer can see: each has a type, a `kind` that stays while its sentence is reworded, and facts.

The sentences stand in `protocol/errors/sentences.py`, one for each kind; protocol/errors/README.md lists them.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from string import Formatter
from typing import Any, NoReturn, Self

from protocol.errors.sentences import SENTENCES

__all__ = [
    "ConfigurationError",
    "DiskFault",
    "EnvironmentFault",
    "Refused",
    "RookeryError",
    "SharedMemoryError",
    "Timeout",
    "TrainingFault",
    "WireError",
    "disk_fault",
    "disk_full",
    "one_sentence",
]


class _Words(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        """Names are listed with commas between; a shape stays in brackets."""
        if isinstance(value, list | tuple):
            return ", ".join(value) if all(isinstance(one, str) for one in value) else str(list(value))
        return format(value, format_spec)


_WORDS = _Words()
_SENTENCES = {kind: sentence for of_type in SENTENCES.values() for kind, sentence in of_type.items()}
_CODED = re.compile(r"(.*) \[([a-z][a-z0-9_]*)\]\s*", re.DOTALL)


class RookeryError(Exception):
    """Base of all errors raised on purpose; `exit_code` is what a worker ends with.

    `kind` is a short identifier. `facts` are what the sentence is about, each an attribute of the error too: `key` (of
    the configuration), `file`, `line`, `peer`, `policy`, `agent`, `environment` and others.
    """

    exit_code = 1

    def __init__(self, kind: str, /, **facts: Any) -> None:
        super().__init__(_WORDS.vformat(_SENTENCES[kind], (), facts))
        self.kind, self.facts = kind, facts

    def __getattr__(self, name: str) -> Any:
        facts = self.__dict__.get("facts", {})
        if name not in facts:
            raise AttributeError(f"{type(self).__name__} {self.__dict__.get('kind')!r} has no fact {name!r}")
        return facts[name]

    @property
    def coded(self) -> str:
        """The sentence with the kind behind it: how an error is shown, logged and told to other processes."""
        return f"{self} [{self.kind}]"

    @classmethod
    def heard(cls, coded: str, **facts: Any) -> Self:
        """The error that another process told as `coded`; of its facts, those that it told are left."""
        found = _CODED.fullmatch(coded)
        return cls._said(*found.groups(), **facts) if found else cls("unexplained", reason=coded)

    @property
    def traceback(self) -> str:
        """That of the user's code which raised it; empty where none did."""
        return str(self.facts.get("traceback", ""))

    @property
    def known_kind(self) -> str:
        """The kind, if it is one of those there are: whoever is heard may have made it up."""
        return self.kind if self.kind in _SENTENCES else "unknown"

    def within(self, place: object, **facts: Any) -> Self:
        """The same error, with the `place` that it was found in before its sentence, and `facts` added or replaced."""
        return self._said(f"{place}: {self}", self.kind, **{**self.facts, **facts})

    @classmethod
    def _said(cls, sentence: str, kind: str, /, **facts: Any) -> Self:
        fault = cls.__new__(cls)
        Exception.__init__(fault, sentence)
        fault.kind, fault.facts = kind, facts
        return fault


class ConfigurationError(RookeryError, ValueError):
    """The configuration, or a value in it, cannot work; nothing was started."""

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


class DiskFault(RookeryError):
    """A file cannot be written."""

    exit_code = 10


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
def one_sentence(other: str = "another --run-dir") -> Iterator[None]:
    """For a command that a person types: what goes wrong on purpose ends it with one sentence and an exit code of its
    own. `other`: what may be given instead of a place that cannot be written. All else stays a traceback."""
    try:
        yield
    except RookeryError as fault:
        _end(fault)
    except OSError as fault:
        told = disk_fault(fault, other)
        if told is None:
            raise
        _end(told)


def _end(fault: RookeryError) -> NoReturn:
    sys.stderr.write(f"{fault.traceback}rookery: {fault.coded}\n")
    sys.exit(fault.exit_code)


def disk_fault(fault: BaseException, other: str = "another --run-dir") -> DiskFault | None:
    """What to say of a file that cannot be written, with what `other` to give; None for any other error."""
    if not isinstance(fault, OSError) or fault.errno not in _DISK:
        return None
    file = os.fspath(fault.filename) if fault.filename else ""
    facts = {"file": file, "place": file and f" {file}", "reason": fault.strerror, "other": other}
    return DiskFault("disk_full" if fault.errno in _FULL else "file_not_writable", **facts)
