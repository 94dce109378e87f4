"""Games drawn at random, for PettingZoo's two forms, that keep their own books: agents die, come and act by chance.

Every observation is (0, t) with a t that no other observation of the same game has. `books` lists, for each agent, its
rows: what a learner must find, whatever lies between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv

NAMES = ["ant", "bee", "cat"]


@dataclass
class Row:
    """What one action led to."""

    seen: float
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    final: float | None = None


class Books:
    """Of every agent: its rows, the last of which may be open, and rewards that came before its first action."""

    def __init__(self, names: Sequence[str] = NAMES) -> None:
        self.rows: dict[str, list[Row]] = {name: [] for name in names}
        self.open: dict[str, Row | None] = dict.fromkeys(names)
        self.early = dict.fromkeys(names, 0.0)
        self.before: list[dict[str, list[Row]]] = []
        """The rows when each episode began."""

    def begin(self) -> None:
        self.before.append({name: list(rows) for name, rows in self.rows.items()})

    def act(self, name: str, seen: float) -> None:
        self.close(name)
        self.open[name] = Row(seen, self.early[name])
        self.early[name] = 0.0

    def earn(self, name: str, reward: float) -> None:
        row = self.open[name]
        if row is None:
            self.early[name] += reward
        else:
            row.reward += reward

    def end(self, name: str, truncated: bool, final: float) -> None:
        row = self.open[name]
        self.early[name] = 0.0
        if row is not None:
            row.truncated, row.terminated = truncated, not truncated
            row.final = final if truncated else None
            self.close(name)

    def close(self, name: str) -> None:
        row = self.open[name]
        if row is not None:
            self.rows[name].append(row)
            self.open[name] = None


class _Spaces:
    possible_agents: list[str] = NAMES
    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode = None
    seen_space, done_space = Box(-np.inf, np.inf, (2,), np.float32), Discrete(5)

    def observation_space(self, agent: str) -> Box:
        return self.seen_space

    def action_space(self, agent: str) -> Discrete:
        return self.done_space


class InTurns(_Spaces, AECEnv):
    """Whose turn it is, who dies of what (also somebody else, also before it ever acted) and who earns: all drawn."""

    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.books = Books()
        self.time = 0.0

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.time += 1
        self.books.begin()
        self.agents = [name for name in NAMES if self.chance.random() < 0.8] or NAMES[:1]
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self.agent_selection = str(self.chance.choice(self.agents))
        self._skip_agent_selection = None

    def observe(self, agent: str) -> Any:
        return np.array([0, self.time], np.float32)

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        assert action == self.time % 5, "the action is the one chosen for this observation"
        self.books.act(name, self.time)
        self._cumulative_rewards[name] = 0
        self.time += 1
        for one in self.agents:
            self.rewards[one] = float(self.chance.integers(-9, 10)) * (self.chance.random() < 0.6)
            self.books.earn(one, self.rewards[one])
        self._accumulate_rewards()
        for one in self.agents:
            if self.chance.random() < 0.1:
                truncated = bool(self.chance.random() < 0.5)
                (self.truncations if truncated else self.terminations)[one] = True
                self.books.end(one, truncated, self.time)
        alive = [one for one in self.agents if not (self.terminations[one] or self.truncations[one])]
        if alive:
            self.agent_selection = str(self.chance.choice(alive))
        self._deads_step_first()


class Together(_Spaces, ParallelEnv):
    """Who dies, who comes (also again) and who earns: all drawn."""

    def __init__(self, seed: int, busy: float = 0.8, joins: float = 0.2, agents: int = len(NAMES)) -> None:
        self.chance = np.random.default_rng(seed)
        self.possible_agents = [*NAMES, *(f"ant_{number}" for number in range(len(NAMES), agents))][:agents]
        self.books = Books(self.possible_agents)
        self.time, self.busy, self.joins = 0.0, busy, joins

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.time += 1
        self.books.begin()
        self.agents = [name for name in self.possible_agents if self.chance.random() < self.busy] or NAMES[:1]
        return {name: self.observe() for name in self.agents}, {}

    def observe(self) -> Any:
        return np.array([0, self.time], np.float32)

    def step(self, actions: dict[str, int]) -> Any:
        assert sorted(actions) == sorted(self.agents)
        for name, action in actions.items():
            assert action == self.time % 5
            self.books.act(name, self.time)
        self.time += 1
        acted, rewards, ends = list(self.agents), {}, {}
        for name in acted:
            rewards[name] = float(self.chance.integers(-9, 10))
            self.books.earn(name, rewards[name])
            ends[name] = self.chance.choice(["", "terminated", "truncated"], p=[0.8, 0.1, 0.1])
            if ends[name]:
                self.books.end(name, ends[name] == "truncated", self.time)
        new = [name for name in self.possible_agents if name not in acted and self.chance.random() < self.joins]
        self.agents = [name for name in acted if not ends[name]] + new
        return (
            {name: self.observe() for name in {*acted, *self.agents}},
            rewards,
            {name: ends[name] == "terminated" for name in acted},
            {name: ends[name] == "truncated" for name in acted},
            {name: {} for name in acted},
        )
