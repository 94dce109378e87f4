"""Every error a user can meet: one sentence that says what is wrong and what to do."""

from __future__ import annotations

__all__ = [
    "ConfigurationError",
    "EnvironmentFault",
    "Refused",
    "RookeryError",
    "SharedMemoryError",
    "Timeout",
    "TrainingFault",
    "WireError",
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
    """An environment raised or gave data that contradict its own spaces."""

    exit_code = 7


class TrainingFault(RookeryError):
    """An update produced numbers that are not finite."""

    exit_code = 8
