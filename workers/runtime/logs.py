"""A worker's log: one file of lines for people, one of JSON objects for programs, or both, and neither grows for ever.

In flow: log records, whose messages are `event=… key=value …`. Out flow: `<worker>.log`, `<worker>.jsonl` in the run's
folder, each kept in three older parts of `log_mebibytes`; stderr for who is started by hand.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

from protocol.config.run import Run

_FORMAT = "%(asctime)s - {name} - %(levelname)s - %(message)s"
SHOWN = {"shown": True}
"""`extra` of a line that stderr has no need of: whoever logs it says the same there in words."""
_PARTS = 3
_KEY = re.compile(r"(?:^|\s)([a-z][a-z0-9_]*)=")
_RATES = ("env_steps", "agent_steps", "steps_made.", "rows_received.", "rows_trained.")
"""Counters that are told a second; a name that ends with a dot is one for each policy."""


class Json(logging.Formatter):
    """One JSON object a line: time (seconds since 1970), worker, level, and what the message says."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def format(self, record: logging.LogRecord) -> str:
        """`record` as a line."""
        told: dict[str, object] = {"time": round(record.created, 6), "worker": self._name, "level": record.levelname}
        told |= facts(record.getMessage())
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told)


class _Lossy(logging.Handler):
    """Loses lines on a full disk, and no more than that."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's own name
        """A line that could not be written; the coordinator, or a checkpoint, tells of the disk."""


class _File(_Lossy, RotatingFileHandler):
    pass


class _Stderr(_Lossy, logging.StreamHandler[TextIO]):
    pass


def configure_logging(name: str, run: Run | None = None, folder: Path | None = None) -> None:
    """Sends logs of the worker `name` to files in the run's `folder`, if that is to be seen and the run wants them, and
    to stderr unless a supervisor watches the terminal."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    for old in list(root.handlers):
        root.removeHandler(old)
        old.close()
    handlers: list[tuple[logging.Handler, logging.Formatter]] = []
    lines = logging.Formatter(_FORMAT.format(name=name))
    if run is not None and folder is not None and run.logging:
        place = folder / run.log_dir
        place.mkdir(parents=True, exist_ok=True)
        if run.log_format != "json":
            handlers.append((_file(place / f"{name}.log", run), lines))
        if run.log_format != "text":
            handlers.append((_file(place / f"{name}.jsonl", run), Json(name)))
    if "ROOKERY_PARENT" not in os.environ or not handlers:
        shown = _Stderr()
        shown.addFilter(lambda record: not hasattr(record, "shown"))
        handlers.append((shown, lines))
    for handler, formatter in handlers:
        handler.setFormatter(formatter)
        root.addHandler(handler)


def facts(message: str) -> dict[str, object]:
    """The keys and values of `event=… key=value …`; numbers are numbers. What has no keys is `message`."""
    found = list(_KEY.finditer(message))
    if not found or found[0].start() > 0:
        return {"message": message}
    ends = [match.start() for match in found[1:]] + [len(message)]
    told: dict[str, object] = {}
    for match, end in zip(found, ends, strict=True):
        told.setdefault(match[1], _value(message[match.end() : end].strip()))
    return told


def rates(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> str:
    """What a worker did and waited for between two looks at its counters: counts a second, waits as parts of the time;
    empty if it did nothing."""
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    told = [
        f"{name.replace('.', '_per_second.', 1) if '.' in name else f'{name}_per_second'}={grown[name] / seconds:.6g}"
        for name in grown
        if grown[name] and name.startswith(_RATES)
    ]
    told += [f"{name}={grown[name] / seconds:.3f}" for name in grown if grown[name] and name.startswith("waits.")]
    return " ".join(told)


def _file(path: Path, run: Run) -> logging.Handler:
    return _File(path, maxBytes=run.log_mebibytes << 20, backupCount=_PARTS)


def _value(text: str) -> object:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text.removeprefix('"').removesuffix('"')
