"""The true time of a run's steps, from the beginning of the first to the end of the newest, whenever anybody looks.

In flows: each worker's own two stamps, among its counters. Out flow: the seconds in which any of them made steps.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from protocol.memory.shared_file import Counters
from workers.metrics.segment_accounting import Page

STAMPS = ("first_step_hours", "last_step_hours")
"""When the first step of a worker began and its newest ended, in hours since 1970: small, as the other counters are."""
_HOUR = 3600.0
_PAUSE = 30.0
"""Seconds without a step of anybody that are still the run's, as those in which a worker is started again."""


class StepClock:
    """The stamps of one worker, whose `counters` have them."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters

    def begin(self) -> None:
        """Its first step, or update, begins now, unless it has begun before."""
        if not self._counters[STAMPS[0]]:
            self._counters.set(STAMPS[0], time.time() / _HOUR)

    def stepped(self) -> None:
        """Its newest ends now."""
        self._counters.set(STAMPS[1], time.time() / _HOUR)


def stepped(page: Page) -> tuple[float, float] | None:
    """(from, to) of a worker's steps, in seconds since 1970; None if it has not told."""
    first, last = (page.get(stamp, 0.0) * _HOUR for stamp in STAMPS)
    return (first, last) if last > first > 0 else None


def span(times: Iterable[tuple[float, float]], since: float, now: float) -> float:
    """Seconds that `times` cover, short pauses between them included; none is believed that lies before `since` or
    after `now`."""
    total, end = 0.0, None
    for begun, ended in sorted((max(since, begun), min(now, ended)) for begun, ended in times):
        if end is None or begun > end + _PAUSE:
            total, end = total + max(0.0, ended - begun), ended
        elif ended > end:
            total, end = total + ended - end, ended
    return total
