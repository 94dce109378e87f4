"""Worlds of rounds in a plane: bodies, and the places that they are to reach, drawn as cells.

In flow: where both are. Out flows: cells, text, a picture of one copy.

Legend: `E` copies, `A` bodies and as many places; the last axis is x, y.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
from numpy.typing import NDArray

from workers.environments.worlds.base.fixed_length import FixedLengthWorld

_CELLS = 33
"""A side of what is drawn; odd, so that 0 is in the middle of a cell."""
_COLOURS = np.array([[24, 24, 32], [90, 90, 110], [230, 180, 60], [80, 160, 240]], np.uint8)
"""Nothing, an edge, a place, a body."""


class PlaneWorld(FixedLengthWorld):
    """Draws from -`_reach` to `_reach`; who is outside is drawn beside the edge."""

    _reach = 1.0

    @abstractmethod
    def _points(self) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Places and bodies, [A, E, 2] each."""

    def contents(self, copy: int) -> NDArray[np.int8]:
        """[33, 33]: what is in each part of one copy's plane, y upwards: 0 nothing, -1 its edge, `1 + i` place i,
        `1 + A + i` body i."""
        cells = np.zeros((_CELLS, _CELLS), np.int8)
        cells[[0, -1]] = cells[:, [0, -1]] = -1
        places, bodies = self._points()
        for first, points in ((1, places), (1 + len(places), bodies)):
            share = np.clip((points[:, copy] / self._reach + 1) / 2, 0, 1)
            column, row = np.rint(share * (_CELLS - 3)).astype(np.int64).T
            cells[_CELLS - 2 - row, column + 1] = first + np.arange(len(points))
        return cells

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[33, 33]: where agents are."""
        return np.asarray(self.contents(copy) > len(self.world.agents))

    def render(self, copy: int = 0) -> str:
        """One copy as text: `#` its edge, `a`, `b` ... places, `A`, `B` ... agents."""
        letters = [chr(ord(first) + i) for first in "aA" for i in range(len(self.world.agents))]
        signs = dict(enumerate([" ", *letters])) | {-1: "#"}
        return "\n".join("".join(signs[int(code)] for code in row) for row in self.contents(copy))

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8]:
        """One copy as a picture [33 * scale, 33 * scale, 3]."""
        cells, count = self.contents(copy), len(self.world.agents)
        kinds = np.select([cells < 0, cells > count, cells > 0], [1, 3, 2], 0)
        picture: NDArray[np.uint8] = _COLOURS[kinds]
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)
