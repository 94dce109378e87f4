"""Treasure hunt: a walled gridworld whose treasures appear by themselves, many copies at once in numpy.

Each turn the entities change first (an empty cell may turn into a gem, food or a bone), then the agents act: strictly
one after another, each seeing the world the one before left, or all at once. In flow: moves. Out flow: what each agent
sees around itself, one plane a kind of thing, and what its last move brought.

Legend: `E` copies, `A` agents, `V` = 2 * radius + 1 cells a side of the view, `n` some of the copies, `C`
cells of the view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Box, DictPopulation, World
from workers.environments.base import AgentTimeStep, Player, parse_settings
from workers.environments.worlds.base.fixed_length import TurnMode
from workers.environments.worlds.base.grid import SparseBernoulli
from workers.environments.worlds.base.grid_world import EMPTY, STEPS, WALL, GridSettings, GridWorld

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunt", "TreasureHuntSettings"]

GEM, FOOD, BONE, AGENT = range(2, 6)
"""Contents of a cell, and the planes of an observation in this order, behind empty and wall."""


class TreasureHuntSettings(GridSettings):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    spawn: float = Field(default=0.005, ge=0, le=1)
    """Probability that an empty cell turns into a treasure, each turn."""
    map: bool = False
    """Show all agents the whole grid beside their own view: a common observation [height, width], codes of contents."""
    gem: float = Field(default=10.0, allow_inf_nan=False)
    food: float = Field(default=5.0, allow_inf_nan=False)
    bone: float = Field(default=-10.0, allow_inf_nan=False)
    wall: float = Field(default=-1.0, allow_inf_nan=False)
    """Reward for walking into a wall."""


class TreasureHunt(GridWorld):
    """`copies` gridworlds of `settings.agents` agents; ConfigurationError for settings that cannot work.

    Observation [6, V, V] uint8: planes empty, wall, gem, food, bone, other agent (an agent's own cell, in the middle,
    counts as empty). Walking into a wall or an agent leaves the agent where it is.
    """

    _signs, _beings, _sees_itself = " #*oxA", AGENT, False
    """`#` wall, `*` gem, `o` food, `x` bone, `A` agent."""
    _colours = np.array(
        [(24, 24, 28), (96, 96, 104), (64, 200, 255), (96, 208, 96), (216, 72, 72), (255, 208, 64)], np.uint8
    )

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("treasure_hunt", TreasureHuntSettings, settings)
        mode = turn_mode or "sequential"
        seen = Box(shape=(s.height, s.width), dtype="uint8", low=0, high=AGENT) if s.map else None
        world = World(
            id="treasure_hunt",
            population=DictPopulation(agents=self._agents(s), common=seen),
            episode_steps=s.turns,
            action_period=s.agents if mode == "sequential" else 1,
        )
        super().__init__(world, copies, mode, s)
        self._value = np.array([0, s.wall, s.gem, s.food, s.bone, 0], np.float32)
        self._enterable = np.array([True, False, True, True, True, False])
        self._seeded()

    def _seeded(self) -> None:
        self._sparks = SparseBernoulli(self._generator, self._grid.size, self.settings.spawn, kinds=3)

    def _world_step(self) -> None:
        """Every empty cell turns into a treasure with probability `spawn`; walls around it are never empty."""
        cells, kinds = self._sparks.draw()
        empty = self._grid[cells] == EMPTY
        self._grid[cells[empty]] = kinds[empty] + np.int8(GEM)

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        position = self._position[agent]
        target = self._ground.moves[action]
        target += position
        met = self._grid[target]
        self._value.take(met, out=self._earned[agent], mode="clip")
        self._grid[position] = EMPTY
        np.copyto(position, target, where=self._enterable[met])
        self._grid[position] = AGENT

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """An empty grid, agents on distinct cells, all choices equally likely."""
        self._grid.reshape(self.copies, -1)[copies] = self._fresh
        taken = np.empty((copies.size, 0), np.int64)
        for agent in range(self.settings.agents):
            cell = self._generator.integers(self._inside.size - agent, size=copies.size)
            for other in np.sort(taken, axis=1).T:
                cell += cell >= other
            taken = np.column_stack((taken, cell))
            self._position[agent, copies] = self._ground.first[copies] + self._inside[cell]
            self._grid[self._position[agent, copies]] = AGENT

    def _common(self, copies: slice | NDArray[np.int64]) -> NDArray | None:
        return self._ground.crop(self._grid, copies).view(np.uint8) if self.settings.map else None

    def scripted(self) -> Player:
        """Walks to the best thing in view; see `TreasurePlayer`."""
        s = self.settings
        values = {GEM: s.gem, FOOD: s.food, BONE: s.bone}
        return TreasurePlayer(s.radius, values, obstacles=(WALL, AGENT), generator=self._generator.spawn(1)[0])


class TreasurePlayer:
    """A hand-written player, which sees what a policy sees. Picks the thing of greatest value in view, the nearest
    of them, and walks there: rows first, then columns.

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
        self._beside = rows.size // 2 + STEPS @ np.array([reach.size, 1])

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
