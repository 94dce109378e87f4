"""The scripted players of cleanup: from what they see alone, one half cleans the river, the other picks apples.

In flow: observations. Out flow: actions. Legend: `n` copies, `B` cells of a beam.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep
from workers.environments.worlds.cleanup_map import beams
from workers.environments.worlds.scripted.treasure_player import TreasurePlayer

_WALL, _RIVER, _WASTE, _TREE, _APPLE, _AGENT, _AHEAD = 1, 2, 3, 4, 5, 6, 9
_UP, _DOWN, _CLEAN = 0, 1, 4


class CleanupPlayer:
    """Agents of even number walk to the nearest waste in view and clean as soon as their beam would hit any; the others
    walk to the nearest apple in view. Whoever is out of sight of its region walks up to the river or down to the
    orchard. Nobody zaps."""

    def __init__(self, radius: int, beam: int, generator: np.random.Generator) -> None:
        obstacles = (_WALL, _AGENT)
        self._cleaner = TreasurePlayer(radius, {_WASTE: 1.0}, obstacles, generator)
        self._picker = TreasurePlayer(radius, {_APPLE: 1.0}, obstacles, generator)
        self._blocked = [_WALL, _AGENT]
        side = 2 * radius + 1
        self._beside = side * side // 2 + np.array([-side, side, -1, 1])
        # [4, B]: cells of the view that a beam covers; those beyond it stand for the middle, where it hits nothing.
        reached = beams(beam)
        within = (np.abs(reached) <= radius).all(axis=-1)
        self._covered = side * side // 2 + np.where(within, reached @ np.array([side, 1]), 0)

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """Actions [n] for the agent present; observation [n, 10, V, V]."""
        planes = present.observation.reshape(*present.observation.shape[:2], -1)
        if present.agent % 2:
            return self._walk(self._picker(present), planes, _TREE, _APPLE, _DOWN)
        action = self._walk(self._cleaner(present), planes, _RIVER, _WASTE, _UP)
        facing = planes[:, _AHEAD][:, self._beside].argmax(axis=1)
        covered = self._covered[facing]
        waste = np.take_along_axis(planes[:, _WASTE], covered, axis=1) * (covered != planes.shape[2] // 2)
        return np.where(waste.any(axis=1), _CLEAN, action)

    def _walk(
        self, action: NDArray[np.int64], planes: NDArray[np.uint8], ground: int, thing: int, way: int
    ) -> NDArray[np.int64]:
        """`action` [n], or `way` where neither region nor thing is in view and the way is open."""
        lost = ~(planes[:, ground].any(axis=1) | planes[:, thing].any(axis=1))
        open_ = ~planes[:, self._blocked, self._beside[way]].any(axis=1)
        return np.where(lost & open_, way, action)
