"""What acting costs beside what it acts in and with.

Out flow: figures by key. See loop.py, overlap.py, herd.py and adapters.py for what each is.
"""

from __future__ import annotations

from workers.bench.adapters import overhead
from workers.bench.herd import herd
from workers.bench.loop import loop
from workers.bench.overlap import overlap

__all__ = ["measure"]


def measure(rounds: int) -> dict[str, float]:
    """All figures, from `rounds` interleaved pairs where there are pairs."""
    return {**loop(rounds), **overlap(), **herd(), **overhead(rounds)}
