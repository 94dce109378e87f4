"""A world that is seen as a picture and two numbers, and the network that reads it: a user's own, both."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from pettingzoo import ParallelEnv
from torch import Tensor, nn

__all__ = ["Corners", "Dots", "Pair", "Reader", "Trace", "make", "make_corners", "make_pair"]


class Dots(gymnasium.Env[dict[str, Any], int]):
    """Ten times: which side of the picture has the dot? A right answer earns 1, which the last number repeats."""

    observation_space = gymnasium.spaces.Dict(
        {
            "picture": gymnasium.spaces.Box(0, 255, (8, 8, 1), np.uint8),
            "before": gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32),
        }
    )
    action_space: Any = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draws from the seed, where one is given."""
        super().reset(seed=seed)
        self.turn = 0
        return self._look(0.0), {}

    def step(self, action: int) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """The answer, and the next picture; the time is over after ten."""
        earned = float(action == self.side)
        self.turn += 1
        return self._look(earned), earned, False, self.turn == 10, {}

    def _look(self, earned: float) -> dict[str, Any]:
        row, column = self.np_random.integers(0, 8, 2)
        self.side = int(column >= 4)
        picture = np.zeros((8, 8, 1), np.uint8)
        picture[row, column] = 255
        return {"picture": picture, "before": np.array([self.turn / 10, earned], np.float32)}


class Corners(gymnasium.Env[Any, Any]):
    """Ten times: in which corner of the picture is the dot? Two right choices earn 1."""

    observation_space = gymnasium.spaces.Box(0, 255, (8, 8), np.uint8)
    action_space: Any = gymnasium.spaces.MultiDiscrete([2, 2])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Draws from the seed, where one is given."""
        super().reset(seed=seed)
        self.turn = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """The answer, and the next picture."""
        earned = float((self.place // 4 == action).all())
        self.turn += 1
        return self._look(), earned, False, self.turn == 10, {}

    def _look(self) -> Any:
        self.place = self.np_random.integers(0, 8, 2)
        picture = np.zeros((8, 8), np.uint8)
        picture[tuple(self.place)] = 255
        return picture


class Reader(nn.Module):
    """Convolutions of the picture beside the numbers."""

    def __init__(self, observation: Any, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(width), nn.ReLU())
        self.features = width + observation["before"].shape[0]

    def forward(self, observation: dict[str, Tensor]) -> Tensor:
        """[N, features]"""
        picture = observation["picture"].permute(0, 3, 1, 2).float() / 255
        return torch.cat([self.layers(picture), observation["before"]], 1)


class Trace(nn.Module):
    """A running mean of the features, which begins as it has learned, and how many rows it is of."""

    def __init__(self, features: int, rate: float = 0.5) -> None:
        super().__init__()
        self.features, self.rate = features, rate
        self.begin, self.mix = nn.Parameter(torch.zeros(features)), nn.Linear(features, features)

    def initial_state(self, rows: int) -> dict[str, Tensor]:
        """A mean of no rows."""
        return {"mean": self.begin.expand(rows, -1), "count": torch.zeros(rows, dtype=torch.int64)}

    def forward(self, features: Tensor, state: dict[str, Tensor], first: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """[T, B, features]"""
        mean, count, outputs = state["mean"], state["count"], []
        for x, new in zip(features, first, strict=True):
            mean = mean.where(~new[:, None], self.begin).lerp(self.mix(x), self.rate)
            count = count.masked_fill(new, 0) + 1
            outputs.append(mean + 0.01 * count[:, None])
        return torch.stack(outputs), {"mean": mean, "count": count}


class Pair(ParallelEnv[str, Any, int]):
    """Two, each before dots of its own."""

    metadata: ClassVar[dict[str, Any]] = {"name": "pair"}
    possible_agents: ClassVar[list[str]] = ["left", "right"]

    def __init__(self) -> None:
        self.dots = {name: Dots() for name in self.possible_agents}
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Of a `Dots`."""
        return Dots.observation_space

    def action_space(self, agent: str) -> Any:
        """Of a `Dots`."""
        return Dots.action_space

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Draws from the seed, where one is given."""
        self.agents = [*self.possible_agents]
        seeds = {name: None if seed is None else seed + number for number, name in enumerate(self.agents)}
        return {name: one.reset(seed=seeds[name])[0] for name, one in self.dots.items()}, {name: {} for name in seeds}

    def step(self, actions: dict[str, int]) -> tuple[dict[str, Any], ...]:
        """Both answer at once."""
        told = {name: one.step(actions[name]) for name, one in self.dots.items()}
        self.agents = [name for name, one in told.items() if not one[3]]
        return tuple({name: one[at] for name, one in told.items()} for at in range(5))


def make_corners() -> Corners:
    """For `environment.id`."""
    return Corners()


def make() -> Dots:
    """For `environment.id`."""
    return Dots()


def make_pair() -> Pair:
    """For `environment.id`."""
    return Pair()
