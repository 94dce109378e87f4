"""Which processes hang: they run, yet the coordinator has lost sight of them, and nothing else would end them.

In flows: the coordinator's view, the pids that run. Out flow: the pids to kill.
"""

from __future__ import annotations

import platform
from collections.abc import Set
from typing import Any

__all__ = ["Presence"]


class Presence:
    """Notes who is missing in the coordinator's table; a worker is hanging that is missing for `seconds`.

    Those that left in order are ending by themselves. While the coordinator is away, or the run drains, nobody hangs.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._heard: dict[int, float] = {}
        """pid -> when the coordinator heard of it last."""
        self._names: dict[int, tuple[str, int]] = {}
        self._absent: dict[int, float] = {}
        """pid -> since when it is missing."""

    def hanging(self, view: dict[str, Any], running: Set[int], now: float) -> list[tuple[int, float]]:
        """(pid, seconds since it was heard) of those that hang at `now`; `view` is {} while nothing is known."""
        if view.get("stage") != "running":
            self._absent.clear()
            return []
        here = platform.node()
        present = {worker["pid"]: worker for worker in view["workers"] if worker["host"] == here}
        for pid, worker in present.items():
            self._heard[pid] = now - worker["silent"]
            self._names[pid] = worker["name"], worker["incarnation"]
        left = {(name, incarnation) for name, incarnation in view["left"]}
        gone = {pid for pid in self._heard if pid not in present and self._names[pid] not in left and pid in running}
        self._absent = {pid: self._absent.get(pid, now) for pid in gone}
        for pid in [pid for pid in self._heard if pid not in present and pid not in running]:
            del self._heard[pid], self._names[pid]  # its number may be given to another process
        return [(pid, now - self._heard[pid]) for pid, since in self._absent.items() if now - since >= self.seconds]
