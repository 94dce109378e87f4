"""The scripted player of tag: from what it sees alone, it chases when it is it and flees when it is not.

In flow: observations. Out flow: moves. Legend: `n` copies, `C` cells of the view.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep

_EMPTY, _IT, _FREE = 0, 2, 3
_STEPS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""(rows, columns) of up, down, left, right."""
_FAR = 1e6


class TagPlayer:
    """Of its moves onto empty cells it takes the one that ends nearest to the nearest agent (being it) or farthest from
    whoever is it (not being it), by rows plus columns; ties, and all moves when it sees nobody to mind, at random."""

    def __init__(self, radius: int, generator: np.random.Generator) -> None:
        self._generator = generator
        reach = np.arange(-radius, radius + 1)
        places = np.stack(np.meshgrid(reach, reach, indexing="ij"), axis=-1).reshape(-1, 2)
        self._middle = len(places) // 2
        self._beside = self._middle + _STEPS @ np.array([reach.size, 1])
        # [4, C]: how far a cell is after each move.
        self._distance = np.abs(places[None] - _STEPS[:, None]).sum(axis=-1).astype(np.float64)

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """Moves [n] for the agent present; observation [n, 4, V, V]."""
        n = len(present.observation)
        planes = present.observation.reshape(n, 4, -1).astype(np.bool_)
        chasing = planes[:, _IT, self._middle]
        minded = np.where(chasing[:, None], planes[:, _FREE], planes[:, _IT])
        minded[:, self._middle] = False
        # [n, 4]: the distance to the nearest agent that matters; the same for all moves where there is none.
        distance = np.where(minded[:, None, :], self._distance, _FAR).min(axis=-1)
        score = np.where(chasing[:, None], -distance, distance)
        score[~planes[:, _EMPTY][:, self._beside]] = -2 * _FAR
        return (score + 0.5 * self._generator.random((n, 4))).argmax(axis=1)
