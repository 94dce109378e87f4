"""TensorBoard event files, in TensorBoard's own format (which needs neither torch nor TensorFlow).

In flow: scalars by name over agent steps. Out flow: one file, of whole records.
"""

from __future__ import annotations

import itertools
import os
import platform
import struct
import time
from collections.abc import Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary

from workers.runtime.files import AppendFile, SafeWriter

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
