"""Who comes and goes, and what workers leave behind: the files of their memory, and what those said that ended by a
fault.

In flows: who joined, who left, who was lost. Out flows: a line of the log for each, for a crowd their number; files
that are removed when nobody needs them; errors, for the log and the summary.
"""

from __future__ import annotations

import logging
from typing import Any

from protocol.errors import Refused
from protocol.memory.shared_file import sweep
from protocol.messages.core import Leave
from protocol.refusal_log import RefusalLog, one_line
from workers.metrics.segment_accounting import unacknowledged

log = logging.getLogger(__name__)

_SALVAGE_SECONDS = 15.0
_ERRORS_KEPT = 20
_LINES_A_SECOND = 50
"""Of those who come and go; the others of that second are counted."""


class Departures:
    """Of the run with the identity `run`."""

    def __init__(self, run: str, refusals: RefusalLog) -> None:
        self._run, self._refusals = run, refusals
        self.errors: list[dict[str, Any]] = []
        """What workers said that ended by a fault, the newest last."""
        self._lines, self._told_at = 0, 0.0
        self._untold: dict[str, int] = {}
        """Event -> how many of them since then have no line of their own."""
        self._files: dict[str, float] = {}
        """Prefixes of the files of workers that are lost, or left before all was delivered; and since when."""

    def joined(self, worker: str, incarnation: int, host: str, pid: int) -> None:
        """It was let in."""
        self._tell("joined", worker, incarnation, f" host={one_line(host)} pid={pid}")

    def lost(self, worker: str, incarnation: int, now: float) -> None:
        """Its lease has ended."""
        self._tell("lease_ended", worker, incarnation, level=logging.WARNING)
        self._files[f"{self._run}-{worker}.{incarnation}"] = now

    def left(self, leave: Leave, now: float) -> None:
        """It has said farewell."""
        worker, incarnation = leave.name, leave.incarnation
        self._tell("failed" if leave.error else "left", worker, incarnation)
        if unacknowledged(leave.counters):  # its memory stays for a while, as that of one that was killed
            self._files[f"{self._run}-{worker}.{incarnation}"] = now
        if not leave.error:
            return
        self.errors.append({"worker": worker, "incarnation": incarnation, "error": leave.error})
        del self.errors[:-_ERRORS_KEPT]
        kind, reason = Refused.heard(leave.error).known_kind, leave.error.strip().rpartition("\n")[2]
        about = {"worker": worker, "fault": reason.partition(":")[0]}
        told = self._refusals.tell("worker_failed", kind, reason, level=logging.ERROR, **about)
        if told and reason != leave.error:
            log.error("event=worker_traceback worker=%s error=%s", worker, leave.error)

    def sweep(self, now: float, salvaging: bool) -> None:
        """Removes the rings that actors left, once the learners, all of whom are there where they are `salvaging`, have
        had time to take what was finished in them. Never weights: a learner resumes from them."""
        if now - self._told_at >= 1.0:
            self.tell_rest()
            self._told_at = now
        for name, since in list(self._files.items()):
            if not salvaging:
                self._files[name] = now
            elif now - since > _SALVAGE_SECONDS:
                del self._files[name]
                sweep(name)

    def tell_rest(self) -> None:
        """How many more came and went than there are lines for."""
        for event, count in self._untold.items():
            log.info("event=%s more=%d", event, count)
        self._untold.clear()
        self._lines = 0

    def _tell(self, event: str, worker: str, incarnation: int, about: str = "", level: int = logging.INFO) -> None:
        self._lines += 1
        if self._lines <= _LINES_A_SECOND:
            log.log(level, "event=%s worker=%s incarnation=%d%s", event, worker, incarnation, about)
        else:
            self._untold[event] = self._untold.get(event, 0) + 1
