"""Where measurements of a run go, under the same names everywhere: launch/docs/reference/measures.md has them.

In flow: scalars by name, twice a second. Out flows: `metrics.jsonl`, TensorBoard (in its own
format, which needs neither torch nor TensorFlow), the curves of the page, the loggers that the configuration names.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import platform
import secrets
import struct
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from protocol.config.run import Run
from protocol.errors import ConfigurationError
from workers.metrics.history import History
from workers.metrics.loggers.async_logger import AsyncLogger, Logger
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


_numbers = itertools.count()
_CASTAGNOLI = 0x82F63B78


class TensorBoardWriter:
    """Scalars by name over agent steps."""

    def __init__(self, folder: Path, disk: SafeWriter) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{int(time.time()):010d}.{platform.node()}.{os.getpid()}.{next(_numbers)}"
        self._file = AppendFile(folder / name, disk)
        self._begun = self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes all `values` for agent step `step`."""
        self._begun = self._begun or self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=entries)))

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def _write(self, event: Event) -> bool:
        return self._file.append(_record(event.SerializeToString()))


def _record(data: bytes) -> bytes:
    """`data` as TensorBoard reads it: length, its checksum, data, their checksum. TensorBoard's own writer says the
    same and takes a tenth of a second to import, which a coordinator that comes back after its death has not."""
    length = struct.pack("<Q", len(data))
    return b"".join((length, _checksum(length), data, _checksum(data)))


def _table() -> list[int]:
    table = []
    for remainder in range(256):
        crc = remainder
        for _ in range(8):
            crc = (crc >> 1) ^ (_CASTAGNOLI if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _table()


def _checksum(data: bytes) -> bytes:
    """CRC-32C (RFC 3720, appendix B.4), rotated and shifted as in the TFRecord format."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ _TABLE[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
