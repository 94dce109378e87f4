"""How long work takes on a device: on the CPU the time of this thread's processor, of which neighbours on the machine
take none; elsewhere that of the clock, with nothing left to be done.

In flow: pieces of work. Out flow: seconds of each, measured in turn.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of one go."""
    if device.type == "cpu":
        started = time.thread_time()
        work()
        return time.thread_time() - started
    torch.cuda.synchronize(device)
    started = time.perf_counter()
    work()
    torch.cuda.synchronize(device)
    return time.perf_counter() - started


_WARM = 12
"""Goes before any counts on a GPU, in which graphs are recorded, and a learner looks closely at its first batches."""


def medians(works: Mapping[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Of `rounds` goes of each, one after the other, again and again."""
    for _ in range(_WARM if device.type == "cuda" else 1):
        for work in works.values():
            work()
    taken: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            taken[name].append(seconds(work, device))
    return {name: statistics.median(times) for name, times in taken.items()}
