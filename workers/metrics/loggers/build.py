"""The loggers that a configuration names.

In flow: a run and its folder. Out flow: an outlet for each; a sentence where a package is missing.
"""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from workers.metrics.loggers.async_logger import AsyncLogger, Logger


def loggers_of(run: Run, folder: Path) -> list[AsyncLogger]:
    """An outlet for each of `run.loggers`; ConfigurationError where its package is not installed."""
    for name in run.loggers:
        if importlib.util.find_spec(name) is None:
            raise ConfigurationError("logger_not_installed", value=name, key="loggers")
    return [AsyncLogger(name, partial(_begin, name, run, folder)) for name in run.loggers]


def _begin(name: str, run: Run, folder: Path) -> Logger:
    from workers.metrics.loggers import mlflow, wandb  # here: they load what is large

    kinds: dict[str, Callable[[Run, Path, str], Logger]] = {"wandb": wandb.Wandb, "mlflow": mlflow.MLflow}
    return kinds[name](run, folder, _identity(folder))


def _identity(folder: Path) -> str:
    """By which a logger knows a run again whose coordinator comes back."""
    path = folder / "logger_id"
    if not path.exists():
        path.write_text(secrets.token_hex(8) + "\n")
    return path.read_text().strip()
