"""TensorBoard event files, in TensorBoard's own format (which needs neither torch nor TensorFlow).

In flow: scalars by name over agent steps. Out flow: one file, of whole records.
"""

from __future__ import annotations

import io
import itertools
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from workers.disk import AppendFile, Disk

__all__ = ["EventLog"]

_numbers = itertools.count()


class EventLog:
    """Scalars by name over agent steps."""

    def __init__(self, folder: Path, disk: Disk) -> None:
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
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        return self._file.append(record.getvalue())
