"""The processes of a run as the system counts them: processor seconds by worker, and memory of them all.

In flow: the number of the process that was started. Out flow: seconds by the name of each worker; bytes.
"""

from __future__ import annotations

from contextlib import suppress

import psutil

_ROLES = ("actor", "learner", "coordinator", "relay", "sequential")


class ProcessTree:
    """`pid` and everything below it."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._names: dict[int, str] = {pid: "launcher"}
        self.peak_pss = 0
        """Bytes: the greatest sum of proportional set sizes that was seen; shared memory is in it, once."""

    def look(self) -> dict[str, float]:
        """Processor seconds so far of each living worker; memory is noted."""
        seconds: dict[str, float] = {}
        pss = 0
        for process in (self._root, *self._root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
                times = process.cpu_times()
                name = self._name(process)
                seconds[name] = seconds.get(name, 0.0) + times.user + times.system
                pss += process.memory_full_info().pss
        self.peak_pss = max(self.peak_pss, pss)
        return seconds

    def _name(self, process: psutil.Process) -> str:
        name = self._names.get(process.pid)
        if name is None:
            words = " ".join(process.cmdline())
            name = next((role for role in _ROLES if f"workers.{role}" in words), "other")
            if name != "other":  # which may be a worker in a moment
                self._names[process.pid] = name
        return name
