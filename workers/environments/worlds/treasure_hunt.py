"""Treasure hunt: a walled gridworld whose treasures appear by themselves, many copies at once in numpy.

Each turn the entities change first (an empty cell may turn into a gem, food or a bone), then the agents act: strictly
one after another, each seeing the world the one before left, or all at once. In flow: moves. Out flow: what each agent
sees around itself, one plane a kind of thing, and what its last move brought.

Legend: `E` copies, `A` agents, `V` = 2 * radius + 1 cells a side of the view.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from protocol.spaces import Agent, Box, DictPopulation, Discrete, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Player, Turn
from workers.environments.settings import check_grid_size, parse_settings
from workers.environments.worlds.base.grid import SparseBernoulli
from workers.environments.worlds.scripted.treasure_player import TreasurePlayer

__all__ = ["AGENT", "BONE", "EMPTY", "FOOD", "GEM", "WALL", "TreasureHunt", "TreasureHuntSettings"]

EMPTY, WALL, GEM, FOOD, BONE, AGENT = range(6)
"""Contents of a cell, and the planes of an observation in this order."""

_KINDS = 6
_NONE = np.empty(0, np.int64)
_COLOURS = np.array(
    [(24, 24, 28), (96, 96, 104), (64, 200, 255), (96, 208, 96), (216, 72, 72), (255, 208, 64)], np.uint8
)


class TreasureHuntSettings(BaseModel):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    height: int = Field(default=21, ge=3, le=1_000)
    width: int = Field(default=21, ge=3, le=1_000)
    agents: int = Field(default=2, ge=1, le=1_000)
    turns: int = Field(default=100, ge=1)
    """Turns of an episode, which then ends as truncated."""
    spawn: float = Field(default=0.005, ge=0, le=1)
    """Probability that an empty cell turns into a treasure, each turn."""
    radius: int = Field(default=2, ge=1, le=50)
    """Cells an agent sees in each direction."""
    map: bool = False
    """Show all agents the whole grid beside their own view: a common observation [height, width], codes of contents."""
    gem: float = Field(default=10.0, allow_inf_nan=False)
    food: float = Field(default=5.0, allow_inf_nan=False)
    bone: float = Field(default=-10.0, allow_inf_nan=False)
    wall: float = Field(default=-1.0, allow_inf_nan=False)
    """Reward for walking into a wall."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        check_grid_size(self.agents, self.height, self.width)
        return self


