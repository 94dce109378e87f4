"""Cheap exact chance: which of very many cells change this turn, when each does so with a small probability.

In flow: a generator of random numbers. Out flow, turn after turn: the cells that change and what they become.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sparks"]

_BLOCK = 16_384
"""Changes drawn at once: enough to make numpy's overhead vanish, few enough to stay in the cache."""


class Sparks:
    """Independent Bernoulli trials, one for each of `cells` cells and turn, each success with one of `kinds` kinds.

    The gaps between successes of a row of Bernoulli(p) trials are geometric, so only the successes are drawn:
    `floor(X / -log(1 - p)) + 1` is geometric with parameter p when X is standard exponential. All turns of a block are
    one long row of trials; what lies beyond the block is discarded, which is exact because the gaps have no memory.
    """

    def __init__(self, generator: np.random.Generator, cells: int, probability: float, kinds: int) -> None:
        self._generator = generator
        self._cells = cells
        self._kinds = kinds
        self._turns = max(1, int(_BLOCK / max(cells * probability, 1.0)))
        with np.errstate(divide="ignore"):
            self._scale = float(1.0 / -np.log1p(-probability)) if probability > 0 else float("inf")
        self._turn = self._turns
        self._bounds: NDArray[np.int64] = np.zeros(self._turns + 1, np.int64)
        self._where: NDArray[np.int64] = np.empty(0, np.int64)
        self._kind: NDArray[np.int8] = np.empty(0, np.int8)

    def draw(self) -> tuple[NDArray[np.int64], NDArray[np.int8]]:
        """This turn's successes: cells [n], increasing, in 0..cells-1, and their kinds [n] in 0..kinds-1."""
        if self._turn == self._turns:
            self._refill()
        start, stop = self._bounds[self._turn], self._bounds[self._turn + 1]
        cells = self._where[start:stop] - self._turn * self._cells
        self._turn += 1
        return cells, self._kind[start:stop]

    def _refill(self) -> None:
        self._turn = 0
        if self._scale == float("inf"):
            return
        trials = self._cells * self._turns
        expected = trials / max(self._scale, 1.0)
        rows: list[NDArray[np.int64]] = []
        last = -1
        while last < trials:
            gaps = self._generator.standard_exponential(int(expected + 6 * np.sqrt(expected)) + 16)
            gaps *= self._scale
            # A gap beyond the block may be huge: cut, so that it and the sum of all stay within an int64.
            np.minimum(gaps, trials, out=gaps)
            row = gaps.astype(np.int64)
            row += 1
            np.cumsum(row, out=row)
            row += last
            last = int(row[-1])
            rows.append(row)
        where = rows[0] if len(rows) == 1 else np.concatenate(rows)
        self._where = where[: np.searchsorted(where, trials)]
        self._bounds = np.searchsorted(self._where, np.arange(self._turns + 1) * self._cells)
        self._kind = self._generator.integers(self._kinds, size=self._where.size, dtype=np.int8)
