"""What a run in one process has around it: the order to stop, who shows it, who sees whether its loop turns.

In flow: signals, ticks of the loop, live views. Out flow: whole lines of JSON, an empty one for a sign of life. Who
does not read them misses some, and holds nobody up.
"""

from __future__ import annotations

import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from protocol.config.run import Run
from workers.runtime.health import Health
from workers.runtime.metric_names import Identity
from workers.runtime.process import StopRequested
from workers.runtime.watchdog import run_watchdog, turn_seconds

_STOP_SECONDS = 10.0
"""That a turn may go on when the run is to stop, or half as long as it is waited for."""


@dataclass(slots=True)
class SoleProcess:
    """It is no member of anything."""

    vitals: Health = field(default_factory=lambda: Health(Identity(role="sequential")))
    stopping: threading.Event = field(default_factory=threading.Event)
    rescue: Callable[[], None] = lambda: None
    """Keeps what can be kept before a loop that hangs is ended."""
    _views: int = -1
    _rest: bytes = b""
    """Of a line that there was no room for."""
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _going_on_at: float = 0.0

    def take_stdout(self) -> None:
        """Shows the run there. What the user's code prints goes where errors go."""
        self._views = os.dup(1)
        os.dup2(2, 1)
        if stat.S_ISFIFO(os.fstat(self._views).st_mode):
            os.set_blocking(self._views, False)

    def watch(self, run: Run) -> None:
        """From now on a loop that makes no turn for as long as an actor's may, or does not end when it is to, ends this
        process, after its `rescue`."""
        stop_seconds = min(_STOP_SECONDS, run.learner_timeout / 2)
        arguments = (
            self.vitals,
            turn_seconds(run),
            threading.Event(),
            self._say_farewell,
            lambda: self._look(stop_seconds),
        )
        threading.Thread(target=run_watchdog, args=arguments, name="watchdog", daemon=True).start()

    def rest(self) -> None:
        """The loop has ended."""
        self.vitals.bind(lambda: "ending", None)
        self.vitals.idle()

    def stop(self, *_: object) -> None:
        """Ends at the next turn; safe in a signal handler."""
        self.stopping.set()

    def tick(self) -> None:
        """Once a turn of what need not be finished; raises Stop."""
        self.vitals.tick()
        if self.stopping.is_set():
            raise StopRequested

    def show(self, view: Mapping[str, Any] | None = None) -> None:
        """Shows the run, or that this process lives; if nobody is left to see it, the run is to stop."""
        line = b"\n" if view is None else json.dumps(view).encode() + b"\n"
        with self._writing, suppress(OSError):  # no room, and the line is left out; or the user's code has closed it
            try:
                self._rest = self._rest[os.write(self._views, self._rest) :] if self._rest else b""
                if not self._rest:
                    self._rest = line[os.write(self._views, line) :]
            except BrokenPipeError:
                self.stopping.set()

    def _say_farewell(self, _error: str) -> None:
        self.rescue()

    def _look(self, stop_seconds: float) -> float:
        self.show()
        now = time.monotonic()
        if not self.stopping.is_set():
            self._going_on_at = now
        return stop_seconds if now - self._going_on_at >= stop_seconds else math.inf