class TreasureHunt(Environment):
    """`copies` gridworlds of `settings.agents` agents; ConfigurationError for settings that cannot work.

    Observation [6, V, V] uint8: planes empty, wall, gem, food, bone, other agent; exactly one is 1 for each cell (an
    agent's own cell, in the middle, counts as empty). Actions: 0 up, 1 down, 2 left, 3 right. Walking into a wall or an
    agent leaves the agent where it is. Observations are views of internal buffers, valid until the next `step`.
    """

    has_state = True

    def __init__(
        self, copies: int = 64, turn_mode: Literal["sequential", "simultaneous"] | None = None, **settings: Any
    ) -> None:
        self.settings = parse_settings("treasure_hunt", TreasureHuntSettings, settings)
        self.copies = copies
        self.turn_mode = turn_mode or "sequential"
        s = self.settings
        view = 2 * s.radius + 1
        box = Box(shape=(_KINDS, view, view), dtype="uint8", low=0, high=1)
        agents = tuple(Agent(name=f"agent_{i}", observation=box, action=Discrete(n=4)) for i in range(s.agents))
        self._map = np.zeros((copies, s.height, s.width), np.uint8) if s.map else None
        self._final_map = None if self._map is None else np.zeros_like(self._map)
        seen = Box(shape=(s.height, s.width), dtype="uint8", low=0, high=_KINDS - 1) if s.map else None
        self.world = World(
            id="treasure_hunt",
            population=DictPopulation(agents=agents, common=seen),
            episode_steps=s.turns,
            action_period=s.agents if self.turn_mode == "sequential" else 1,
        )

        # The view reaches beyond the outer wall: further walls around it spare a test for the border.
        margin = s.radius - 1
        self._stride = s.width + 2 * margin
        rows = np.arange(margin + 1, margin + s.height - 1)[:, None] * self._stride
        self._interior: NDArray[np.int64] = (rows + np.arange(margin + 1, margin + s.width - 1)).ravel()
        self._plane = (s.height + 2 * margin) * self._stride
        self._fresh = np.full(self._plane, WALL, np.int8)
        self._fresh[self._interior] = EMPTY
        self._moves = np.array([-self._stride, self._stride, -1, 1], np.int64)
        reach = np.arange(-s.radius, s.radius + 1)
        self._offsets: NDArray[np.int64] = (reach[:, None] * self._stride + reach).ravel()
        self._value = np.array([0, s.wall, s.gem, s.food, s.bone, 0], np.float32)
        self._enterable = np.array([True, False, True, True, True, False])
        self._planes = np.arange(_KINDS, dtype=np.int8)[:, None]

        self._first = np.arange(copies, dtype=np.int64) * self._plane
        self._grid = np.tile(self._fresh, copies)
        self._position: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._left: NDArray[np.int64] = np.zeros(copies, np.int64)
        self._next = 0
        self._seen: NDArray[np.int64] = np.empty((copies, view * view), np.int64)
        self._codes: NDArray[np.int8] = np.empty((copies, view * view), np.int8)
        self._observation = np.zeros((s.agents, copies, *box.shape), np.uint8)
        self._final = np.zeros_like(self._observation)
        self._final_index = [_NONE] * s.agents
        self._reward = np.zeros((s.agents, copies), np.float32)
        self._truncated = np.zeros((s.agents, copies), np.bool_)
        self._terminated = np.zeros(copies, np.bool_)
        self._seed_from(0)

    def _seed_from(self, seed: int) -> None:
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._sparks = SparseBernoulli(self._generator, self._grid.size, self.settings.spawn, kinds=3)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies, reproducibly from `seed`; the first agent (or all) is present."""
        self._seed_from(seed)
        turns = self.settings.turns
        self._begin(np.arange(self.copies))
        if self.settings.desynchronize:
            self._left[:] = self._generator.integers(1, turns + 1, self.copies)
        self._reward.fill(0)
        self._truncated.fill(False)
        self._final_index = [_NONE] * self.settings.agents
        self._next = 0
        self._entities_change()
        return Turn(self._present(), common=self._look_at_all())

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Moves the agents of the last turn. `env_steps` is E with the step that completes a turn, else 0."""
        if self.turn_mode == "sequential":
            self._move(self._next, actions[0])
            self._next = (self._next + 1) % self.settings.agents
        else:
            for agent, action in enumerate(actions):
                self._move(agent, action)
        if self._next:
            return Turn(self._present(), common=self._look_at_all())
        self._end_turn()
        self._entities_change()
        return Turn(self._present(), env_steps=self.copies, common=self._look_at_all())

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """Of an episode that has just ended, what those are owed whose turn comes later."""
        if self.turn_mode == "simultaneous":
            return ()
        outcomes = []
        for agent in range(self._next + 1, self.settings.agents):
            ended = self._final_index[agent]
            n = ended.size
            if n:
                cut, never = np.ones(n, np.bool_), np.zeros(n, np.bool_)
                final = self._final[agent, :n], None if self._final_map is None else self._final_map[:n]
                outcomes.append(
                    AgentOutcome(agent, ended, self._reward[agent, ended], never, cut, np.arange(n), *final)
                )
                self._reward[agent, ended] = 0
                self._final_index[agent] = _NONE
                self._truncated[agent].fill(False)
        return tuple(outcomes)

    def _entities_change(self) -> None:
        """Every empty cell turns into a treasure with probability `spawn`; walls around it are never empty."""
        cells, kinds = self._sparks.draw()
        empty = self._grid[cells] == EMPTY
        self._grid[cells[empty]] = kinds[empty] + np.int8(GEM)

    def _move(self, agent: int, action: NDArray[np.int64]) -> None:
        """Agent `agent` acts in all copies; action [E]."""
        position = self._position[agent]
        target = self._moves[action]
        target += position
        met = self._grid[target]
        self._value.take(met, out=self._reward[agent], mode="clip")
        self._grid[position] = EMPTY
        np.copyto(position, target, where=self._enterable[met])
        self._grid[position] = AGENT
        if self._final_index[agent].size:
            self._final_index[agent] = _NONE
            self._truncated[agent].fill(False)

    def _end_turn(self) -> None:
        """Counts the turn; where it was the last, keeps what each agent sees at the end and starts a new episode."""
        self._left -= 1
        if self._left.all():
            return
        ended = np.flatnonzero(self._left == 0)
        for agent, position in enumerate(self._position):
            self._look(position[ended], self._final[agent])
            self._final_index[agent] = ended
            self._truncated[agent, ended] = True
        if self._final_map is not None:
            self._final_map[: ended.size] = self._cells(ended)
        self._begin(ended)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        """New episodes in `copies` [n]: an empty grid, agents on distinct cells, all choices equally likely."""
        self._left[copies] = self.settings.turns
        self._grid.reshape(self.copies, self._plane)[copies] = self._fresh
        taken = np.empty((copies.size, 0), np.int64)
        for agent in range(self.settings.agents):
            cell = self._generator.integers(self._interior.size - agent, size=copies.size)
            for other in np.sort(taken, axis=1).T:
                cell += cell >= other
            taken = np.column_stack((taken, cell))
            self._position[agent, copies] = self._first[copies] + self._interior[cell]
            self._grid[self._position[agent, copies]] = AGENT

    def _look(self, position: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Writes what is seen from `position` [n] to the first n rows of `out` [E, 6, V, V]."""
        n = position.size
        seen, codes = self._seen[:n], self._codes[:n]
        np.add(position[:, None], self._offsets, out=seen)
        self._grid.take(seen, out=codes, mode="clip")
        codes[:, self._offsets.size // 2] = EMPTY
        planes = out[:n].reshape(n, _KINDS, -1).view(np.bool_)
        np.equal(codes[:, None, :], self._planes, out=planes)

    def _look_at_all(self) -> NDArray[np.uint8] | None:
        """[E, height, width]: what lies where in all copies, if that is shown."""
        if self._map is not None:
            self._map[...] = self._cells(slice(None))
        return self._map

    def _cells(self, copies: slice | NDArray[np.int64]) -> NDArray[np.int8]:
        """[n, height, width]: the contents of `copies`, without the further walls."""
        margin, s = self.settings.radius - 1, self.settings
        grid = self._grid.reshape(self.copies, -1, self._stride)
        cells: NDArray[np.int8] = grid[copies, margin : margin + s.height, margin : margin + s.width]
        return cells

    def _present(self) -> tuple[AgentTimeStep, ...]:
        agents = range(self.settings.agents) if self.turn_mode == "simultaneous" else (self._next,)
        return tuple(self._present_agent(agent) for agent in agents)

    def _present_agent(self, agent: int) -> AgentTimeStep:
        self._look(self._position[agent], self._observation[agent])
        index = self._final_index[agent]
        return AgentTimeStep(
            agent=agent,
            observation=self._observation[agent],
            reward=self._reward[agent],
            terminated=self._terminated,
            truncated=self._truncated[agent],
            final_index=index,
            final_observation=self._final[agent, : index.size] if index.size else None,
            final_common=self._final_map[: index.size] if self._final_map is not None and index.size else None,
        )

    def scripted(self) -> Player:
        """Walks to the best thing in view; see `TreasurePlayer`."""
        s = self.settings
        values = {GEM: s.gem, FOOD: s.food, BONE: s.bone}
        return TreasurePlayer(s.radius, values, obstacles=(WALL, AGENT), generator=self._generator.spawn(1)[0])

    def contents(self, copy: int) -> NDArray[np.int8]:
        """[height, width]: what lies in each cell of one copy."""
        return self._cells(slice(copy, copy + 1))[0].copy()

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_]:
        """[height, width]: where agents are."""
        return np.asarray(self.contents(copy) == AGENT)

    def render(self, copy: int = 0) -> str:
        """One copy as text: `#` wall, `*` gem, `o` food, `x` bone, `A` agent."""
        return "\n".join("".join(" #*oxA"[code] for code in row) for row in self.contents(copy))

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8]:
        """One copy as a picture [height * scale, width * scale, 3]."""
        picture: NDArray[np.uint8] = _COLOURS[self.contents(copy)]
        return picture.repeat(scale, axis=0).repeat(scale, axis=1)
