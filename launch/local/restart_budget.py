"""How often a worker that died is started again, and after which pause. Pure: time is passed in."""

from __future__ import annotations

_EARLY_SECONDS = 10.0
"""Who dies before that has hardly begun its work: it pauses, each time twice as long. Others begin again at once."""
_LONGEST_PAUSE = 10.0
_SOUND_SECONDS = 300.0
"""Who lived so long has its whole budget again: what it dies of now is nothing that it began with."""


class RestartBudget:
    """`most` restarts of one worker. A crash loop slows down and ends; a death a day ends nothing."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.used = 0
        """Restarts since it last lived long."""
        self.again = 0
        """Restarts in all."""
        self._early = 0
        self._began = 0.0

    def began(self, now: float) -> None:
        """It was started."""
        self._began = now

    def lived(self, now: float) -> float:
        """Seconds since it was started."""
        return now - self._began

    def died(self, now: float) -> float | None:
        """Seconds to wait until it is started again; None where its budget is used up."""
        lived = self.lived(now)
        if lived >= _SOUND_SECONDS:
            self.used = 0
        self._early = self._early + 1 if lived < _EARLY_SECONDS else 0
        if self.used >= self._most:
            return None
        self.used += 1
        self.again += 1
        return float(min(_LONGEST_PAUSE, 0.25 * 2 ** (self._early - 1))) if self._early else 0.0
