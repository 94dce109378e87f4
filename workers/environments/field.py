"""The ground of a walled gridworld, all copies in one flat array: where cells lie, what a window covers, who starts
where.

The window of an agent at the border reaches beyond the outer wall: further cells around it spare a test. Legend: `E`
copies, `n` some of them, `V` = 2 * radius + 1 cells a side of the window.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["Field"]


class Field:
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

    def crop(self, grid: NDArray, copy: int) -> NDArray:
        """[height, width]: a copy of one world's cells out of `grid` [E * plane]."""
        cells = grid[copy * self.plane : (copy + 1) * self.plane].reshape(-1, self.stride)
        margin = self._margin
        return cells[margin : margin + self.height, margin : margin + self.width].copy()
