"""How long simulators wait for their actions: a histogram of fixed bins, from which quantiles are read.

In flow: seconds. Out flows: quantiles in microseconds, right to 6 %; totals.
"""

from __future__ import annotations

import bisect
import itertools
import math

__all__ = ["WITHIN", "Latency"]

WITHIN = {"acts_1ms": 0.001, "acts_10ms": 0.01, "acts_100ms": 0.1, "acts_1s": 1.0, "acts": math.inf}
"""Of a histogram that is never reset: names, and seconds."""
_EDGES = [*WITHIN.values()]

_BINS_AN_OCTAVE = 12
_OCTAVES = 28
"""From 1 microsecond to more than 4 minutes."""


class Latency:
    """Of what came since the last look; and how many of all there ever were came within which time."""

    def __init__(self) -> None:
        self._within = [0] * len(WITHIN)
        self._bins = [0] * (_BINS_AN_OCTAVE * _OCTAVES)
        self._count = 0

    def add(self, seconds: float) -> None:
        """One more."""
        place = int(math.log2(max(seconds * 1e6, 1.0)) * _BINS_AN_OCTAVE)
        self._bins[min(place, len(self._bins) - 1)] += 1
        self._count += 1
        self._within[bisect.bisect_left(_EDGES, seconds)] += 1

    @property
    def counts(self) -> dict[str, float]:
        """By name in `WITHIN`: all that took so long at most."""
        return dict(zip(WITHIN, itertools.accumulate(self._within), strict=True))

    def take(self, *shares: float) -> list[float]:
        """Microseconds below which these shares lie, and forgets all; empty if there is nothing."""
        if not self._count:
            return []
        found, seen, place = [], 0, -1
        for share in sorted(shares):
            while seen < share * self._count and place + 1 < len(self._bins):
                place += 1
                seen += self._bins[place]
            found.append(2.0 ** ((place + 1) / _BINS_AN_OCTAVE))
        self._bins = [0] * len(self._bins)
        self._count = 0
        return found
