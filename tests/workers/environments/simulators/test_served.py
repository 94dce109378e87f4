"""Simulators that have no clock of their own: a run resets and steps them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from protocol.simulator.serve import serve
from protocol.spaces import Agent, Box, Discrete, World
from tests.workers.environments.simulators.serving import WALK, serving


class Walk(gymnasium.Env[Any, Any]):
    """Four steps; every second episode is cut, the others end by themselves."""

    episodes = 0

    def __init__(self) -> None:
        self.seeds: list[int] = []
        self.done: list[int] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        assert seed is not None
        self.seeds.append(seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.done.append(int(action))
        self.steps += 1
        over, cut = self.steps == 4, self.episodes % 2 == 0
        seen = np.array([self.steps, self.episodes], np.float32)
        told = {"cut": np.bool_(cut), "steps": self.steps, "odd": float("nan"), "text": "x", "long" * 13: 1.0}
        return seen, float(self.steps), over and not cut, over and cut, told


def test_an_environment_is_reset_and_stepped_from_afar_I7() -> None:
    """I7: whole episodes, each from a seed of its own; both kinds of end, with the numbers of the last `info`."""
    env = Walk()
    with serving(WALK) as served:
        assert serve(env, served.address, "one", episodes=3) == 3
        served.settle()
        assert served.environment.take_episodes() == {("info/cut", 0): (3, 1.0), ("info/steps", 0): (3, 12.0)}
    rows = served.rows()
    assert [(row.seen.tolist(), row.reward, row.end) for row in rows[:8]] == [
        ([0.0, 0.0], 1.0, ""),
        ([1.0, 1.0], 2.0, ""),
        ([2.0, 1.0], 3.0, ""),
        ([3.0, 1.0], 4.0, "terminated"),
        ([0.0, 0.0], 1.0, ""),
        ([1.0, 2.0], 2.0, ""),
        ([2.0, 2.0], 3.0, ""),
        ([3.0, 2.0], 4.0, "truncated"),
    ]
    assert rows[7].final.tolist() == [4.0, 2.0]
    assert env.done == [int(row.action) for row in rows]
    assert len(set(env.seeds)) == 3
    assert max(env.seeds) < 2**31


class Pair:
    """Two agents; one dies first, the other one is cut at the end."""

    possible_agents = ("left", "right")

    def reset(self, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.steps = list(self.possible_agents), 0
        return self._seen(), {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        acted, self.steps = self.agents, self.steps + 1
        assert set(actions) == set(acted)
        terminated = {name: name == "left" and self.steps == 2 for name in acted}
        truncated = dict.fromkeys(acted, self.steps == 3)
        self.agents = [name for name in acted if not (terminated[name] or truncated[name])]
        return self._seen(), dict.fromkeys(acted, 1.0), terminated, truncated, {}

    def _seen(self) -> dict[str, Any]:
        return {name: np.full(2, self.steps, np.float32) for name in self.possible_agents}


def test_agents_of_one_environment_end_each_in_its_own_time_I5_I7() -> None:
    """I5 I7: by PettingZoo's parallel form."""
    agents = tuple(Agent(name=name, observation=Box(shape=(2,)), action=Discrete(n=8)) for name in ("left", "right"))
    with serving(World(id="pair", agents=agents)) as served:
        assert serve(Pair(), served.address, "one", episodes=2) == 2
        served.settle()
    for name, ends in (("left", ["", "terminated"]), ("right", ["", "", "truncated"])):
        assert [row.end for row in served.rows(name)] == ends * 2
    assert served.rows("right")[2].final.tolist() == [3.0, 3.0]
