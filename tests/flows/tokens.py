"""A world with the habits of mettagrid's PettingZoo class: agents are integers, and each is shown tokens."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

__all__ = ["Tokens", "make"]


class Tokens:
    """Three agents earn 1 for the action that their first token names."""

    def __init__(self) -> None:
        self.possible_agents = [0, 1, 2]
        self.agents: list[int] = []
        self._seen = gymnasium.spaces.Box(0, 255, (20, 3), np.uint8)
        self._done = gymnasium.spaces.Discrete(5)
        self._generator = np.random.default_rng(0)

    def observation_space(self, agent: int) -> Any:
        """The same object for each agent."""
        return self._seen

    def action_space(self, agent: int) -> Any:
        """The same object for each agent."""
        return self._done

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        """Draws from the seed, where one is given."""
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self.agents, self.turn = list(self.possible_agents), 0
        return self._look(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[int, int]) -> Any:
        """All agents act; the time is over after 20 turns."""
        rewards = {agent: float(actions[agent] == self._tokens[agent, 0, 0]) for agent in self.agents}
        self.turn += 1
        over = dict.fromkeys(self.agents, self.turn == 20)
        seen, alive, infos = self._look(), dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, None)
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, rewards, alive, over, infos

    def _look(self) -> dict[int, NDArray[np.uint8]]:
        self._tokens = self._generator.integers(0, 5, (3, 20, 3)).astype(np.uint8)
        return {agent: self._tokens[agent] for agent in self.agents}

    def close(self) -> None:
        """Has nothing to close."""


def make() -> Tokens:
    """For `environment.id`."""
    return Tokens()
