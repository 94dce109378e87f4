"""Where measurements of a run go, under the same names everywhere: workers/README.md has them.

In flow: scalars by name, twice a second. Out flows: `metrics.jsonl`, TensorBoard, the curves of the page, loggers.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.config.run import Run
from workers.metrics.history import History
from workers.metrics.loggers.build import loggers_of
from workers.metrics.tensorboard import TensorBoardWriter
from workers.runtime.files import AppendFile, SafeWriter


class MetricWriters:
    """Of one run, in its `folder`."""

    def __init__(self, run: Run, folder: Path, disk: SafeWriter) -> None:
        self._run, self._path = run, folder / "metrics.jsonl"
        self._loggers = loggers_of(run, folder)  # first: it may refuse
        self._events = TensorBoardWriter(folder / "tensorboard", disk)
        self._lines = AppendFile(self._path, disk)
        self.history = History()

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
        """One moment: what is known of each policy, what the run does a second, how far it is."""
        row: dict[str, Any] = {"time": time.time(), "env_steps": env_steps, "agent_steps": agent_steps, **rates}
        if not self._run.actors:
            row["rows_trained"] = made
        scalars = dict(rates)
        for name, policy in policies.items():
            kept = {k: v for k, v in policy.items() if k != "history" and v is not None}
            row[name] = kept
            scalars.update({f"{name}/{k}": float(v) for k, v in kept.items()})
        self._lines.append(json.dumps(row).encode() + b"\n")
        self.history.add(made, scalars)
        self._events.scalars(made, scalars)
        for logger in self._loggers:
            logger.scalars(made, scalars)

    def logger_stats(self) -> dict[str, dict[str, int]]:
        """Logger -> how many moments it took, and how many it missed."""
        return {one.name: {"written": one.written, "missed": one.missed} for one in self._loggers}

    def close(self, complete: bool) -> None:
        """Closes all; `complete`: the run reached its end."""
        self._lines.close()
        self._events.close()
        for logger in self._loggers:
            logger.close(complete)
