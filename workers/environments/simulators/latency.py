"""How long simulators wait for their actions: a histogram of fixed bins, from which quantiles are read.

In flow: seconds. Out flows: quantiles in microseconds, right to 6 %; totals.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

WITHIN = {"acts_1ms": 0.001, "acts_10ms": 0.01, "acts_100ms": 0.1, "acts_1s": 1.0, "acts": math.inf}
"""Of a histogram that is never reset: names, and seconds."""
_EDGES = [*WITHIN.values()]

_BINS_AN_OCTAVE = 12
_OCTAVES = 28
"""From 1 microsecond to more than 4 minutes."""
_BINS = _BINS_AN_OCTAVE * _OCTAVES
_AT_ONCE = 1024
"""Times that are entered together: each alone would take as long as a hundred."""


class LatencyHistogram:
    """Of what came since the last look; and how many of all there ever were came within which time."""

    def __init__(self) -> None:
        self._within: NDArray[np.int64] = np.zeros(len(WITHIN), np.int64)
        self._bins: NDArray[np.int64] = np.zeros(_BINS, np.int64)
        self._new: list[float] = []
        """Seconds that are not entered yet."""

    def add(self, seconds: float) -> None:
        """One more."""
        self._new.append(seconds)
        if len(self._new) == _AT_ONCE:
            self._enter()

    @property
    def counts(self) -> dict[str, float]:
        """By name in `WITHIN`: all that took so long at most."""
        self._enter()
        return dict(zip(WITHIN, self._within.cumsum().tolist(), strict=True))

    def _enter(self) -> None:
        seconds = np.array(self._new)
        self._new.clear()
        places = (np.log2(np.maximum(seconds * 1e6, 1.0)) * _BINS_AN_OCTAVE).astype(np.int64)
        self._bins += np.bincount(np.minimum(places, _BINS - 1), minlength=_BINS)
        self._within += np.bincount(np.searchsorted(_EDGES, seconds), minlength=len(WITHIN))

    def take(self, *shares: float) -> list[float]:
        """Microseconds below which these shares lie, and forgets all; empty if there is nothing."""
        self._enter()
        bins, count = self._bins.tolist(), int(self._bins.sum())
        if not count:
            return []
        found, seen, place = [], 0, -1
        for share in sorted(shares):
            while seen < share * count and place + 1 < len(bins):
                place += 1
                seen += bins[place]
            found.append(2.0 ** ((place + 1) / _BINS_AN_OCTAVE))
        self._bins[:] = 0
        return found
