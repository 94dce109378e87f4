"""Cleanup: a river that gets polluted, apples that grow only while it is clean; many copies at once in numpy.

A public good: whoever cleans earns nothing by it, whoever picks apples lives on the cleaning of others. The dynamics
and their numbers are those of Hughes et al. 2018, "Inequity aversion improves cooperation in intertemporal social
dilemmas" (arXiv:1803.08884), as published in https://github.com/eugenevinitsky/sequential_social_dilemma_games; map,
moves and beams are those of the `cleanup` example of Sorrel (https://github.com/social-ai-uoft/sorrel).
In flows: settings, by which its regions lie; actions. Out flow: what each agent sees around itself, one plane a kind of
thing, and what its turn brought.

Legend: `E` copies, `A` agents, `R` cells of the river, `T` of the orchard, `V` = 2 * radius + 1 cells a side of the
view, `B` = 3 * beam cells of a beam, `n` some of the copies.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode
from workers.environments.worlds.base.grid import Grid, SparseBernoulli
from workers.environments.worlds.treasure_hunt import TreasurePlayer

_HEADINGS = np.array([[(-1, 0), (0, 1)], [(1, 0), (0, -1)], [(0, -1), (-1, 0)], [(0, 1), (1, 0)]])
"""(rows, columns) ahead and to the right of an agent that faces up, down, left, right."""


class CleanupSettings(WorldSettings):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    height: int = Field(default=21, ge=6, le=1_000)
    width: int = Field(default=31, ge=5, le=1_000)
    agents: int = Field(default=10, ge=1, le=100)
    turns: int = Field(default=1_000, ge=1)
    """Turns of an episode, which then ends as truncated."""
    radius: int = Field(default=5, ge=1, le=50)
    """Cells an agent sees in each direction."""
    beam: int = Field(default=3, ge=1, le=50)
    """Cells that a beam reaches."""
    depletion: float = Field(default=0.4, gt=0, le=1)
    """Polluted part of the river from which on no apple grows and no further waste appears (thresholdDepletion)."""
    restoration: float = Field(default=0.0, ge=0, lt=1)
    """Polluted part up to which apples grow at their full rate (thresholdRestoration)."""
    waste_spawn: float = Field(default=0.5, ge=0, le=1)
    """Probability, a turn, that a clean cell of the river is polluted (wasteSpawnProbability)."""
    apple_spawn: float = Field(default=0.05, ge=0, le=1)
    """Probability, a turn and tree, of an apple at full rate (appleRespawnProbability)."""
    initial_waste: float = Field(default=0.4, ge=0, le=1)
    """Polluted part of the river at first, rounded up to whole cells."""
    apple: float = Field(default=1.0, allow_inf_nan=False)
    """Reward for an apple eaten."""
    zapped: float = Field(default=-1.0, allow_inf_nan=False)
    """Reward for an agent hit by another's zap; Hughes et al. fine 50."""
    zapping: float = Field(default=0.0, allow_inf_nan=False)
    """Reward for every zap fired; Hughes et al. take 1."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.restoration >= self.depletion:
            raise ConfigurationError(
                "restoration_not_below_depletion", value=self.restoration, limit=self.depletion, field="restoration"
            )
        cells = int(regions(self.height, self.width)[2].sum())
        if self.agents > cells:
            raise ConfigurationError("agents_exceed_sand_cells", count=self.agents, limit=cells, field="agents")
        return self


def regions(height: int, width: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """River, orchard and sand, each [height, width]: the upper third with an arm that reaches down, the lower third,
    and the rest within the wall."""
    rows, columns = np.arange(height)[:, None], np.arange(width)
    inside = (rows > 0) & (rows < height - 1) & (columns > 0) & (columns < width - 1)
    third = height // 3
    arm = (rows < 2 * third - 1) & ((columns == width // 3) | (columns == width // 3 + 1))
    river = inside & ((rows < third) | arm)
    orchard = inside & ~river & (rows > height - 1 - third)
    return river, orchard, inside & ~river & ~orchard


def beams(reach: int) -> NDArray[np.int64]:
    """[4, 3 * reach, 2]: (rows, columns) that a beam covers when facing up, down, left, right: 1..reach ahead, and on
    either side 0..reach-1 ahead."""
    straight = [(step, 0) for step in range(1, reach + 1)]
    sides = [(step, side) for side in (-1, 1) for step in range(reach)]
    cells: NDArray[np.int64] = np.array(straight + sides) @ _HEADINGS
    return cells


PLANES = ("sand", "wall", "river", "waste", "tree", "apple", "agent", "cleaning", "zapping", "ahead")
"""Planes of an observation. Each cell has one of the first six; other agents and beams come on top."""

_KINDS = 9
SAND, WALL, RIVER, WASTE, TREE, APPLE, AGENT, CLEANING, ZAPPING = (np.uint16(1 << bit) for bit in range(_KINDS))
"""What a cell holds: a sum of these."""
_BEAMS = np.uint16(CLEANING | ZAPPING)
_BLOCKED = np.uint16(WALL | AGENT)
_CLEAN, _ZAP = 4, 5
_COLOURS = np.array(
    [
        *((194, 168, 120), (96, 96, 104), (72, 128, 208), (112, 80, 32), (40, 96, 48), (96, 208, 96)),
        *((255, 208, 64), (120, 240, 255), (216, 72, 72)),
    ],
    np.uint8,
)


class Cleanup(FixedLengthWorld):
    """`copies` worlds of `settings.agents` agents; ConfigurationError for settings that cannot work.

    Observation [10, V, V] uint8, planes as in `PLANES`; `ahead` marks the one cell that the agent faces. Actions: 0 up,
    1 down, 2 left, 3 right (which also turn the agent), 4 clean, 5 zap. Walls and agents block a move; rivers and trees
    do not. Stepping onto an apple eats it. A beam covers `beam` cells ahead and as many on either side, beginning
    beside the agent, and is seen until the first agent of the next turn acts. Cleaning turns waste into river at
    once; zapping costs every other agent in the beam.

    Each turn, before agents act: with d the polluted part of the river, a tree without an agent bears an apple with
    probability apple_spawn * clip((depletion - d) / (depletion - restoration), 0, 1), and while d < depletion one clean
    cell of the river turns into waste with probability waste_spawn.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("cleanup", CleanupSettings, settings)
        view = 2 * s.radius + 1
        box = Box(shape=(len(PLANES), view, view), dtype="uint8", low=0, high=1)
        agents = tuple(Agent(name=f"agent_{i}", observation=box, action=Discrete(n=6)) for i in range(s.agents))
        world = World(id="cleanup", agents=agents, episode_steps=s.turns)
        super().__init__(world, copies, turn_mode or "sequential", s.turns, desynchronize=s.desynchronize)

        field = self._field = Grid(s.height, s.width, max(s.radius, s.beam), copies)
        self._river, self._orchard, self._sand = (field.cells(where) for where in regions(s.height, s.width))
        self._fresh = np.full(field.plane, WALL, np.uint16)
        for cells, code in ((self._river, RIVER), (self._orchard, TREE), (self._sand, SAND)):
            self._fresh[cells] = code
        self._grid = np.tile(self._fresh, copies)
        self._moves = np.concatenate((field.moves, [0, 0]))
        self._beam = beams(s.beam) @ np.array([field.stride, 1])
        self._position: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._facing: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._waste: NDArray[np.int64] = np.zeros(copies, np.int64)
        self._every = np.arange(copies)
        self._seeded()

        self._offsets = field.window(s.radius)
        middle = self._offsets.size // 2
        self._middle, self._ahead = middle, middle + np.array([-view, view, -1, 1])
        self._bits = np.array([1 << bit for bit in range(_KINDS)], np.uint16)[:, None]
        self._seen: NDArray[np.int64] = np.empty((copies, view * view), np.int64)
        self._codes: NDArray[np.uint16] = np.empty((copies, view * view), np.uint16)
        self._parts: NDArray[np.uint16] = np.empty((copies, _KINDS, view * view), np.uint16)

    def _seeded(self) -> None:
        cells = self.copies * self._orchard.size
        self._sparks = SparseBernoulli(self._generator, cells, self.settings.apple_spawn, kinds=1)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """No apples, a polluted river, agents on distinct cells of sand, facing anywhere."""
        s = self.settings
        self._grid.reshape(self.copies, -1)[copies] = self._fresh
        waste = int(np.ceil(s.initial_waste * self._river.size))
        self._grid[self._field.scatter(self._generator, self._river, copies, waste)] = WASTE
        self._waste[copies] = waste
        self._position[:, copies] = self._field.scatter(self._generator, self._sand, copies, s.agents)
        self._grid[self._position[:, copies]] |= AGENT
        self._facing[:, copies] = self._generator.integers(4, size=(s.agents, copies.size))

    def _world_step(self) -> None:
        """Apples grow, then the river is polluted; both by the river as it was."""
        s, trees = self.settings, self._orchard.size
        dirt = self._waste / self._river.size
        growth = np.clip((s.depletion - dirt) / (s.depletion - s.restoration), 0, 1)
        # Trials at the highest rate, each success kept with the copy's share of it.
        cells, _ = self._sparks.draw()
        copies = cells // trees
        at = self._field.first[copies] + self._orchard[cells - copies * trees]
        grows = self._generator.random(cells.size) < growth[copies]
        at = at[grows & (self._grid[at] == TREE)]
        self._grid[at] = APPLE
        clean = (dirt < s.depletion) & (self._waste < self._river.size)
        rows = np.flatnonzero(clean & (self._generator.random(self.copies) < s.waste_spawn))
        self._waste[rows] += 1
        # Any clean cell of the river, each as likely: cells drawn again until they are clean.
        while rows.size:
            at = self._field.first[rows] + self._river[self._generator.integers(self._river.size, size=rows.size)]
            free = (self._grid[at] & RIVER) > 0
            self._grid[at[free]] ^= RIVER | WASTE
            rows = rows[~free]

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        """Turns and moves the agent, or fires its beam."""
        if agent == 0:
            self._grid &= ~_BEAMS
        position = self._position[agent]
        np.copyto(self._facing[agent], action, where=action < _CLEAN)
        target = position + self._moves[action]
        met = self._grid[target]
        free = (met & _BLOCKED) == 0
        self._grid[position] &= ~AGENT
        np.copyto(position, target, where=free)
        self._grid[position] |= AGENT
        eaten = free & ((met & APPLE) > 0)
        self._grid[position[eaten]] ^= APPLE | TREE
        self._earned[agent, eaten] += self.settings.apple
        rows = np.flatnonzero(action >= _CLEAN)
        if rows.size:
            self._fire(agent, rows, action[rows] == _ZAP)

    def _fire(self, agent: int, rows: NDArray[np.int64], zaps: NDArray[np.bool_]) -> None:
        """Beams of one agent in the copies `rows` [n]; `zaps` [n] says of which kind."""
        cells = self._position[agent, rows, None] + self._beam[self._facing[agent, rows]]
        codes = self._grid[cells]
        beam = np.where(zaps, ZAPPING, CLEANING)[:, None]
        codes |= np.where(codes & WALL, np.uint16(0), beam)
        cleaned = ((codes & WASTE) > 0) & ~zaps[:, None]
        codes[cleaned] ^= WASTE | RIVER
        self._grid[cells] = codes
        self._waste[rows] -= cleaned.sum(axis=1)
        rows, cells = rows[zaps], cells[zaps]
        hit = (cells[None] == self._position[:, rows, None]).any(axis=2)
        self._earned[:, rows] += np.float32(self.settings.zapped) * hit
        self._earned[agent, rows] += np.float32(self.settings.zapping)

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        which = self._every if copies is None else copies
        position, n = self._position[agent, which], which.size
        seen, codes, parts = self._seen[:n], self._codes[:n], self._parts[:n]
        np.add(position[:, None], self._offsets, out=seen)
        self._grid.take(seen, out=codes, mode="clip")
        codes[:, self._middle] &= ~AGENT
        np.bitwise_and(codes[:, None, :], self._bits, out=parts)
        planes = out[:n].reshape(n, len(PLANES), -1).view(np.bool_)
        np.not_equal(parts, 0, out=planes[:, :_KINDS])
        planes[:, _KINDS] = False
        planes[self._every[:n], _KINDS, self._ahead[self._facing[agent, which]]] = True

    def scripted(self) -> Player:
        """Every other agent cleans, the rest pick apples; see `CleanupPlayer`."""
        return CleanupPlayer(self.settings.radius, self.settings.beam, generator=self._generator.spawn(1)[0])

    def contents(self, copy: int) -> NDArray[np.uint16]:
        """[height, width]: what is in each cell of one copy, a sum of `SAND` to `ZAPPING`."""
        return self._field.crop(self._grid, copy)

    def _tops(self, copy: int) -> NDArray[np.int64]:
        """[height, width]: the number of the topmost thing in each cell; agents lie above beams."""
        codes = self.contents(copy)
        tops = np.floor(np.log2(codes)).astype(np.int64)
        tops[(codes & AGENT) > 0] = PLANES.index("agent")
        return tops

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[height, width]: where agents are."""
        return np.asarray((self.contents(copy) & AGENT) > 0)

    def render(self, copy: int = 0) -> str:
        """One copy as text: `#` wall, `~` river, `%` waste, `t` tree, `o` apple, `A` agent, `+` cleaning, `!` zap."""
        return "\n".join("".join(" #~%toA+!"[kind] for kind in row) for row in self._tops(copy))

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8]:
        """One copy as a picture [height * scale, width * scale, 3]."""
        picture: NDArray[np.uint8] = _COLOURS[self._tops(copy)]
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)


_WALL, _RIVER, _WASTE, _TREE, _APPLE, _AGENT, _AHEAD = 1, 2, 3, 4, 5, 6, 9
_UP, _DOWN = 0, 1


class CleanupPlayer:
    """A hand-written player, which sees what a policy sees. Agents of even number walk to the nearest waste in view
    and clean as soon as their beam would hit any; the others walk to the nearest apple in view. Whoever is out of
    sight of its region walks up to the river or down to the orchard. Nobody zaps."""

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
