"""A run as a user starts it, watched from outside while it goes on.

In flow: a configuration. Out flow: what its workers have counted, with the time, the processor seconds of each and the
memory of all.
"""

from __future__ import annotations

import json
import signal
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

from protocol.errors import Timeout, TrainingFault
from protocol.memory.shared_file import read_counters

_LOOKS = 0.1
"""Seconds between two looks at a run that is awaited."""
_END = 60.0
"""Seconds that a run has to end in."""


@dataclass(frozen=True, slots=True)
class Look:
    """One moment of a run."""

    at: float
    """Monotonic seconds."""
    counted: Mapping[str, float]
    """Totals over all workers and policies, by kind: `rows_trained` of `rows_trained.POLICY`."""
    least: float
    """Train steps of the policy that has fewest."""
    cpu: Mapping[str, float]
    """Processor seconds of each worker."""


class RunUnderTest:
    """A run in `folder`, under `popen`."""

    def __init__(self, popen: subprocess.Popen[bytes], folder: Path, output: Path) -> None:
        self._popen, self._folder, self._output = popen, folder, output
        self._tree = ProcessTree(popen.pid)

    @property
    def peak_pss(self) -> int:
        """Bytes."""
        return self._tree.peak_pss

    def look(self) -> Look:
        """Now; TrainingFault if the run has ended."""
        if self._popen.poll() is not None:
            raise TrainingFault("measured_run_ended", reason=self._output.read_text()[-400:].strip())
        cpu, totals, steps = self._tree.look(), Counter[str](), []
        at = time.monotonic()
        for path in sorted((self._folder / "counters").glob("[!.]*.[0-9]*")):
            for name, value in read_counters(path).items():
                kind = name.partition(".")[0]
                totals[kind] += value  # type: ignore[assignment] # seconds among whole numbers
                if kind == "train_steps":
                    steps.append(value)
        return Look(at, totals, min(steps, default=0.0), cpu)

    def warm(self, updates: int, seconds: float, patience: float) -> None:
        """Until every policy has made so many updates, and `seconds` more."""
        end = time.monotonic() + patience
        while self.look().least < updates:
            if time.monotonic() > end:
                raise Timeout("measured_run_too_slow", count=updates, seconds=patience)
            time.sleep(_LOOKS)
        time.sleep(seconds)

    def windows(self, count: int, seconds: float) -> list[Look]:
        """So many looks and one more, `seconds` apart."""
        looks = [self.look()]
        for _ in range(count):
            time.sleep(max(0.0, looks[-1].at + seconds - time.monotonic()))
            looks.append(self.look())
        return looks

    def end(self) -> None:
        """Stops it in order."""
        self._popen.send_signal(signal.SIGTERM)
        self._popen.wait(_END)

    def returns(self) -> dict[str, float]:
        """The first and the last that were told, the mean over policies; nothing if no episode has ended."""
        path = self._folder / "metrics.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []  # what is behind them is being written
        by_policy = ([of for of in json.loads(line).values() if isinstance(of, dict)] for line in lines)
        earned = [[of["return"] for of in policies if of.get("return") is not None] for policies in by_policy]
        told = [statistics.mean(returns) for returns in earned if returns]
        return {"return_first": told[0], "return_last": told[-1]} if told else {}


@contextmanager
def started(data: Mapping[str, Any], folder: Path, *options: str) -> Iterator[RunUnderTest]:
    """`rookery train` of the configuration `data`, which ends with the block at the latest."""
    folder.mkdir(parents=True)
    config, output = folder / "config.yaml", folder / "output.txt"
    config.write_text(yaml.safe_dump(dict(data)))
    command = [sys.executable, "-m", "launch", "train", str(config), "--run-dir", str(folder / "run"), "--no-progress"]
    with output.open("w") as stream:
        popen = subprocess.Popen([*command, *options], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        yield RunUnderTest(popen, folder / "run", output)
    finally:
        if popen.poll() is None:
            popen.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                popen.wait(_END)
        if popen.poll() is None:
            popen.kill()
            popen.wait()


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
