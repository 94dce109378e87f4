"""Hands measurements to a logger of somebody else's, which may be slow, ill or far away, while the run goes on.

In flow: scalars by name over steps, as TensorBoard gets them. Out flows: the logger, in a thread of its own; counts of
what it took and of what it missed.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

log = logging.getLogger(__name__)

_WAITING = 1_000
"""Moments that may wait for the logger; at two a second, eight minutes."""
_END_SECONDS = 30.0
"""That it may take in the end."""
_TOLD_EVERY = 60.0


class Logger(Protocol):
    """What takes measurements. Any of its methods may raise anything."""

    def scalars(self, step: int, seconds: float, values: Mapping[str, float]) -> None:
        """Takes `values` of the moment `seconds` (since 1970), when the run had made `step` steps."""

    def close(self, complete: bool) -> None:
        """The run is over, and reached its end if it is `complete`."""


class AsyncLogger:
    """Of the logger `name` that `begin` makes. Neither its faults nor its slowness reach who calls."""

    def __init__(self, name: str, begin: Callable[[], Logger]) -> None:
        self.name, self._begin = name, begin
        self.written = self.missed = 0
        """Moments that the logger took, and that it did not."""
        self._moments: queue.Queue[tuple[int, float, Mapping[str, float]] | bool] = queue.Queue()
        self._told_at = -_TOLD_EVERY
        self._thread = threading.Thread(target=self._serve, name=f"logger-{name}", daemon=True)
        self._thread.start()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Passes `values` on; never waits."""
        if self._moments.qsize() >= _WAITING:
            self._miss("too slow for what it is told")
        else:
            self._moments.put((step, time.time(), dict(values)))

    def close(self, complete: bool) -> None:
        """Waits, not for long, until the logger has taken what it was told."""
        self._moments.put(complete)
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            log.error("event=logger_unfinished logger=%s waiting=%d", self.name, self._moments.qsize())

    def _serve(self) -> None:
        try:
            logger = self._begin()
        except Exception as fault:  # somebody else's code, and the run does not depend on it
            return self._refuse(fault)
        log.info("event=logger_began logger=%s", self.name)
        while not isinstance(moment := self._moments.get(), bool):
            try:
                logger.scalars(*moment)
                self.written += 1
            except Exception as fault:
                self._miss(_sentence(fault))
        try:
            logger.close(moment)
        except Exception as fault:
            log.error("event=logger_failed logger=%s error=%s", self.name, _sentence(fault))

    def _refuse(self, fault: Exception) -> None:
        """It could not begin: nothing is passed on, and everything is counted."""
        log.error("event=logger_failed logger=%s error=%s", self.name, _sentence(fault))
        while not isinstance(self._moments.get(), bool):
            self.missed += 1

    def _miss(self, why: str) -> None:
        self.missed += 1
        now = time.monotonic()
        if now - self._told_at >= _TOLD_EVERY:
            self._told_at = now
            log.error("event=logger_missed logger=%s missed=%d error=%s", self.name, self.missed, why)


def _sentence(fault: Exception) -> str:
    return " ".join(f"{type(fault).__name__}: {fault}".split())
