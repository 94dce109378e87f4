"""Tag: agents chase and flee in a walled field, one of them is "it"; many copies at once in numpy.

The rules are those of the `tag` example of Sorrel (https://github.com/social-ai-uoft/sorrel): an agent that is it and,
after its move, stands beside another passes it on; every turn pays those who are not it. In flow: moves. Out flow: what
each agent sees around itself, and what its last turn brought.

Legend: `E` copies, `A` agents, `V` = 2 * radius + 1 cells a side of the view, `n` some of the copies, `C`
cells of the view.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import World
from workers.environments.base import AgentTimeStep, Player, parse_settings
from workers.environments.worlds.base.fixed_length import TurnMode
from workers.environments.worlds.base.grid_world import EMPTY, STEPS, WALL, GridSettings, GridWorld

__all__ = ["EMPTY", "FREE", "IT", "WALL", "Tag", "TagSettings"]

IT, FREE = range(2, 4)
"""Contents of a cell, and the planes of an observation in this order, behind empty and wall."""


class TagSettings(GridSettings):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    height: int = Field(default=11, ge=3, le=1_000)
    width: int = Field(default=11, ge=3, le=1_000)
    agents: int = Field(default=5, ge=2, le=100)
    radius: int = Field(default=4, ge=1, le=50)
    free: float = Field(default=10.0, allow_inf_nan=False)
    """Reward for every turn that an agent ends without being it."""
    it: float = Field(default=0.0, allow_inf_nan=False)
    """Reward for every turn that it ends being it."""


class Tag(GridWorld):
    """`copies` fields; ConfigurationError for settings that cannot work.

    Observation [4, V, V] uint8: planes empty, wall, it, not it (an agent's own cell, in the middle, says whether it is
    it). Walking into a wall or an agent leaves the agent where it is. Of several agents beside it, it tags the first of
    up, down, left, right. Whoever is tagged may tag back with its next move. At the end of every turn exactly one agent
    is it, so a turn pays (A - 1) * free + it in all, whoever plays.
    """

    _signs, _beings, _sees_itself = " #Ia", IT, True
    """`#` wall, `I` it, `a` an agent that is not it."""
    _colours = np.array([(24, 24, 28), (96, 96, 104), (216, 72, 72), (255, 208, 64)], np.uint8)

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("tag", TagSettings, settings)
        world = World(id="tag", agents=self._agents(s), episode_steps=s.turns)
        super().__init__(world, copies, turn_mode or "sequential", s)
        self._it: NDArray[np.int64] = np.zeros(copies, np.int64)
        self._every = np.arange(copies)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """Agents on distinct cells, any of them it; all choices equally likely."""
        self._grid.reshape(self.copies, -1)[copies] = self._fresh
        self._position[:, copies] = self._ground.scatter(self._generator, self._inside, copies, self.settings.agents)
        self._it[copies] = self._generator.integers(self.settings.agents, size=copies.size)
        self._grid[self._position[:, copies]] = FREE
        self._grid[self._position[self._it[copies], copies]] = IT

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        """Moves the agent, which then, if it is it, tags whom it stands beside."""
        position = self._position[agent]
        target = position + self._ground.moves[action]
        kind = self._grid[position]
        self._grid[position] = EMPTY
        np.copyto(position, target, where=self._grid[target] == EMPTY)
        self._grid[position] = kind
        rows = np.flatnonzero(self._it == agent)
        beside = position[rows, None] + self._ground.moves
        near = self._grid[beside] == FREE
        caught = near.any(axis=1)
        rows, cell = rows[caught], beside[caught, near[caught].argmax(axis=1)]
        self._it[rows] = (self._position[:, rows] == cell).argmax(axis=0)
        self._grid[position[rows]] = FREE
        self._grid[cell] = IT

    def _rewards(self) -> None:
        self._earned += np.float32(self.settings.free)
        self._earned[self._it, self._every] = self.settings.it

    def scripted(self) -> Player:
        """Chases when it is it, flees when it is not; see `TagPlayer`."""
        return TagPlayer(self.settings.radius, generator=self._generator.spawn(1)[0])


_FAR = 1e6


class TagPlayer:
    """A hand-written player, from what it sees alone. Of its moves onto empty cells it takes the one that ends
    nearest to the nearest agent (being it) or farthest from whoever is it (not being it), by rows plus columns;
    ties, and all moves when it sees nobody to mind, at random."""

    def __init__(self, radius: int, generator: np.random.Generator) -> None:
        self._generator = generator
        reach = np.arange(-radius, radius + 1)
        places = np.stack(np.meshgrid(reach, reach, indexing="ij"), axis=-1).reshape(-1, 2)
        self._middle = len(places) // 2
        self._beside = self._middle + STEPS @ np.array([reach.size, 1])
        # [4, C]: how far a cell is after each move.
        self._distance = np.abs(places[None] - STEPS[:, None]).sum(axis=-1).astype(np.float64)

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """Moves [n] for the agent present; observation [n, 4, V, V]."""
        n = len(present.observation)
        planes = present.observation.reshape(n, 4, -1).astype(np.bool_)
        chasing = planes[:, IT, self._middle]
        minded = np.where(chasing[:, None], planes[:, FREE], planes[:, IT])
        minded[:, self._middle] = False
        # [n, 4]: the distance to the nearest agent that matters; the same for all moves where there is none.
        distance = np.where(minded[:, None, :], self._distance, _FAR).min(axis=-1)
        score = np.where(chasing[:, None], -distance, distance)
        score[~planes[:, EMPTY][:, self._beside]] = -2 * _FAR
        return (score + 0.5 * self._generator.random((n, 4))).argmax(axis=1)
