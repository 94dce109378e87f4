"""A peer while it trains, watched from outside.

In flow: a command that trains until it is ended, whose worlds count their steps (stepping.py). Out flow: figures by
key, as `rookery bench pipeline` names them: environment steps a second, cores used, memory of all its processes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.peers.stepping import PLACE, SCORES
from tests.tools import ROOT
from workers.tools.bench.pipeline.run_under_test import ProcessTree

__all__ = ["LONGEST", "solved", "watched"]

_PATIENCE = 600.0
"""Seconds for a peer to begin."""
LONGEST = 1_800.0
"""Seconds that a return is awaited from the first step on."""
_LOOKS, _OFTEN = 0.2, 0.05
_END = 10.0


def watched(command: Sequence[str], windows: int, seconds: float, warm: float) -> dict[str, float]:
    """Medians of `windows` of so many `seconds`, `warm` seconds after the first step."""
    with _running(command) as run:
        tree = ProcessTree(run.popen.pid)
        while not run.steps():
            time.sleep(_LOOKS)
        time.sleep(warm)
        run.end += warm + windows * seconds * 2
        looks = [(time.monotonic(), run.steps(), sum(tree.look().values()))]
        for _ in range(windows):
            time.sleep(seconds)
            looks.append((time.monotonic(), run.steps(), sum(tree.look().values())))
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(looks)]
    cores = (looks[-1][2] - looks[0][2]) / (looks[-1][0] - looks[0][0])
    return {
        "env_steps_per_second": float(np.median(rates)),
        "cores": cores,
        "peak_pss_gib": tree.peak_pss / 2**30,
    }


def solved(command: Sequence[str], target: float) -> dict[str, float]:
    """Seconds until the mean return of the last episodes (`EPISODES`) is `target`, from the first step and from the
    start of the process; the environment steps until then."""
    with _running(command, scored=True) as run:
        begun = time.monotonic()
        while not run.steps():
            time.sleep(_OFTEN)
        first = time.monotonic()
        run.end = first + LONGEST
        while run.score() < target:
            time.sleep(_OFTEN)
        now = time.monotonic()
        return {"seconds": now - first, "seconds_from_start": now - begun, "env_steps": run.steps()}


@dataclass
class _Run:
    popen: subprocess.Popen[bytes]
    folder: Path
    end: float
    """Monotonic seconds: until when it may take."""

    def steps(self) -> int:
        """So far; RuntimeError if it has ended, or takes too long."""
        if self.popen.poll() is not None or time.monotonic() > self.end:
            said = (self.folder / "output.txt").read_text()[-2000:]
            raise RuntimeError(f"{self.popen.args!r} does not train; it said: {said}")
        # a file that a process has just made is still empty
        return sum(int(np.fromfile(path, np.int64).sum()) for path in (self.folder / "steps").iterdir())

    def score(self) -> float:
        """The mean return of the last episodes, of the process that has the lowest; -inf before any has ended."""
        self.steps()
        told = [np.fromfile(path) for path in (self.folder / "scores").iterdir()]
        return min((float(one[0]) for one in told if len(one)), default=-np.inf)  # one just made is still empty


@contextmanager
def _running(command: Sequence[str], scored: bool = False) -> Iterator[_Run]:
    with tempfile.TemporaryDirectory(prefix="peer-") as name:
        folder = Path(name)
        (folder / "steps").mkdir()
        (folder / "scores").mkdir()
        # importing PufferLib leaves a link where it is: a folder of its own, from which our modules are still found
        environment = {**os.environ, PLACE: str(folder / "steps"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        if scored:  # it costs a little
            environment[SCORES] = str(folder / "scores")
        with (folder / "output.txt").open("w") as stream:
            popen = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        try:
            yield _Run(popen, folder, time.monotonic() + _PATIENCE)
        finally:
            _end(popen)


def _end(popen: subprocess.Popen[bytes]) -> None:
    """The process and all below it, also those that would outlive it."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(popen.pid)
        everybody = [process, *process.children(recursive=True)]
        for one in everybody:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        psutil.wait_procs(everybody, timeout=_END)
    popen.wait()
