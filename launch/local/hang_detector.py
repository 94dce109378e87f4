"""Which processes hang: they run, yet the coordinator has lost sight of them, and nothing else would end them.

In flows: the coordinator's view, the processes that run. Out flow: the pids to kill.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LONGEST_LOOK = 1.0


def joined(view: Mapping[str, Any], running: Mapping[int, str]) -> dict[int, dict[str, Any]]:
    """pid -> its row in the table of workers, of those of `running` (pid -> mark) that are in it. Anybody may join with
    the pid of another, and none of its token."""
    return {one["pid"]: one for one in view["workers"] if running.get(one["pid"]) == one["process"]}


class HangDetector:
    """Notes who is missing in the coordinator's table; a worker is hanging that is missing for `seconds`.

    Who never came in `to_join` seconds hangs as well. Those that left in order are ending by themselves. While the
    coordinator is away, or the run drains, nobody hangs.
    """

    def __init__(self, seconds: float, to_join: float) -> None:
        self.seconds, self._to_join = seconds, to_join
        self._new: dict[int, float] = {}
        """pid -> since when it runs, of those that were not heard of."""
        self._heard: dict[int, float] = {}
        """pid -> when the coordinator heard of it last."""
        self._names: dict[int, tuple[str, int]] = {}
        self._absent: dict[int, float] = {}
        """pid -> since when it is missing."""

    def hanging(self, view: dict[str, Any], running: Mapping[int, str], now: float) -> list[tuple[int, float]]:
        """(pid, seconds since it was heard, or started) of those that hang at `now`, of those that run, with their
        marks; `view` is {} while nothing is known."""
        self._new = {pid: self._new.get(pid, now) for pid in running.keys() - self._heard.keys()}
        if view.get("stage") != "running":
            self._absent.clear()
            self._new.clear()
            return []
        present = joined(view, running)
        for pid, worker in present.items():
            self._heard[pid] = now - worker["silent"]
            self._names[pid] = worker["name"], worker["incarnation"]
        left = {(name, incarnation) for name, incarnation in view["left"]}
        gone = {pid for pid in self._heard if pid not in present and self._names[pid] not in left and pid in running}
        self._absent = {pid: self._absent.get(pid, now) for pid in gone}
        for pid in [pid for pid in self._heard if pid not in present and pid not in running]:
            del self._heard[pid], self._names[pid]  # its number may be given to another process
        hanging = [(pid, now - self._heard[pid]) for pid, since in self._absent.items() if now - since >= self.seconds]
        late = {pid: now - since for pid, since in self._new.items() if pid not in self._heard}
        return hanging + [(pid, seconds) for pid, seconds in late.items() if seconds >= self._to_join]


class SilenceWatch:
    """For how long a process has said nothing, in time in which its supervisor looked: if that was stopped it cannot
    tell."""

    def __init__(self) -> None:
        self._heard_at = self._looked_at = self._seconds = 0.0

    def poll(self, heard_at: float, now: float) -> float:
        """Seconds, at `now`, if it was heard last at `heard_at`."""
        elapsed, self._looked_at = min(now - self._looked_at, _LONGEST_LOOK), now
        self._seconds = self._seconds + elapsed if heard_at == self._heard_at else 0.0
        self._heard_at = heard_at
        return self._seconds
