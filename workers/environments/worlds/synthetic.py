"""A world that costs nothing: numbers made in advance, which an agent should answer; for measuring what lies around it.

In flow: actions. Out flow: views of one table. An agent sees its last action, how far its episode is and random
numbers, or all of these as bytes of a picture; right is the action whose number is the largest of the first that there
are.

Legend: `E` copies, `A` agents of a copy, `R = A * E` rows, `D` numbers of an observation, `N` actions, `P` numbers of
steps until the table is shown again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Box, DictPopulation, Discrete, Payoff, World
from workers.environments.base import (
    AgentTimeStep,
    Environment,
    Player,
    Turn,
    WorldSettings,
    parse_settings,
    refuse_sequential,
)

PERIOD = 1024
"""P"""
SHOWN = 2
"""Numbers of an observation before the random ones: the last action (0 at first), and the step of the episode."""


class SyntheticSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    agents: int = Field(default=3, ge=1, le=1_000)
    many: int | None = Field(default=None, ge=1, le=1_000_000)
    """One template that stands for so many agents, which share a policy, instead of `agents` named ones."""
    observation: int = Field(default=64, ge=4, le=1_000_000)
    """Numbers that an agent sees."""
    image: list[Annotated[int, Field(ge=1, le=1_000)]] | None = Field(default=None, min_length=3, max_length=3)
    """Height, width and channels of a picture of bytes, which an agent sees instead of `observation` numbers."""
    actions: int = Field(default=8, ge=2, le=10_000)
    episode_steps: int = Field(default=1_000, ge=1, le=1_000_000)
    """Steps of an episode, which then ends as truncated."""
    cooperative: bool = False
    """Give everybody the mean of what all agents of a copy earn."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..episode_steps, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _room(self) -> Self:
        if self.actions > self.numbers - SHOWN:
            raise ConfigurationError(
                "observation_too_small_for_actions",
                count=self.actions,
                expected=self.actions + SHOWN,
                spare=SHOWN,
                value=self.numbers,
            )
        return self

    @property
    def numbers(self) -> int:
        """D"""
        return prod(self.image or [self.observation])

    @property
    def box(self) -> Box:
        """What an agent sees."""
        if self.image:
            return Box(shape=tuple(self.image), dtype="uint8", low=0, high=255)
        return Box(shape=(self.observation,), dtype="float32", low=0, high=max(1, self.actions - 1))


