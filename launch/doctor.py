"""The short run that `rookery doctor` looks at: the same workers as in any other, for some seconds.

In flow: a configuration. Out flow: the run's folder, whatever became of the run.
"""

from __future__ import annotations

from pathlib import Path

from launch import local
from launch.console import Silent
from protocol.config import Run

__all__ = ["short_run"]


def short_run(run: Run, folder: Path, display: Silent) -> None:
    """Trains `run` in `folder`; a worker that cannot be kept alive is told, and is a finding like any other.
    ConfigurationError if nothing could begin."""
    how = local.train_sequential if run.multiprocessing.enabled is False else local.train
    with display:
        try:
            how(run, folder, lambda _view: None, display.tell)
        except local.RunFailed as fault:
            display.tell(str(fault))
