"""A peer while it trains, watched from outside.

In flow: a command that trains until it is ended, whose worlds count their steps (stepping.py). Out flow: figures by
key, as `rookery bench pipeline` names them: environment steps a second, cores used, memory of all its processes.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import psutil

from tests.benchmarks.peers.stepping import PLACE
from tests.tools import ROOT
from workers.bench.processes import Tree

__all__ = ["watched"]

_PATIENCE = 600.0
"""Seconds for a peer to begin."""
_LOOKS = 0.2
_END = 10.0


def watched(command: Sequence[str], windows: int, seconds: float, warm: float) -> dict[str, float]:
    """Medians of `windows` of so many `seconds`, `warm` seconds after the first step."""
    with tempfile.TemporaryDirectory(prefix="peer-") as name:
        folder = Path(name)
        (folder / "steps").mkdir()
        # importing PufferLib leaves a link where it is: a folder of its own, from which our modules are still found
        environment = {**os.environ, PLACE: str(folder / "steps"), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
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
            return _figures(popen, folder, windows, seconds, warm)
        finally:
            _end(popen)


def _figures(
    popen: subprocess.Popen[bytes], folder: Path, windows: int, seconds: float, warm: float
) -> dict[str, float]:
    tree, end = Tree(popen.pid), time.monotonic() + _PATIENCE

    def steps() -> int:
        if popen.poll() is not None or time.monotonic() > end:
            said = (folder / "output.txt").read_text()[-2000:]
            raise RuntimeError(f"{popen.args!r} does not train; it said: {said}")
        # a file that a process has just made is still empty
        return sum(int(np.fromfile(path, np.int64).sum()) for path in (folder / "steps").iterdir())

    while not steps():
        time.sleep(_LOOKS)
    time.sleep(warm)
    end += warm + windows * seconds * 2
    looks = [(time.monotonic(), steps(), sum(tree.look().values()))]
    for _ in range(windows):
        time.sleep(seconds)
        looks.append((time.monotonic(), steps(), sum(tree.look().values())))
    rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(looks)]
    cores = (looks[-1][2] - looks[0][2]) / (looks[-1][0] - looks[0][0])
    return {
        "env_steps_per_second": float(np.median(rates)),
        "cores": cores,
        "peak_pss_gib": tree.peak_pss / 2**30,
    }


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
