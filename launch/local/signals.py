"""Ctrl-C, SIGTERM, a terminal that is gone and a sweep that died: once to end in order, twice to end now.

In flow: signals, or a program that asks for the same. Out flow: how often one came, and how long those that are to end
are waited for.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from types import FrameType
from typing import Any

END_SECONDS = 20.0
"""From an interrupt until those that still run are killed."""
_KILL_SECONDS = 1.5


class Interrupt:
    """Notes signals while it is entered, in the main thread. Handlers only take note."""

    def __init__(self) -> None:
        self.count = 0
        self.first_at = 0.0
        self._woken = self._wakes = -1
        self._old: dict[int, Any] = {}
        parent = os.getppid()
        self._parent = parent if os.environ.get("ROOKERY_PARENT") == str(parent) else 0
        """Who has started this, as a sweep starts runs: its death is a signal too."""
        self._open = threading.Lock()
        """Held while a descriptor is used or closed that another thread may write to."""

    def __enter__(self) -> Interrupt:
        self._woken, self._wakes = os.pipe()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # nohup: it is to outlive its terminal
                self._old[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        with self._open:
            os.close(self._woken)
            os.close(self._wakes)
            self._wakes = -1

    def ask(self) -> None:
        """What a signal does, from any thread."""
        with self._open:
            self._note()

    def sleep(self, seconds: float) -> None:
        """So long at most: a signal ends it."""
        if select.select([self._woken], [], [], seconds)[0]:
            os.read(self._woken, 1)
        if self._parent and not self.count and os.getppid() != self._parent:
            self.ask()

    def _note(self, _number: int = 0, _frame: FrameType | None = None) -> None:
        self.first_at = self.first_at or time.monotonic()
        self.count += 1
        if self._wakes >= 0:
            os.write(self._wakes, b"!")

    def patience(self, usual: float) -> float:
        """Seconds that workers are given to end."""
        if self.count > 1:
            return _KILL_SECONDS
        return (
            usual if not self.count else max(_KILL_SECONDS, min(usual, self.first_at + END_SECONDS - time.monotonic()))
        )
