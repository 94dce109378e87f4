"""Weather: a sign says what to do, but most of what is earned is the weather's, which only learners see; many copies at
once in numpy.

No player can do anything about the weather, and none sees it. A critic that does knows what an action was worth; to one
that does not, the action drowns in luck. In flow: one action an agent. Out flow: signs, and the weather.

Legend: `E` copies, `A` agents, `K` signs, `n` some of the copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, Component, Discrete, Observation, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode


class WeatherSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    signs: int = Field(default=4, ge=2, le=1_000)
    """Different signs, and as many actions."""
    turns: int = Field(default=2, ge=1, le=100_000)
    luck: float = Field(default=100.0, ge=0, allow_inf_nan=False)
    """What good weather adds to each action's reward, and bad weather takes from it."""
    agents: int = Field(default=1, ge=1, le=100)
    """Each has signs of its own, under one sky."""


class Weather(FixedLengthWorld):
    """`copies` skies under which `turns` turns are played, then the episode terminates; ConfigurationError for settings
    that cannot work.

    Observation `sign` [K + 1] float32: a sign one-hot, drawn anew each turn, and the share of the episode that is left;
    `weather` [1] float32, evaluation-only: 1 in a good episode, -1 in a bad one, half of each among copies that begin
    together. An action brings 1 if it is the number of the sign, and `luck` times the weather whatever it is: the mean
    return of all copies is that of the actions alone, 1 a turn at best, 1 / K by chance.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("weather", WeatherSettings, settings)
        seen = Observation(
            components={
                "sign": Component(space=Box(shape=(s.signs + 1,), low=0, high=1)),
                "weather": Component(space=Box(shape=(1,), low=-1, high=1), evaluation_only=True),
            }
        )
        agents = tuple(Agent(name=f"agent_{i}", observation=seen, action=Discrete(n=s.signs)) for i in range(s.agents))
        world = World(id="weather", agents=agents, episode_steps=s.turns)
        super().__init__(world, copies, turn_mode or "simultaneous", s.turns, terminates=True)
        self._every = np.arange(copies)
        self._weather = np.zeros(copies, np.float32)
        self._sign: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        self._weather[self._generator.permutation(copies)] = np.resize([1, -1], copies.size)

    def _world_step(self) -> None:
        self._sign[:] = self._generator.integers(self.settings.signs, size=self._sign.shape)

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        self._earned[agent] += action == self._sign[agent]
        self._earned[agent] += np.float32(self.settings.luck) * self._weather

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        where = self._every if copies is None else copies
        seen = out[: where.size]
        seen["sign"] = 0
        seen["sign"][np.arange(where.size), self._sign[agent, where]] = 1
        seen["sign"][:, -1] = self._left[where] / self._turns
        seen["weather"][:, 0] = self._weather[where]

    def scripted(self) -> Player:
        """Does what the sign says: the best player there is."""

        def choose(present: AgentTimeStep) -> NDArray[np.int64]:
            return np.asarray(present.observation["sign"][:, :-1].argmax(axis=1))

        return choose

    def render(self, copy: int = 0) -> str:
        """One copy as text: the weather, then each agent's sign."""
        sky = "good" if self._weather[copy] > 0 else "bad"
        return f"{sky} weather, {', '.join(f'sign {sign}' for sign in self._sign[:, copy])}"
