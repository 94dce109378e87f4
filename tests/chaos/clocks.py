"""The clocks of a run under faults: the time that Python in each of its processes is told, which can be made to jump.

In flow: `ROOKERY_CLOCKS`, a folder; `install()` is called when Python starts and puts a page there, by its pid. Out
flow: from `jump()` on, that process is told another time. The clock of the machine is never touched.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

__all__ = ["VARIABLE", "install", "jump"]

VARIABLE = "ROOKERY_CLOCKS"
_SECONDS = struct.Struct("d")
_MONOTONIC, _WALL = 0, _SECONDS.size
_Time = TypeVar("_Time", int, float)


def install() -> None:
    """Puts this process's clocks into hands from outside, if they are to be. Before anything that keeps a clock."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        return

    def page_of_its_own() -> None:
        with (Path(folder) / str(os.getpid())).open("w+b") as stream:
            stream.truncate(2 * _SECONDS.size)
            pages[:] = [mmap.mmap(stream.fileno(), 0)]

    pages: list[mmap.mmap] = []
    page_of_its_own()
    os.register_at_fork(after_in_child=page_of_its_own)
    for name, at in (("monotonic", _MONOTONIC), ("time", _WALL)):
        setattr(time, name, _shifted(getattr(time, name), pages, at, 1.0))
        setattr(time, f"{name}_ns", _shifted(getattr(time, f"{name}_ns"), pages, at, 1e9))


def jump(folder: Path, pid: int, forward: float, wall: float) -> bool:
    """The monotonic clock of a process leaps `forward` seconds, as after a sleep of its machine, and its wall clock by
    `wall` seconds to either side, as by NTP. False: it has no page yet."""
    try:
        with (folder / str(pid)).open("r+b", buffering=0) as stream:
            now = stream.read(2 * _SECONDS.size)
            for at, seconds in ((_MONOTONIC, forward), (_WALL, wall)):
                os.pwrite(stream.fileno(), _SECONDS.pack(_SECONDS.unpack_from(now, at)[0] + seconds), at)
    except (FileNotFoundError, struct.error):
        return False
    return True


def _shifted(plain: Callable[[], _Time], pages: list[mmap.mmap], at: int, unit: float) -> Callable[[], _Time]:
    def told() -> _Time:
        now = plain()
        return now + type(now)(_SECONDS.unpack_from(pages[0], at)[0] * unit)

    return told
