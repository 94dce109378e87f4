"""Runs within this process, and what the policies of a finished run earn with exploration off: 100 episodes with seeds
of their own."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.config.run import Run
from workers.runtime.process import lock_run_folder
from workers.sequential import Sequential
from workers.tools.evaluate import evaluate

EPISODES, SEED = 100, 20_000


def make_run(run: Run, folder: Path) -> None:
    """The whole of `run` in this process, as `--sequential` makes it."""
    lock = lock_run_folder(run, folder)
    sequential = Sequential(run, folder)
    sequential.finish(sequential.run())
    os.close(lock)


def greedy_returns(folder: Path) -> dict[str, float]:
    """policy -> mean return of the newest checkpoints in `folder`, which do the likeliest thing, in the run's world."""
    lines = evaluate(folder, EPISODES, SEED)
    assert len({line["environment"] for line in lines}) == 1
    return {line["policy"]: line["mean"] for line in lines}
