"""Tag: agents chase and flee in a walled field, one of them is "it"; many copies at once in numpy.

The rules are those of the `tag` example of Sorrel (https://github.com/social-ai-uoft/sorrel): an agent that is it and,
after its move, stands beside another passes it on; every turn pays those who are not it. In flow: moves. Out flow: what
each agent sees around itself, and what its last turn brought.

Legend: `E` copies, `A` agents, `V` = 2 * radius + 1 cells a side of the view.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import Player
from workers.environments.settings import check_grid_size, parse_settings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode
from workers.environments.worlds.base.grid import Grid as Ground
from workers.environments.worlds.scripted.tag_player import TagPlayer

__all__ = ["EMPTY", "FREE", "IT", "WALL", "Tag", "TagSettings"]

EMPTY, WALL, IT, FREE = range(4)
"""Contents of a cell, and the planes of an observation in this order."""

_KINDS = 4
_COLOURS = np.array([(24, 24, 28), (96, 96, 104), (216, 72, 72), (255, 208, 64)], np.uint8)


class TagSettings(BaseModel):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    height: int = Field(default=11, ge=3, le=1_000)
    width: int = Field(default=11, ge=3, le=1_000)
    agents: int = Field(default=5, ge=2, le=100)
    turns: int = Field(default=100, ge=1)
    """Turns of an episode, which then ends as truncated."""
    radius: int = Field(default=4, ge=1, le=50)
    """Cells an agent sees in each direction."""
    free: float = Field(default=10.0, allow_inf_nan=False)
    """Reward for every turn that an agent ends without being it."""
    it: float = Field(default=0.0, allow_inf_nan=False)
    """Reward for every turn that it ends being it."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        check_grid_size(self.agents, self.height, self.width)
        return self


class Tag(FixedLengthWorld):
    """`copies` fields; ConfigurationError for settings that cannot work.

    Observation [4, V, V] uint8: planes empty, wall, it, not it; exactly one is 1 for each cell, and the agent's own
    cell in the middle says whether it is it. Actions: 0 up, 1 down, 2 left, 3 right; walking into a wall or an agent
    leaves the agent where it is. Of several agents beside it, it tags the first of up, down, left, right. Whoever is
    tagged may tag back with its next move. At the end of every turn exactly one agent is it, so a turn pays
    (A - 1) * free + it in all, whoever plays.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("tag", TagSettings, settings)
        view = 2 * s.radius + 1
        box = Box(shape=(_KINDS, view, view), dtype="uint8", low=0, high=1)
        agents = tuple(Agent(name=f"agent_{i}", observation=box, action=Discrete(n=4)) for i in range(s.agents))
        world = World(id="tag", agents=agents, episode_steps=s.turns)
        super().__init__(world, copies, turn_mode or "sequential", s.turns, desynchronize=s.desynchronize)

        self._ground = Ground(s.height, s.width, s.radius, copies)
        self._inside = self._ground.cells(self._ground.inside())
        self._fresh = np.full(self._ground.plane, WALL, np.int8)
        self._fresh[self._inside] = EMPTY
        self._grid = np.tile(self._fresh, copies)
        self._position: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._it: NDArray[np.int64] = np.zeros(copies, np.int64)
        self._every = np.arange(copies)
        self._offsets = self._ground.window(s.radius)
        self._planes = np.arange(_KINDS, dtype=np.int8)[:, None]

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

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        position = self._position[agent] if copies is None else self._position[agent, copies]
        n = position.size
        codes = self._grid.take(position[:, None] + self._offsets)
        planes = out[:n].reshape(n, _KINDS, -1).view(np.bool_)
        np.equal(codes[:, None, :], self._planes, out=planes)

    def scripted(self) -> Player:
        """Chases when it is it, flees when it is not; see `TagPlayer`."""
        return TagPlayer(self.settings.radius, generator=self._generator.spawn(1)[0])

    def contents(self, copy: int) -> NDArray[np.int8]:
        """[height, width]: what is in each cell of one copy."""
        return self._ground.crop(self._grid, copy)

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[height, width]: where agents are."""
        return np.asarray(self.contents(copy) >= IT)

    def render(self, copy: int = 0) -> str:
        """One copy as text: `#` wall, `I` it, `a` an agent that is not it."""
        return "\n".join("".join(" #Ia"[code] for code in row) for row in self.contents(copy))

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8]:
        """One copy as a picture [height * scale, width * scale, 3]."""
        picture: NDArray[np.uint8] = _COLOURS[self.contents(copy)]
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)
