"""The scripted player of the treasure hunt: from what it sees alone, it walks to the best thing in view.

In flow: observations. Out flow: moves. Legend: `n` copies, `C` cells of the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep

_STEPS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""(rows, columns) of up, down, left, right."""


class TreasurePlayer:
    """Picks the thing of greatest value in view, the nearest of them, and walks there: rows first, then columns.

    With nothing worth having in view it keeps its heading, and draws another one where an obstacle is ahead. A step
    onto something that hurts is replaced by a random one. It plans no way around: a plain player to be compared with.

    `values` gives the worth of each plane's things, `obstacles` the planes that cannot be entered.
    """

    def __init__(
        self, radius: int, values: Mapping[int, float], obstacles: Sequence[int], generator: np.random.Generator
    ) -> None:
        self._generator = generator
        self._headings: dict[int, NDArray[np.int64]] = {}
        reach = np.arange(-radius, radius + 1)
        rows, columns = (grid.ravel() for grid in np.meshgrid(reach, reach, indexing="ij"))
        self._wanted = [plane for plane, value in sorted(values.items(), key=lambda item: item[1]) if value > 0]
        self._hurting = [plane for plane, value in values.items() if value < 0]
        self._obstacles = list(obstacles)
        # Ranks [wanted, C] order by value, then by nearness; 0 is left for "not there".
        nearness = rows.size - np.abs(rows) - np.abs(columns)
        self._rank = np.stack([nearness + 2 * rows.size * level for level in range(len(self._wanted))] or [nearness])
        towards_column = np.where(columns < 0, 2, 3)
        self._towards = np.where(rows < 0, 0, np.where(rows > 0, 1, towards_column))
        self._beside = rows.size // 2 + _STEPS @ np.array([reach.size, 1])

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """Moves [n] for the agent present; observation [n, planes, V, V]."""
        n = len(present.observation)
        every = np.arange(n)
        planes = present.observation.reshape(n, present.observation.shape[1], -1)
        beside = planes[:, :, self._beside]
        heading = self._recall(present, n)
        closed: NDArray[np.uint8] = beside[:, self._obstacles].max(axis=1)
        heading = np.where(closed[every, heading] > 0, self._generator.integers(4, size=n), heading)
        self._remember(present, heading)
        action = heading
        if self._wanted:
            rank = (planes[:, self._wanted] * self._rank).max(axis=1)
            goal = rank.argmax(axis=1)
            action = np.where(rank[every, goal] > 0, self._towards[goal], heading)
        hurts: NDArray[np.uint8] = beside[:, self._hurting].max(axis=1, initial=0)
        return np.where(hurts[every, action] > 0, self._generator.integers(4, size=n), action)

    def _recall(self, present: AgentTimeStep, n: int) -> NDArray[np.int64]:
        """The heading [n] of the agent in each copy; random where it has none yet."""
        copies = present.copies
        size = n if copies is None else int(copies.max(initial=-1)) + 1
        known = self._headings.get(present.agent, np.empty(0, np.int64))
        if known.size < size:
            known = np.concatenate((known, self._generator.integers(4, size=size - known.size)))
            self._headings[present.agent] = known
        return known[:n] if copies is None else known[copies]

    def _remember(self, present: AgentTimeStep, heading: NDArray[np.int64]) -> None:
        known = self._headings[present.agent]
        known[slice(heading.size) if present.copies is None else present.copies] = heading
