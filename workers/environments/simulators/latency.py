"""How long simulators wait for their actions: a histogram of fixed bins, from which quantiles are read.

In flow: seconds. Out flow: quantiles in microseconds, right to 6 %.
"""

from __future__ import annotations

import math

__all__ = ["Latency"]

_BINS_AN_OCTAVE = 12
_OCTAVES = 28
"""From 1 microsecond to more than 4 minutes."""


class Latency:
    """Of what came since the last look."""

    def __init__(self) -> None:
        self._bins = [0] * (_BINS_AN_OCTAVE * _OCTAVES)
        self._count = 0

    def add(self, seconds: float) -> None:
        """One more."""
        place = int(math.log2(max(seconds * 1e6, 1.0)) * _BINS_AN_OCTAVE)
        self._bins[min(place, len(self._bins) - 1)] += 1
        self._count += 1

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
