"""Copies of a PettingZoo environment, parallel or in turns, and the agents that may act in them.

In flow: the function that makes one. Out flow: their world, how each agent is spoken to, copies whose episodes begin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.adapters.adapter_checks import (
    check_reset,
    check_same,
    class_of,
    declared_space,
    malformed,
    mapping_of,
    max_steps,
    picture_of,
)
from workers.environments.adapters.space_conversion import translate
from workers.environments.adapters.turn_builder import TurnBuilder
from workers.environments.base import Environment
from workers.environments.checks.closing import close_all, made_copies

_RESET = "({agent: observation}, {agent: info})"


class PettingZooCopies:
    """`copies` environments, each from `make_one`; ConfigurationError for spaces that cannot be taken."""

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int, observe: ObservedParts | None = None) -> None:
        self.id = id
        with made_copies(id, lambda: _without_guards(make_one()), copies) as self.envs:
            first = self.envs[0]
            self.keys = possible_agents(id, first)
            """What the environment calls its agents."""
            self.names = agent_names(id, self.keys)
            self._spaces = {
                key: tuple(declared_space(id, first, field, key) for field in ("observation_space", "action_space"))
                for key in self.keys
            }
            observations, actions = (
                {name: spaces[of] for name, spaces in zip(self.names, self._spaces.values(), strict=True)}
                for of in (0, 1)
            )
            check_reset(id, first.reset)
            _, told = self._reset(first, seed=0)
            infos = {name: told.get(key) for name, key in zip(self.names, self.keys, strict=True)}
            steps = max_steps(getattr(getattr(first, "unwrapped", None), "max_cycles", None))
            self.world, self.agents = translate(id, observations, actions, infos, steps, observe)
        self._number = {key: k for k, key in enumerate(self.keys)}

    def begin(self, copy: int, **seed: int) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """(observations, infos) of a new episode, by agent; those in turns return no observations. EnvironmentFault if
        spaces or agents are other ones than at first."""
        env = self.envs[copy]
        told = self._reset(env, **seed)
        for key, spaces, agent in zip(self.keys, self._spaces.values(), self.agents, strict=True):
            check_same(spaces[0], env.observation_space(key), agent.where, "observation space")
            check_same(spaces[1], env.action_space(key), agent.where, "action space")
        if not self.alive(copy):
            raise EnvironmentFault("no_agents_after_reset", environment=self.id, copy=copy)
        return told

    def _reset(self, env: Any, **seed: int) -> tuple[Mapping[Any, Any], Mapping[Any, Any]]:
        """As `begin`; those in turns keep their infos."""
        told = env.reset(**seed)
        if hasattr(env, "agent_iter"):
            return {}, mapping_of(self.id, getattr(env, "infos", None))
        form = isinstance(told, tuple | list) and len(told) == 2 and isinstance(told[0], Mapping)
        if not form or not isinstance(told[1], Mapping | None):
            raise malformed(self.id, "reset", _RESET, told, "pettingzoo.ParallelEnv")
        return told[0], told[1] or {}

    def alive(self, copy: int) -> list[Hashable]:
        """Who is in an episode; EnvironmentFault for an agent that is not listed."""
        agents = getattr(self.envs[copy], "agents", None)
        if not isinstance(agents, Collection) or isinstance(agents, str):
            raise EnvironmentFault("agents_attribute_missing", environment=self.id, value=repr(agents))
        for key in agents:
            self.number(key)
        return list(agents)

    def selected(self, copy: int) -> int:
        """The number of the agent whose turn it is; EnvironmentFault where the environment names none."""
        key = getattr(self.envs[copy], "agent_selection", None)
        if key is None:
            raise EnvironmentFault("agent_selection_missing", environment=self.id)
        return self.number(key)

    def number(self, key: Hashable) -> int:
        """Of an agent, among all; EnvironmentFault if it is not listed."""
        if key not in self._number:
            raise EnvironmentFault("agent_unknown", environment=self.id, agent=key, choices=self.names)
        return self._number[key]

    def check_known(self, *told: Mapping[Any, Any]) -> None:
        """EnvironmentFault for an agent that is not listed in what was told by agent; what begins with two underscores,
        as `__all__` of other libraries, is none."""
        for by_agent in told:
            for key in by_agent.keys() - self._number.keys():
                if not str(key).startswith("__"):
                    self.number(key)

    def close(self) -> None:
        """Closes all copies, though some may raise."""
        close_all(self.envs)


class PettingZooWorld(Environment):
    """`copies` environments, each from `make_one`; ConfigurationError for spaces that cannot be taken."""

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int, observe: ObservedParts | None = None) -> None:
        self.copies = copies
        self._cast = PettingZooCopies(id, make_one, copies, observe)
        self.world = self._cast.world
        self._board = TurnBuilder(id, self._cast.agents, copies)

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """What the environment renders, where it was made with `render_mode: rgb_array`."""
        return picture_of(self._cast.envs[copy])

    def close(self) -> None:
        """Closes all copies."""
        self._cast.close()


def possible_agents(id: str, env: Any) -> list[Hashable]:
    """Its agents; ConfigurationError where it does not list them."""
    listed = getattr(env, "possible_agents", None)
    if not isinstance(listed, Collection) or isinstance(listed, str) or not len(listed):
        value = repr(listed) if hasattr(env, "possible_agents") else "missing"
        raise ConfigurationError("possible_agents_empty", environment=id, name=class_of(env), value=value)
    return list(listed)


_OUTSIDE, _ADDRESS = re.compile(r"[^A-Za-z0-9_.-]+"), re.compile(r" at 0x[0-9a-fA-F]+")


def agent_names(id: str, keys: Sequence[Hashable]) -> list[str]:
    """The name of each agent, which is its text; ConfigurationError where that is no name, or that of two."""
    taken: dict[str, Hashable] = {}
    for key in keys:
        name = _text(key)
        if not name or _ADDRESS.search(str(key)):
            raise ConfigurationError("agent_without_text", environment=id, agent=repr(key))
        if name in taken or key in taken.values():
            other = taken.get(name, key)
            raise ConfigurationError("agents_read_alike", environment=id, agent=repr(key), other=repr(other), name=name)
        taken[name] = key
    return [*taken]


def _text(key: Hashable) -> str:
    """Of a tuple those of its parts; what file names and topics cannot hold becomes `_`."""
    text = "_".join(map(_text, key)) if isinstance(key, tuple) else str(key)
    if _OUTSIDE.search(text):
        text = _OUTSIDE.sub("_", text).strip("_")
    return f"_{text}" if text.startswith((".", "-")) else text


def _without_guards(env: Any) -> Any:
    """`env` without the wrappers that only check the order of calls and the range of actions, both of which hold here:
    a converted environment spends a third of its time in them."""
    try:
        from pettingzoo.utils import wrappers
        from pettingzoo.utils.conversions import aec_to_parallel_wrapper
    except ImportError:
        return env
    guards = (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper)
    if type(env) is aec_to_parallel_wrapper:
        while type(env.aec_env) in guards:
            env.aec_env = env.aec_env.env
    while type(env) in guards:
        env = env.env
    return env
