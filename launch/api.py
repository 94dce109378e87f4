"""Behind `import rookery`: the run that `rookery train` makes, by the same workers, from a script or a notebook.

In flow: a preset's name or a file, and what to change. Out flow: how the run ended, and its folder.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

from rich.console import Console

from launch import config_loader, packages
from launch.cli.display import Display, Plain, Silent
from launch.local import supervisor
from launch.run_dir import folder_for
from protocol.errors import ConfigurationError
from protocol.errors.origin import is_ours

__all__ = ["TrainedRun", "load", "train"]


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """A run that is over: whether it reached its end, its `summary.json`, and where it lies."""

    complete: bool
    summary: dict[str, Any]
    folder: Path


def load(folder: Path | str) -> TrainedRun:
    """The run in `folder` as it ended; ConfigurationError if none has ended there."""
    folder = Path(folder).resolve()
    try:
        summary = json.loads((folder / "summary.json").read_text())
    except (OSError, ValueError):
        raise ConfigurationError("run_without_summary", file=folder) from None
    return TrainedRun(bool(summary.get("complete", True)), summary, folder)


def train(
    source: str | None = None,
    *,
    env: str | None = None,
    settings: Mapping[str, Any] | None = None,
    steps: int | None = None,
    seed: int | None = None,
    run_dir: Path | str | None = None,
    sequential: bool = False,
    progress: bool = True,
) -> TrainedRun:
    """Trains on this machine until the run ends, and shows its progress.

    `source`: a preset or a YAML file; `env`: an environment in place of its own, as `package.module:function`, which
    workers import from the working directory or what is installed, never from a notebook; `settings`: keys and values,
    as in {"policy.learning_rate": 0.001}. Raises ConfigurationError, or RunFailed, in one sentence.
    """
    _check_outside_of_workers(sys._getframe(1))
    logging.getLogger().addHandler(logging.NullHandler())  # what the supervisor has to say is told with the progress
    changes = [f"{key}={json.dumps(value)}" for key, value in (settings or {}).items()]
    packages.check()
    run = config_loader.load(source, changes, env=env, steps=steps, seed=seed)
    alone = sequential or run.multiprocessing.enabled is False
    folder = folder_for(source or env or "", None if run_dir is None else Path(run_dir), alone)
    console = Console(stderr=True)
    how = supervisor.train_sequential if alone else supervisor.train
    display = Silent(console)
    if progress:
        display = Display(console) if console.is_terminal or console.is_jupyter else Plain(console)
    with display:
        outcome = how(run, folder, display.show, display.tell)
    return TrainedRun(outcome.complete, outcome.summary, folder)


def _check_outside_of_workers(caller: FrameType) -> None:
    """ConfigurationError where a worker has called the user's code that calls `train`: it has imported the script that
    it finds its world in, and each of its own workers would do the same, for ever. The stack tells, as it is the only
    thing that a process which the user's code starts does not inherit."""
    for frame, _ in walk_stack(caller):
        if is_ours(frame.f_code.co_filename) and frame.f_globals["__name__"].startswith("workers."):
            raise ConfigurationError("train_in_worker", file=caller.f_code.co_filename, line=caller.f_lineno)
