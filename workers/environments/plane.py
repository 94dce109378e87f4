"""A plane with bodies and the places that they are to reach, drawn as cells.

In flows: places and bodies of one copy. Out flows: cells, text, a picture.

Legend: `A` bodies, and as many places; the last axis is x, y.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["drawn", "pictured", "written"]

CELLS = 33
"""A side of what is drawn; odd, so that 0 is in the middle of a cell."""
_COLOURS = np.array([[24, 24, 32], [90, 90, 110], [230, 180, 60], [80, 160, 240]], np.uint8)
"""Nothing, a wall, a place, a body."""


def drawn(places: NDArray[np.floating], bodies: NDArray[np.floating], reach: float = 1.0) -> NDArray[np.int8]:
    """[33, 33]: what is in each part of the plane from -reach to reach, y upwards: 0 nothing, -1 its edge, `1 + i`
    place i [A, 2], `1 + A + i` body i [A, 2]; who is outside is drawn beside the edge."""
    cells = np.zeros((CELLS, CELLS), np.int8)
    cells[[0, -1]] = cells[:, [0, -1]] = -1
    for first, points in ((1, places), (1 + len(places), bodies)):
        share = np.clip((points / reach + 1) / 2, 0, 1)
        column, row = np.rint(share * (CELLS - 3)).astype(np.int64).T
        cells[CELLS - 2 - row, column + 1] = first + np.arange(len(points))
    return cells


def written(cells: NDArray[np.int8], count: int) -> str:
    """As text, of so many bodies: `#` the edge, `a`, `b` ... places, `A`, `B` ... bodies."""
    letters = [chr(ord(first) + i) for first in "aA" for i in range(count)]
    signs = dict(enumerate([" ", *letters])) | {-1: "#"}
    return "\n".join("".join(signs[int(code)] for code in row) for row in cells)


def pictured(cells: NDArray[np.int8], count: int, scale: int) -> NDArray[np.uint8]:
    """As a picture [33 * scale, 33 * scale, 3]."""
    kinds = np.select([cells < 0, cells > count, cells > 0], [1, 3, 2], 0)
    picture: NDArray[np.uint8] = _COLOURS[kinds]
    return picture.repeat(scale, axis=0).repeat(scale, axis=1)
