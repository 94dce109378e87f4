"""What goes on beside the faults that are thrown: those that last, each with its end, and those that wait for a worker.

In flow: the beginning of each. Out flow: its end, in time or at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.plan import Fault

__all__ = ["Awaited", "Lasting"]


@dataclass
class Awaited:
    """A fault for the next worker of `role` that is none of the `known` ones; `due` once it is there."""

    fault: Fault
    role: str
    known: set[int]
    due: float = 0.0


class Lasting:
    """By name. A disk that does not answer does so again before anything else on it is undone."""

    def __init__(self) -> None:
        self._ends: dict[str, tuple[float, Callable[[], None]]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._ends

    def add(self, name: str, seconds: float, end: Callable[[], None]) -> None:
        """It began, or shall last longer than it was to."""
        self._ends[name] = time.monotonic() + seconds, end

    def undo(self, *, everything: bool = False) -> None:
        """Ends what lasted long enough, or all of it."""
        now = time.monotonic()
        for name in sorted(self._ends, key=lambda name: name != "slow_disk"):
            late = everything or self._ends[name][0] <= now
            if late and not (name == "full_disk" and "slow_disk" in self):
                self._ends.pop(name)[1]()
