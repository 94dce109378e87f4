"""Sends spoilt messages to the ends of the wire and looks at what they cost.

`python -m tests.fuzz --count 1000000 --seed 1` is the long form (`make fuzz`); tests/fuzz/test_fuzz.py the short one.
"""

from __future__ import annotations

import logging
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import Mutator
from tests.fuzz.targets import Ends

__all__ = ["Broken", "Result", "fuzz"]

_FIRST = 0.1
"""Part of a run after which memory must not grow any more."""


class Broken(AssertionError):
    """Something other than a RookeryError came out."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run did."""

    count: int
    seconds: float
    slowest: float
    """Processor seconds of this thread that the most expensive message took."""
    growth: int
    """Bytes by which the peak of resident memory rose after the first tenth."""

    def __str__(self) -> str:
        return (
            f"{self.count} messages in {self.seconds:.1f} s, {self.count / self.seconds:.0f} a second; "
            f"the slowest took {self.slowest * 1e3:.1f} ms; {self.growth / 2**20:.1f} MiB more memory after a tenth"
        )


def fuzz(count: int, seed: int, progress: Callable[[int], None] = lambda _: None) -> Result:
    """Sends `count` messages made from `seed`; Broken, with what repeats it, for the first that harms an end."""
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as folder:
        ends = Ends(Path(folder))
        try:
            return _run(ends, Mutator(seed, ends.ring_name), count, seed, progress)
        finally:
            ends.close()
            logging.disable(logging.NOTSET)


def _run(ends: Ends, mutator: Mutator, count: int, seed: int, progress: Callable[[int], None]) -> Result:
    started, slowest, peak = time.perf_counter(), 0.0, 0
    for number in range(count):
        frames = mutator.message() if number % 20 else [mutator.noise()]
        way = ends.ways[number % len(ends.ways)]
        before = time.thread_time()
        try:
            way(frames)
        except Exception as fault:
            shown = [bytes(frame).hex() for frame in frames]
            told = f"seed {seed}, message {number} to the {way.__name__}: {fault!r}; its frames {shown}"
            raise Broken(told) from fault
        slowest = max(slowest, time.thread_time() - before)
        if number == int(count * _FIRST):
            peak = _peak()
        if number % 50_000 == 0:
            progress(number)
    return Result(count, time.perf_counter() - started, slowest, _peak() - peak)


def _peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
