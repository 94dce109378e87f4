"""Worlds on a walled grid in which each cell holds one thing: the field, what agents see of it, how it is drawn.

In flow: what a cell holds, by kind. Out flows: planes of a window around each agent, text, pictures.

Legend: `E` copies, `A` agents, `n` some of the copies, `K` kinds, `V` = 2 * radius + 1 cells a side of the view.
"""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import WorldSettings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode
from workers.environments.worlds.base.grid import Grid

EMPTY, WALL = range(2)
"""The first kinds of things in any of these worlds."""
STEPS = np.array([(-1, 0), (1, 0), (0, -1), (0, 1)])
"""(rows, columns) of up, down, left, right."""


class GridSettings(WorldSettings):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    height: int = Field(default=21, ge=3, le=1_000)
    width: int = Field(default=21, ge=3, le=1_000)
    agents: int = Field(default=2, ge=1, le=1_000)
    turns: int = Field(default=100, ge=1)
    """Turns of an episode, which then ends as truncated."""
    radius: int = Field(default=2, ge=1, le=50)
    """Cells an agent sees in each direction."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        cells = (self.height - 2) * (self.width - 2)
        if self.agents > cells:
            raise ConfigurationError("agents_exceed_cells_within_wall", agents=self.agents, limit=cells, field="agents")
        return self


class GridWorld(FixedLengthWorld):
    """Observation [K, V, V] uint8, a plane for each kind, exactly one of which is 1 for each cell; moves 0 up, 1 down,
    2 left, 3 right."""

    _signs: ClassVar[str]
    """[K]: each kind as text."""
    _colours: ClassVar[NDArray[np.uint8]]
    """[K, 3]"""
    _beings: ClassVar[int]
    """The first of the kinds that are agents."""
    _sees_itself: ClassVar[bool]
    """Whether an agent is shown in its own cell, or nothing is."""

    def __init__(self, world: World, copies: int, turn_mode: TurnMode, s: GridSettings) -> None:
        super().__init__(world, copies, turn_mode, s.turns, desynchronize=s.desynchronize)
        self._ground = Grid(s.height, s.width, s.radius, copies)
        self._inside = self._ground.cells(self._ground.inside())
        self._fresh = np.full(self._ground.plane, WALL, np.int8)
        self._fresh[self._inside] = EMPTY
        self._grid = np.tile(self._fresh, copies)
        self._position: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._offsets = self._ground.window(s.radius)
        self._planes = np.arange(len(self._signs), dtype=np.int8)[:, None]
        self._seen: NDArray[np.int64] = np.empty((copies, self._offsets.size), np.int64)
        self._codes: NDArray[np.int8] = np.empty((copies, self._offsets.size), np.int8)

    @classmethod
    def _agents(cls, s: GridSettings) -> tuple[Agent, ...]:
        """The agents of such a world."""
        view = 2 * s.radius + 1
        box = Box(shape=(len(cls._signs), view, view), dtype="uint8", low=0, high=1)
        return tuple(Agent(name=f"agent_{i}", observation=box, action=Discrete(n=4)) for i in range(s.agents))

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        position = self._position[agent] if copies is None else self._position[agent, copies]
        n = position.size
        seen, codes = self._seen[:n], self._codes[:n]
        np.add(position[:, None], self._offsets, out=seen)
        self._grid.take(seen, out=codes, mode="clip")
        if not self._sees_itself:
            codes[:, self._offsets.size // 2] = EMPTY
        np.equal(codes[:, None, :], self._planes, out=out[:n].reshape(n, len(self._planes), -1).view(np.bool_))

    def contents(self, copy: int) -> NDArray[np.int8]:
        """[height, width]: what is in each cell of one copy."""
        return self._ground.crop(self._grid, copy)

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[height, width]: where agents are."""
        return np.asarray(self.contents(copy) >= self._beings)

    def render(self, copy: int = 0) -> str:
        """One copy as text, a sign for each kind."""
        return "\n".join("".join(self._signs[code] for code in row) for row in self.contents(copy))

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8]:
        """One copy as a picture [height * scale, width * scale, 3]."""
        picture: NDArray[np.uint8] = self._colours[self.contents(copy)]
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)
