"""Sends spoilt messages to the ends of the wire, has spoilt files read, and looks at what they cost.

`python -m tests.fuzz --count 1000000 --seed 1` is the long form (`make fuzz`); tests/fuzz/test_fuzz.py the short one.
"""

from __future__ import annotations

import gc
import itertools
import logging
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.fuzz.documents import Documents
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
    """Processor seconds of this thread that the most expensive one took."""
    growth: int
    """Bytes by which the peak of resident memory rose after the first tenth."""

    def __str__(self) -> str:
        return (
            f"{self.count} in {self.seconds:.1f} s, {self.count / self.seconds:.0f} a second; "
            f"the slowest took {self.slowest * 1e3:.1f} ms; {self.growth / 2**20:.1f} MiB more memory after a tenth"
        )


def fuzz(count: int, seed: int, progress: Callable[[int], None] = lambda _: None, files: bool = False) -> Result:
    """Sends `count` messages made from `seed`, or has as many `files` read; Broken, with what repeats it, for the first
    that does harm."""
    logging.disable(logging.CRITICAL)
    memory = Path("/dev/shm") if files and Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as folder, ExitStack() as stack:
        stack.callback(logging.disable, logging.NOTSET)
        stack.callback(gc.unfreeze)
        if files:
            return _run(_reading(Documents(Path(folder), Mutator(seed))), count, seed, progress)
        ends = Ends(Path(folder))
        stack.callback(ends.close)
        return _run(_sending(ends, Mutator(seed, ends.ring_name)), count, seed, progress)


Turns = Iterator[tuple[Callable[[], None], Callable[[], str]]]
"""What to do, and what to show of it where it went wrong."""


def _sending(ends: Ends, mutator: Mutator) -> Turns:
    for number in itertools.count():
        frames = mutator.message() if number % 20 else [mutator.noise()]
        way = ends.ways[number % len(ends.ways)]
        yield partial(way, frames), partial(_shown, way, frames)


def _shown(way: Callable[..., None], frames: list[bytes]) -> str:
    return f"to the {way.__name__}; its frames {[bytes(frame).hex() for frame in frames]}"


def _reading(documents: Documents) -> Turns:
    for number in itertools.count():
        way = documents.ways[number % len(documents.ways)]
        yield way, partial("of {}".format, way.__name__)


def _run(turns: Turns, count: int, seed: int, progress: Callable[[int], None]) -> Result:
    gc.collect()
    gc.freeze()  # else a message may pay for a collection of all that this process ever made
    started, slowest, peak = time.perf_counter(), 0.0, 0
    for number, (turn, shown) in enumerate(itertools.islice(turns, count)):
        before = time.thread_time()
        try:
            turn()
        except Exception as fault:
            raise Broken(f"seed {seed}, number {number} {shown()}: {fault!r}") from fault
        slowest = max(slowest, time.thread_time() - before)
        if number == int(count * _FIRST):
            peak = _peak()
        if number % 50_000 == 0:
            progress(number)
    return Result(count, time.perf_counter() - started, slowest, _peak() - peak)


def _peak() -> int:
    """Bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
