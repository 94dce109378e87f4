"""Worlds that tell of their episodes in `info`: one in the manner of PettingZoo, one in our own form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Environment, Turn

__all__ = ["Batched", "Match", "batched", "match"]

TURNS = 5
INFOS: dict[str, dict[str, Any]] = {
    "keeper": {"won": True, "far": -2.5, "odd": math.nan, "name": "keeper"},
    "left": {"won": False, "far": 4.0, **{f"n{number:02}": number for number in range(33)}},
    "right": {"won": True, "far": -1.0, **{f"n{number:02}": number for number in range(33)}},
}
"""What each agent is told at the end of each episode."""


class Match:
    """Three agents, for five turns."""

    possible_agents = [*INFOS]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        """Of all the same."""
        return gymnasium.spaces.Box(0, 1, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        """Of all the same."""
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """A new episode."""
        self.agents, self.turn = [*INFOS], 0
        return self._look(), {agent: {} for agent in INFOS}

    def step(self, actions: dict[str, int]) -> Any:
        """All agents act; what is told earlier than at the end is none of the episode's."""
        self.turn += 1
        over = self.turn == TURNS
        infos = INFOS if over else {agent: {"far": 100.0} for agent in INFOS}
        if over:
            self.agents = []
        rewards = {agent: float(actions[agent]) for agent in INFOS}
        return self._look(), rewards, dict.fromkeys(INFOS, over), dict.fromkeys(INFOS, False), infos

    def close(self) -> None:
        """Has nothing to close."""

    def _look(self) -> dict[str, Any]:
        return {agent: np.array([1, self.turn / TURNS], np.float32) for agent in INFOS}


def match() -> Match:
    """For `environment.id`."""
    return Match()


class Batched(Environment):
    """Two agents, who act together, for five turns."""

    has_state = True

    def __init__(self, copies: int) -> None:
        agents = tuple(Agent(name=f"agent_{k}", observation=Box(shape=(1,)), action=Discrete(n=2)) for k in range(2))
        self.world, self.copies, self.turn = World(id="batched", agents=agents, episode_steps=TURNS), copies, 0

    def reset(self, seed: int) -> Turn:
        """All copies begin together."""
        self.turn = 0
        return self._told(0, [np.zeros(self.copies, np.float32)] * 2, over=False)

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """An episode ends after five turns, and tells what its last action was."""
        self.turn += 1
        over = self.turn % TURNS == 0
        for agent, acts in enumerate(actions) if over else ():
            for act in acts:
                self.tell(agent, {"last": bool(act), "debt": -3 * (agent + 1)})
        return self._told(self.copies, [act.astype(np.float32) for act in actions], over)

    def _told(self, env_steps: int, rewards: list[NDArray], over: bool) -> Turn:
        never, ends = np.zeros(self.copies, np.bool_), np.full(self.copies, over)
        seen = np.full((self.copies, 1), self.turn % TURNS, np.float32)
        return Turn(tuple(AgentTimeStep(k, seen, rewards[k], ends, never) for k in range(2)), env_steps)


def batched(copies: int) -> Batched:
    """For `environment.id`."""
    return Batched(copies)
