"""Where measurements of a run go, under the same names everywhere: workers/README.md has them.

In flow: scalars by name, twice a second. Out flows: `metrics.jsonl`, TensorBoard, the curves of the page, the loggers
that the configuration names.
"""

from __future__ import annotations

import importlib.util
import json
import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from workers.metrics.history import History
from workers.metrics.loggers.async_logger import AsyncLogger, Logger
from workers.metrics.tensorboard import TensorBoardWriter
from workers.runtime.files import AppendFile, SafeWriter

_SIZE = 32 << 20
"""Bytes of `metrics.jsonl` after each of which moments are written half as often: a year of them fits on a disk."""


class MetricWriters:
    """Of one run, in its `folder`."""

    def __init__(self, run: Run, folder: Path, disk: SafeWriter) -> None:
        self._run, self._path = run, folder / "metrics.jsonl"
        self._loggers = loggers_of(run, folder)  # first: it may refuse
        self._events = TensorBoardWriter(folder / "tensorboard", disk)
        self._lines = AppendFile(self._path, disk)
        self.history = History()
        self._moments = 0
        self._unwritten: Callable[[], object] = bool
        """Writes the newest moment, if that was passed over."""

    def go_on(self) -> None:
        """After an earlier coordinator of this run."""
        self.history.read(self._path)

    def write(
        self,
        policies: Mapping[str, Mapping[str, Any]],
        rates: Mapping[str, float],
        env_steps: int,
        agent_steps: int,
        made: int,
    ) -> None:
        """One moment: what is known of each policy, what the run does a second, how far it is. Curves and loggers have
        all of them, files ever fewer, and the last."""
        row: dict[str, Any] = {"time": time.time(), "env_steps": env_steps, "agent_steps": agent_steps, **rates}
        if not self._run.actors:
            row["rows_trained"] = made
        scalars = dict(rates)
        for name, policy in policies.items():
            kept = {k: v for k, v in policy.items() if k != "history" and v is not None}
            row[name] = kept
            scalars.update({f"{name}/{k}": float(v) for k, v in kept.items()})
        self.history.add(made, scalars)
        for logger in self._loggers:
            logger.scalars(made, scalars)
        self._moments, self._unwritten = self._moments + 1, partial(self._keep, row, made, scalars)
        if self._moments % 2 ** (self._lines.size // _SIZE) == 0:
            self._unwritten()

    def _keep(self, row: dict[str, Any], made: int, scalars: Mapping[str, float]) -> None:
        self._lines.append(json.dumps(row).encode() + b"\n")
        self._events.scalars(made, scalars)
        self._unwritten = bool

    def logger_stats(self) -> dict[str, dict[str, int]]:
        """Logger -> how many moments it took, and how many it missed."""
        return {one.name: {"written": one.written, "missed": one.missed} for one in self._loggers}

    def close(self, complete: bool) -> None:
        """Closes all; `complete`: the run reached its end."""
        self._unwritten()
        self._lines.close()
        self._events.close()
        for logger in self._loggers:
            logger.close(complete)


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
