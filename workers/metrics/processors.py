"""The processors that this process may use, and how busy they are, whoever keeps them so."""

from __future__ import annotations

import math
import os
import time
from collections import deque
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["ProcessorUse", "available_cores"]

_GROUP = Path("/sys/fs/cgroup")
_WINDOW = 10.0
"""Seconds that the share of now is the mean of."""


def available_cores() -> float:
    """Cores that this process may use: its affinity, or less where a control group says so."""
    return min(float(len(_affinity())), _quota())


class ProcessorUse:
    """How busy they were, from look to look."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, float, float]] = deque()
        self._first: tuple[float, float, float] | None = None

    def look(self) -> None:
        """Reads how long they have been busy."""
        now = time.monotonic()
        self._looks.append((now, *_seconds(now)))
        self._first = self._first or self._looks[0]
        while len(self._looks) > 2 and now - self._looks[1][0] >= _WINDOW:
            self._looks.popleft()

    def share(self, whole: bool = False) -> float:
        """The part of them that was busy over the last seconds, or since the first look, in [0, 1]."""
        if self._first is None:
            return 0.0
        (_, before, then), (_, busy, there) = self._first if whole else self._looks[0], self._looks[-1]
        return min(1.0, (busy - before) / (there - then)) if there > then else 0.0


def _seconds(now: float) -> tuple[float, float]:
    """(busy, there were) of processors since some moment: of the control group where it has less than the affinity."""
    used, quota = _affinity(), _quota()
    if quota < len(used):
        told = dict(line.split() for line in (_GROUP / "cpu.stat").read_text().splitlines())
        return int(told["usage_usec"]) / 1e6, quota * now
    times = [one for number, one in enumerate(psutil.cpu_times(percpu=True)) if number in used]
    there = sum(map(sum, times))
    return there - sum(one.idle + getattr(one, "iowait", 0.0) for one in times), there


def _affinity() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def _quota() -> float:
    with suppress(OSError, ValueError):
        quota, period = (_GROUP / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    return math.inf
