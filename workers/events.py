"""TensorBoard event files, written with TensorBoard's own writer (which needs neither torch nor TensorFlow)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

__all__ = ["EventLog"]


class EventLog:
    """Scalars by name over agent steps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = EventFileWriter(str(folder))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Writes all `values` for agent step `step`."""
        entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=entries)))

    def close(self) -> None:
        """Writes out what is buffered."""
        self._writer.close()
