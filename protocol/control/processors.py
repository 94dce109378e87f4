"""The processors that this process may use."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

GROUP = Path("/sys/fs/cgroup")
"""Of the control group of this process."""


def available_cores() -> float:
    """Cores that this process may use: its affinity, or less where a control group says so."""
    return min(float(len(affinity())), quota())


def affinity() -> set[int]:
    """Numbers of the processors that it may run on."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {*range(os.cpu_count() or 1)}


def quota() -> float:
    """How many its control group has at a time."""
    with suppress(OSError, ValueError):
        most, period = (GROUP / "cpu.max").read_text().split()
        return math.inf if most == "max" else int(most) / int(period)
    return math.inf
