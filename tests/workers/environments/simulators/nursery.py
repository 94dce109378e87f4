"""Simulators that count, for who kills them: a process that makes a new one, at once, for each line it is told.

    python -P -m tests.workers.environments.simulators.nursery FOLDER

In flow: lines `ADDRESS NAME LIFE`. Out flows: the process of each, a line each; in `FOLDER/LIFE` how many of its steps
it knows to have arrived. Step k of a life shows (life, k), earns k + 1, and is the last of its episode if k + 1 is a
multiple of `EPISODE`; of these every second one is cut.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from protocol.simulator.client import RunOver, Simulator

EPISODE = 7


def end_of(step: int) -> str:
    """How the episode ended with a step; empty: not at all."""
    if (step + 1) % EPISODE:
        return ""
    return "truncated" if (step + 1) // EPISODE % 2 else "terminated"


def live(address: str, name: str, life: int, folder: Path) -> None:
    """Plays until the run is over."""
    told = os.open(folder / str(life), os.O_WRONLY | os.O_CREAT)
    with Simulator(address, name, patience=120.0) as sim:
        step, reward = 0, 0.0
        while True:
            sim.act([float(life), float(step)], reward)
            if reward:  # that the last one went on was heard before this was answered
                os.pwrite(told, f"{step:9}".encode(), 0)
            step, reward = step + 1, float(step + 1)
            if end_of(step - 1):
                cut = end_of(step - 1) == "truncated"
                sim.end_episode(reward, truncated=cut, observation=[float(life), float(step)])
                reward = 0.0


def main(folder: Path) -> None:
    """Until there are no more lines."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in iter(sys.stdin.readline, ""):
        address, name, life = line.split()
        pid = os.fork()
        if not pid:
            try:
                live(address, name, int(life), folder)
            except RunOver:
                os._exit(0)
            os._exit(1)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
