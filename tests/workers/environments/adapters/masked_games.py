"""Games drawn at random in which most choices are illegal, for each form of environment; an illegal one is an error."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

__all__ = ["ACTIONS", "NAMES", "Alone", "InTurn", "Together", "legal"]

NAMES = ["ant", "bee"]
ACTIONS = {
    "plain": spaces.Discrete(5, start=-2),
    "several": spaces.MultiDiscrete([2, 3, 4], start=[0, 1, -1]),
    "nested": spaces.Dict(
        {"go": spaces.Discrete(4), "hold": spaces.MultiDiscrete([2, 3]), "how": spaces.Box(-1, 1, (2,))}
    ),
}


def _drawn(space: Any, chance: np.random.Generator) -> Any:
    """A mask with a legal choice for each element: as an array, or a mapping by dotted names."""
    if isinstance(space, spaces.Dict):
        parts = {key: _drawn(part, chance) for key, part in space.items()}
        return {key: part for key, part in parts.items() if part is not None}
    if isinstance(space, spaces.Box):
        return None
    sizes = [space.n] if isinstance(space, spaces.Discrete) else space.nvec.tolist()
    masks = []
    for size in sizes:
        mask = (chance.random(int(size)) < 0.3).astype(np.int8)
        mask[chance.integers(size)] = 1
        masks.append(mask)
    return np.concatenate(masks)


def legal(space: Any, action: Any, mask: Any) -> bool:
    """Whether an action is in its space and keeps to the mask."""
    if not space.contains(action):
        return False
    if isinstance(space, spaces.Dict):
        return all(legal(part, action[key], mask[key]) for key, part in space.items() if key in mask)
    if isinstance(space, spaces.Discrete):
        return bool(mask[action - space.start])
    at = np.concatenate(([0], np.cumsum(space.nvec[:-1])))
    return bool(mask[at + np.asarray(action) - space.start].all())


class _Rules:
    """What is legal now, for whom, and how that is told: `beside` the observation or in infos."""

    def __init__(self, kind: str, beside: bool, seed: int) -> None:
        self.space, self.beside = ACTIONS[kind], beside
        self.chance = np.random.default_rng(seed)
        self.masks: dict[str, Any] = {}
        self.moves = 0

    def seen_space(self) -> Any:
        own: Any = spaces.Box(0, 9, (2,), np.float32)
        if not self.beside:
            return own
        mask = _drawn(self.space, self.chance)
        boxes: dict[str, Any] = {}
        if isinstance(mask, dict):
            boxes = {key: spaces.Box(0, 1, part.shape, np.int8) for key, part in mask.items()}
        return spaces.Dict(
            {"observation": own, "action_mask": spaces.Dict(boxes) if boxes else spaces.Box(0, 1, mask.shape, np.int8)}
        )

    def draw(self, name: str) -> None:
        self.masks[name] = _drawn(self.space, self.chance)

    def seen(self, name: str) -> Any:
        own = np.full(2, self.moves % 9, np.float32)
        return {"observation": own, "action_mask": self.masks[name]} if self.beside else own

    def info(self, name: str) -> dict[str, Any]:
        return {} if self.beside else {"action_mask": self.masks[name]}

    def act(self, name: str, action: Any) -> None:
        assert legal(self.space, action, self.masks[name]), f"illegal: {action} by {self.masks[name]}"
        self.moves += 1


class Alone(gymnasium.Env):
    """For one agent."""

    def __init__(self, kind: str = "plain", beside: bool = False, seed: int = 0) -> None:
        self.rules = _Rules(kind, beside, seed)
        self.observation_space, self.action_space = self.rules.seen_space(), self.rules.space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.rules.draw("agent")
        return self.rules.seen("agent"), self.rules.info("agent")

    def step(self, action: Any) -> Any:
        self.rules.act("agent", action)
        self.rules.draw("agent")
        ends = self.rules.chance.random(2) < 0.1
        return self.rules.seen("agent"), 1.0, bool(ends[0]), bool(ends[1]), self.rules.info("agent")


class _Spaces:
    possible_agents = NAMES
    metadata: dict[str, Any] = {"render_modes": [], "name": "masked"}  # noqa: RUF012
    render_mode = None

    def __init__(self, kind: str = "plain", beside: bool = False, seed: int = 0) -> None:
        super().__init__()
        self.rules = _Rules(kind, beside, seed)
        self.seen_space = self.rules.seen_space()

    def observation_space(self, agent: str) -> Any:
        return self.seen_space

    def action_space(self, agent: str) -> Any:
        return self.rules.space


class Together(_Spaces, ParallelEnv):
    """For agents that act at once, and may end alone."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(NAMES)
        return self._look()

    def _look(self) -> Any:
        for name in NAMES:
            self.rules.draw(name)
        return {name: self.rules.seen(name) for name in NAMES}, {name: self.rules.info(name) for name in NAMES}

    def step(self, actions: dict[str, Any]) -> Any:
        acted = list(self.agents)
        for name in acted:
            self.rules.act(name, actions[name])
        ends = {name: bool(self.rules.chance.random() < 0.1) for name in acted}
        self.agents = [name for name in acted if not ends[name]]
        seen, infos = self._look()
        return seen, dict.fromkeys(acted, 1.0), ends, dict.fromkeys(acted, False), infos


class InTurn(_Spaces, AECEnv):
    """For agents that act one after another."""

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents = list(NAMES)
        self.rewards, self._cumulative_rewards = (dict.fromkeys(NAMES, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(NAMES, False) for _ in range(2))
        for name in NAMES:
            self.rules.draw(name)
        self.infos = {name: self.rules.info(name) for name in NAMES}
        self.agent_selection, self._skip_agent_selection = NAMES[0], None

    def observe(self, agent: str) -> Any:
        return self.rules.seen(agent)

    def step(self, action: Any) -> None:
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        self.rules.act(name, action)
        self._cumulative_rewards[name] = 0.0
        self.agent_selection = NAMES[1 - NAMES.index(name)]
        self.rules.draw(self.agent_selection)
        self.infos[self.agent_selection] = self.rules.info(self.agent_selection)
        if self.rules.chance.random() < 0.1:
            self.truncations = dict.fromkeys(NAMES, True)
