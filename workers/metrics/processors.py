"""How busy the processors are that this process may use, whoever keeps them so."""

from __future__ import annotations

import time
from collections import deque

import psutil

from protocol.control.processors import GROUP, affinity, quota

_WINDOW = 10.0
"""Seconds that the share of now is the mean of."""


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
    used, most = affinity(), quota()
    if most < len(used):
        told = dict(line.split() for line in (GROUP / "cpu.stat").read_text().splitlines())
        return int(told["usage_usec"]) / 1e6, most * now
    times = [one for number, one in enumerate(psutil.cpu_times(percpu=True)) if number in used]
    there = sum(map(sum, times))
    return there - sum(one.idle + getattr(one, "iowait", 0.0) for one in times), there
