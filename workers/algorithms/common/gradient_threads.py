"""Whether the gradients of a policy are computed by one thread or by two: by what is faster, measured.

In flow: how long updates take, and how long their process waits for data. Out flow: `StreamAlgorithm.halved`.

A second thread is tried where the process hardly waits, and kept where updates gain by it. After that the rate of the
whole decides, as the core may have been taken from the actors. Each try that gains nothing makes the next one later.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from workers.algorithms.common.second_thread import Halved, SecondThread

log = logging.getLogger(__name__)

_WAITS = 0.1
"""Share of the time from which on a learner is not what the run waits for."""
_FASTER, _GAINS, _LOST = 1.15, 1.05, 0.8
"""Of updates on one thread, how fast those on two must be; of the rate before, how high it must be; of the rate that
was gained, what it must not fall below."""
_STAYS, _LONGEST = 10.0, 600.0
"""Seconds until the next change, at least, and until the next try, at most."""
_PROVEN, _OLD = 6, 60
"""Times so many seconds on two threads, after which these have proved their worth, and after which it is measured again
what one thread makes."""
_BREAK = 1.0
"""Seconds without data or update, beyond five updates, after which nothing is compared with what came before."""
_TRIES = 3
"""Updates of a try; the first one finds its memory."""


class GradientThreads:
    """Of `policy`'s `update`. `waited`: seconds that the process has waited for data; `clock` tells the time in
    seconds."""

    def __init__(
        self,
        policy: str,
        update: Halved,
        waited: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._policy, self._update, self._waited, self._clock = policy, update, waited, clock
        self._second: SecondThread | None = None
        self._tries, self._pause, self._next = 0, _STAYS, 0.0
        self._alone = self._rate = self._best = 0.0
        """Rows a second: of the fastest update on one thread; of the whole with one thread; of the whole with two, at
        best."""
        self._updates = self._rows = 0
        self._kept = 0
        """Times that two threads were kept."""
        self._speed = self._opened = self._waited_before = 0.0
        self._last = clock()
        self._open()

    @property
    def count(self) -> int:
        """Threads of the next update."""
        return 1 if self._second is None else 2

    def updated(self, rows: int, seconds: float) -> None:
        """After an update of so many `rows`, which took `seconds`."""
        now = self._clock()
        paused, self._last = now - self._last - seconds, now
        self._speed = max(self._speed, rows / max(1e-9, seconds))  # the slower ones were disturbed
        if self._tries:
            self._tried(now)
            return
        if paused > _BREAK + 5 * seconds:  # of the run, or of this policy: nothing can be compared with that
            self._open()
            return
        self._updates, self._rows = self._updates + 1, self._rows + rows
        rate = self._rows / max(1e-9, now - self._opened)
        if self._second is None:
            self._on_one(rate, now)
        elif now - self._opened >= _STAYS:
            self._on_two(rate, now)

    def close(self) -> None:
        """Ends the second thread, if there is one."""
        self._update.halved = None
        if self._second is not None:
            self._second.close()
        self._second = None

    def _on_one(self, rate: float, now: float) -> None:
        if self._updates < 2 or not self._rows:
            return
        if now >= self._next and self._waited() - self._waited_before < _WAITS * (now - self._opened):
            self._alone, self._rate, self._tries = self._speed, rate, _TRIES
            self._begin()
        elif now - self._opened >= _STAYS:
            self._open()

    def _begin(self) -> None:
        try:
            self._second = SecondThread(self._update)
        except Exception as fault:  # of a module of the user's own, or of a process that may have no more threads
            log.warning("event=no_second_thread policy=%s reason=%r", self._policy, fault)
            self._next, self._tries = math.inf, 0
            return
        self._update.halved, self._speed = self._second.gradient, 0.0

    def _tried(self, now: float) -> None:
        self._tries -= 1
        if self._tries:
            return
        gain = self._speed / self._alone
        if gain < _FASTER:
            self._back(now, gain)
            return
        log.info("event=second_thread policy=%s update_gain=%.2f", self._policy, gain)
        self._best, self._kept = 0.0, 0
        self._open()

    def _on_two(self, rate: float, now: float) -> None:
        if rate < _GAINS * self._rate:
            self._back(now, gain=rate / self._rate)
        elif rate < _LOST * self._best or self._kept == _OLD:
            self.close()
            self._next = now + _STAYS
        else:
            self._best, self._kept = max(self._best, rate), self._kept + 1
            if self._kept == _PROVEN:
                self._pause = _STAYS
        self._open()

    def _back(self, now: float, gain: float) -> None:
        log.info("event=one_thread policy=%s gain_of_two=%.2f", self._policy, gain)
        self.close()
        self._next, self._pause = now + self._pause, min(_LONGEST, 2 * self._pause)
        self._open()

    def _open(self) -> None:
        """What follows is measured anew."""
        self._updates, self._rows, self._speed = 0, 0, 0.0
        self._opened, self._waited_before = self._clock(), self._waited()
