"""Time with an end: every wait has one, and a name to complain with."""

from __future__ import annotations

import time
from collections.abc import Callable

from protocol.errors import Timeout


class Deadline:
    """`seconds` from now by `clock`; `what` completes the sentence "… in time"."""

    def __init__(self, seconds: float, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.what = what
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end

    def check(self) -> None:
        """Raises Timeout if the time is up."""
        if self.passed:
            raise Timeout("deadline_passed", what=self.what, seconds=self.seconds)