class Synthetic(Environment):
    """`copies` copies; ConfigurationError for settings that cannot work, or if agents are to act one after another.

    Step t (since `reset`) shows row r of all `R` row `t % P + r` of `table` [P + R, D], numbers uniform in [0, 1), and
    writes the row's last action and the step of its episode over `episode_steps` into its first two; a picture's bytes
    are uniform in 0..255, the last action modulo 256, and 255 at an episode's end. The action
    `argmax(observation[2 : 2 + N])` earns 1, every other 0. Rows are `agent * E + copy` of named agents, and
    `copy * A + place` of a template.
    """

    has_state = True

    def __init__(self, copies: int = 64, turn_mode: str | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("synthetic", SyntheticSettings, settings)
        refuse_sequential("synthetic", turn_mode)
        self.world, self.copies = _world(s), copies
        self._agents = s.many or s.agents
        self._rows = rows = self._agents * copies
        self.table = np.empty((PERIOD + rows, s.numbers), s.box.dtype)
        self._end_shown = 255 if s.image else 1
        """What an observation's second number is at the end of an episode."""
        self._right: NDArray[np.int64] = np.zeros(PERIOD + rows, np.int64)
        self._per_copy = np.arange(rows).reshape(copies, -1) if s.many else np.arange(rows).reshape(-1, copies).T
        self._copy = np.empty(rows, np.int64)
        """[R]: which copy a row is of."""
        self._copy[self._per_copy] = np.arange(copies)[:, None]
        self._at = self._now = self._next_end = 0
        self._end: NDArray[np.int64] = np.zeros(copies, np.int64)
        """[E]: the step, since `reset`, after which the present episode ends; `_next_end` is the first of them."""
        self._steps = np.zeros(rows, np.float32)
        """[R]: of the present episode."""
        self._reward = np.zeros(rows, np.float32)
        self._never, self._done = np.zeros(rows, np.bool_), np.zeros(rows, np.bool_)
        slices = [slice(0, rows)] if s.many else [slice(a * copies, (a + 1) * copies) for a in range(s.agents)]
        self._told = [(where, self._reward[where], self._never[where], self._done[where]) for where in slices]
        """Of each agent: its rows, reward and ends there."""

    def reset(self, seed: int) -> Turn:
        """Draws the table from `seed`; all agents are present."""
        s, generator = self.settings, np.random.default_rng(seed)
        if s.image:
            self.table[:] = generator.integers(256, size=self.table.shape, dtype=np.uint8)
        else:
            generator.random(out=self.table, dtype=np.float32)
        self._right[:] = self.table[:, SHOWN : SHOWN + s.actions].argmax(axis=1)
        self._end.fill(s.episode_steps)
        if s.desynchronize:
            self._end[:] = generator.integers(1, s.episode_steps + 1, self.copies)
        self._at, self._now, self._next_end = 0, 0, int(self._end.min())
        for array in (self._steps, self._reward, self._done):
            array.fill(0)
        self._table()[:, :SHOWN] = 0
        return Turn(self._present(self._table()))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """One full turn of all copies."""
        s = self.settings
        done = actions[0] if len(actions) == 1 else np.concatenate(actions)
        np.equal(done, self._right[self._at : self._at + self._rows], out=self._reward, casting="unsafe")
        if s.cooperative:
            self._reward[:] = self._reward[self._per_copy].mean(axis=1)[self._copy]
        self._at = (self._at + 1) % PERIOD
        self._steps += 1
        shown = self._table()
        shown[:, 0] = done
        np.multiply(self._steps, np.float32(self._end_shown / s.episode_steps), out=shown[:, 1], casting="unsafe")
        self._now += 1
        if self._now == self._next_end:
            return Turn(self._finish(shown), env_steps=self.copies)
        self._done.fill(False)
        return Turn(self._present(shown), env_steps=self.copies)

    def scripted(self) -> Player:
        """The best player there is: does what is right."""
        actions = self.settings.actions

        def choose(present: AgentTimeStep) -> NDArray[np.int64]:
            seen = present.observation.reshape(len(present.observation), -1)
            return seen[:, SHOWN : SHOWN + actions].argmax(axis=1)

        return choose

    def render(self, copy: int = 0) -> str:
        """The step of one copy's episode, what is right and what was earned last, as text."""
        rows = self._per_copy[copy]
        right, earned = self._right[self._at + rows].tolist(), self._reward[rows].tolist()
        return f"step {self.settings.episode_steps - int(self._end[copy]) + self._now}: right {right}, earned {earned}"

    def _table(self) -> NDArray[Any]:
        """[R, D]: what is shown in this turn."""
        return self.table[self._at : self._at + self._rows]

    def _present(self, shown: NDArray[Any]) -> tuple[AgentTimeStep, ...]:
        return tuple(
            AgentTimeStep(agent, self._seen(shown[rows]), reward, never, done)
            for agent, (rows, reward, never, done) in enumerate(self._told)
        )

    def _seen(self, rows: NDArray[Any]) -> NDArray[Any]:
        """[rows, D] -> [rows, *shape], without a copy."""
        return rows.reshape(len(rows), *self.settings.box.shape)

    def _finish(self, shown: NDArray[Any]) -> tuple[AgentTimeStep, ...]:
        """Ends the episodes that have no step left, and begins new ones there."""
        over = self._end == self._now
        self._end[over] += self.settings.episode_steps
        self._next_end = int(self._end.min())
        np.take(over, self._copy, out=self._done)
        last = shown[self._done]
        shown[self._done, :SHOWN] = 0
        self._steps[self._done] = 0
        turn, told = self._present(shown), 0
        for present in turn:
            present.final_index = np.flatnonzero(present.truncated)
            present.final_observation = self._seen(last[told : told + len(present.final_index)])
            told += len(present.final_index)
        return turn


def _world(s: SyntheticSettings) -> World:
    payoff: Payoff = "cooperative" if s.cooperative else "general"
    population: ArrayPopulation | DictPopulation
    if s.many:
        template = Agent(name="agent", observation=s.box, action=Discrete(n=s.actions))
        population = ArrayPopulation(template=template, capacity=s.many, payoff=payoff)
    else:
        members = [Agent(name=f"agent_{i}", observation=s.box, action=Discrete(n=s.actions)) for i in range(s.agents)]
        population = DictPopulation(agents=tuple(members), payoff=payoff)
    return World(id="synthetic", population=population, episode_steps=s.episode_steps, action_period=1)
