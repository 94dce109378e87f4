"""What people may ask of a run while it goes on. Written by the page's threads, read by the coordinator's loop."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from workers.coordination.roster import Roster

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Controls:
    """`stopping`: set once the run is to end early, in order."""

    stopping: threading.Event
    roster: Roster
    paused: bool = False
    """Actors make no steps; learners use what they have."""
    checkpoints: int = 0
    """How often checkpoints were asked for."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def checkpoint(self) -> None:
        """Every learner writes one now."""
        with self._lock:
            self.checkpoints += 1
        log.info("event=checkpoint_asked by=page")

    def pause(self) -> None:
        """Actors wait."""
        self.paused = True
        log.info("event=paused by=page")

    def resume(self) -> None:
        """Actors go on."""
        self.paused = False
        log.info("event=resumed by=page")

    def stop(self) -> None:
        """The run ends in order, incomplete."""
        self.stopping.set()
        log.info("event=stop_asked by=page")
