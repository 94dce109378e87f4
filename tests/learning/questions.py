"""Worlds that ask ten questions an episode: of a text and the doors it speaks of, and of a crowd of any size."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Text

__all__ = ["Crowd", "Doors"]

QUESTIONS = 10
COLORS = ("red", "green", "blue", "grey")
WAYS = ("go to the {} door", "open the {} one", "{} is where you must go")
MOST = 8


class _Questions(gymnasium.Env[dict[str, Any], int]):
    right = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draws from the seed, where one is given."""
        super().reset(seed=seed)
        self.turn = 0
        return self.ask(), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """The answer, and the next question."""
        earned = float(action == self.right)
        self.turn += 1
        return self.ask(), earned, False, self.turn == QUESTIONS, {}

    def ask(self) -> dict[str, Any]:
        """What is seen; `right` is the answer."""
        raise NotImplementedError


class Doors(_Questions):
    """Which of four doors, each of its color, is the one that the text speaks of? By chance 2.5 of ten are right."""

    observation_space = Dict(
        {"mission": Text(32, charset="abcdefghijklmnopqrstuvwxyz "), "doors": MultiDiscrete([4] * 4)}
    )
    action_space: Any = Discrete(4)

    def ask(self) -> dict[str, Any]:
        """Doors in any order, and one of three ways to say it."""
        doors = self.np_random.permutation(4)
        self.right = int(self.np_random.integers(4))
        way = WAYS[self.np_random.integers(len(WAYS))]
        return {"mission": way.format(COLORS[doors[self.right]]), "doors": doors}


class Crowd(_Questions):
    """Are there more friends on the left or on the right, foes taken off? One to eight are there, in any order; who
    only counts heads is right in half of the questions."""

    observation_space = Dict({"crowd": Box(-1.0, 1.0, (MOST, 3), np.float32)})
    action_space: Any = Discrete(2)

    def ask(self) -> dict[str, Any]:
        """Rows of a place (two numbers) and 1 for a friend, -1 for a foe; the others are zeros."""
        crowd, worth = np.zeros((MOST, 3), np.float32), 0.0
        while worth == 0:
            there = self.np_random.permutation(MOST)[: self.np_random.integers(1, MOST + 1)]
            crowd[:] = 0
            crowd[there, :2] = self.np_random.uniform(-1, 1, (len(there), 2))
            crowd[there, 2] = self.np_random.choice((-1, 1), len(there))
            worth = float((np.sign(crowd[:, 0]) * crowd[:, 2]).sum())
        self.right = int(worth > 0)
        return {"crowd": crowd}
