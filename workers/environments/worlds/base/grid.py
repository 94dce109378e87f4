"""The ground of a walled gridworld, all copies in one flat array: where cells lie, what a window covers, who starts
where; and which of very many cells change in a turn when each does so with a small probability, drawn exactly.

The window of an agent at the border reaches beyond the outer wall: further cells around it spare a test. Legend: `E`
copies, `n` some of them, `V` = 2 * radius + 1 cells a side of the window.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class Grid:
    """Cells are numbered row by row; copy c has the numbers from c * plane. `reach`: how far beyond an agent's own cell
    anything looks."""

    def __init__(self, height: int, width: int, reach: int, copies: int) -> None:
        self.height, self.width, self.copies = height, width, copies
        self._margin = reach - 1
        self.stride = width + 2 * self._margin
        self.plane = (height + 2 * self._margin) * self.stride
        self.first: NDArray[np.int64] = np.arange(copies, dtype=np.int64) * self.plane
        self.moves: NDArray[np.int64] = np.array([-self.stride, self.stride, -1, 1], np.int64)
        """What up, down, left and right add to a cell's number."""

    def cells(self, where: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Numbers, in copy 0, of the cells in which `where` [height, width] holds."""
        rows, columns = np.nonzero(where)
        return (rows + self._margin) * self.stride + columns + self._margin

    def inside(self) -> NDArray[np.bool_]:
        """[height, width]: all but the outer wall."""
        inside = np.zeros((self.height, self.width), np.bool_)
        inside[1:-1, 1:-1] = True
        return inside

    def window(self, radius: int) -> NDArray[np.int64]:
        """[V * V]: what to add to a cell's number for the cells around it."""
        reach = np.arange(-radius, radius + 1)
        return (reach[:, None] * self.stride + reach).ravel()

    def scatter(
        self, generator: np.random.Generator, among: NDArray[np.int64], copies: NDArray[np.int64], count: int
    ) -> NDArray[np.int64]:
        """[count, n] cells of `copies`: distinct ones of `among`, all choices equally likely."""
        chosen = among[np.argsort(generator.random((copies.size, among.size)), axis=1)[:, :count]]
        return np.ascontiguousarray(chosen.T) + self.first[copies]

    def crop(self, grid: NDArray, copies: int | slice | NDArray[np.int64]) -> NDArray:
        """[n, height, width], of a single copy [height, width]: the cells of `copies` out of `grid` [E * plane]."""
        rows, columns = (slice(self._margin, self._margin + size) for size in (self.height, self.width))
        return grid.reshape(self.copies, -1, self.stride)[copies, rows, columns].copy()


_BLOCK = 16_384
"""Changes drawn at once: enough to make numpy's overhead vanish, few enough to stay in the cache."""


class SparseBernoulli:
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
