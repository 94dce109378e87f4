"""Deep sea: one way of many leads to the treasure, and every step of it costs; many copies at once in numpy.

A player that tries at random finds the way once in 2**size episodes, and what it earns before says: turn back.
In flow: left or right. Out flow: where one is.

Legend: `E` copies, `N` size, `n` some of the copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode


class DeepSeaSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    size: int = Field(default=16, ge=2, le=200)
    """Rows and columns; an episode has as many turns."""
    cost: float = Field(default=0.01, ge=0, le=1)
    """What going right all the way costs."""


class DeepSea(FixedLengthWorld):
    """`copies` dives of N turns, which end as terminated (Osband et al. 2020, section 3.3, without shuffled actions);
    ConfigurationError for settings that cannot work.

    A turn is a row further down and a column to the left (0) or right (1), as far as there is one. Going right costs
    `cost` / N, and in the last row of the last column it earns 1: the best return is 1 - `cost`. Observation [N, N]
    float32: 1 where one is.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("deep_sea", DeepSeaSettings, settings)
        box = Box(shape=(s.size, s.size), dtype="float32", low=0, high=1)
        agent = Agent(name="diver", observation=box, action=Discrete(n=2))
        world = World(id="deep_sea", agents=(agent,), episode_steps=s.size)
        super().__init__(world, copies, turn_mode or "simultaneous", s.size, terminates=True)
        self._column: NDArray[np.int64] = np.zeros(copies, np.int64)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        self._column[copies] = 0

    @property
    def _row(self) -> NDArray[np.int64]:
        """[E]"""
        return self.settings.size - self._left

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        size, right = self.settings.size, action == 1
        found = right & (self._column == size - 1) & (self._left == 1)
        self._earned[agent] += found - right * np.float32(self.settings.cost / size)
        self._column += np.where(right, 1, -1)
        self._column.clip(0, size - 1, out=self._column)

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        chosen = np.arange(self.copies) if copies is None else copies
        out[: len(chosen)] = 0
        out[np.arange(len(chosen)), self._row[chosen], self._column[chosen]] = 1

    def scripted(self) -> Player:
        """Always right: the best player there is."""

        def choose(present: AgentTimeStep) -> NDArray[np.int64]:
            return np.ones(len(present.observation), np.int64)

        return choose

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[size, size]: where the diver is."""
        cells = np.zeros((self.settings.size, self.settings.size), np.bool_)
        cells[int(self._row[copy]), int(self._column[copy])] = True
        return cells

    def render(self, copy: int = 0) -> str:
        """One copy as text: the rows, `@` where one is, `$` where the treasure lies."""
        size = self.settings.size
        cells = [["."] * size for _ in range(size)]
        cells[-1][-1] = "$"
        cells[int(self._row[copy])][int(self._column[copy])] = "@"
        return "\n".join("".join(row) for row in cells)
