"""What workers leave behind when they go: the files of their memory, and what those said that ended by a fault.

In flows: who left, who was lost. Out flows: files that are removed when nobody needs them; errors, for the log and the
summary.
"""

from __future__ import annotations

import logging
from typing import Any

from protocol.errors import Refused
from protocol.memory.shared_file import sweep
from protocol.messages.core import Leave
from protocol.refusal_log import RefusalLog
from workers.metrics.segment_accounting import unacknowledged

__all__ = ["Departures"]

log = logging.getLogger(__name__)

_SALVAGE_SECONDS = 15.0
_ERRORS_KEPT = 20


class Departures:
    """Of the run with the identity `run`."""

    def __init__(self, run: str, refusals: RefusalLog) -> None:
        self._run, self._refusals = run, refusals
        self.errors: list[dict[str, Any]] = []
        """What workers said that ended by a fault, the newest last."""
        self._files: dict[str, float] = {}
        """Prefixes of the files of workers that are lost, or left before all was delivered; and since when."""

    def lost(self, worker: str, incarnation: int, now: float) -> None:
        """Its lease has ended."""
        log.warning("event=lease_ended worker=%s incarnation=%d", worker, incarnation)
        self._files[f"{self._run}-{worker}.{incarnation}"] = now

    def left(self, leave: Leave, now: float) -> None:
        """It has said farewell."""
        worker, incarnation = leave.name, leave.incarnation
        log.info("event=%s worker=%s incarnation=%d", "failed" if leave.error else "left", worker, incarnation)
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
        for name, since in list(self._files.items()):
            if not salvaging:
                self._files[name] = now
            elif now - since > _SALVAGE_SECONDS:
                del self._files[name]
                sweep(name)
