"""Copies of a PettingZoo environment, parallel or in turns, and the agents that may act in them.

In flow: the function that makes one. Out flow: their world, how each agent is spoken to, copies whose episodes begin.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.adapters.adapter_checks import check_same, max_steps
from workers.environments.adapters.space_conversion import translate

__all__ = ["PettingZooCopies"]


class PettingZooCopies:
    """`copies` environments, each from `make_one`; ConfigurationError for spaces that cannot be taken."""

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.id = id
        self.envs: list[Any] = []
        try:
            for _ in range(copies):
                self.envs.append(_without_guards(make_one()))
            first = self.envs[0]
            self.names: list[str] = list(getattr(first, "possible_agents", ()))
            if not self.names:
                raise ConfigurationError("possible_agents_empty", environment=id)
            self._spaces = {name: (first.observation_space(name), first.action_space(name)) for name in self.names}
            observations = {name: spaces[0] for name, spaces in self._spaces.items()}
            actions = {name: spaces[1] for name, spaces in self._spaces.items()}
            infos = _infos(first, first.reset(seed=0))
            steps = max_steps(getattr(getattr(first, "unwrapped", None), "max_cycles", None))
            self.world, self.agents = translate(id, observations, actions, infos, steps)
        except BaseException:
            self.close()
            raise
        self._number = {name: k for k, name in enumerate(self.names)}

    def begin(self, copy: int, **seed: int) -> Any:
        """A new episode; what `reset` returned. EnvironmentFault if spaces or agents are other ones than at first."""
        env = self.envs[copy]
        told = env.reset(**seed)
        for name, spaces in self._spaces.items():
            where = f"{self.id}, agent {name}"
            check_same(spaces[0], env.observation_space(name), where, "observation space")
            check_same(spaces[1], env.action_space(name), where, "action space")
        if not self.alive(copy):
            raise EnvironmentFault("no_agents_after_reset", environment=self.id, copy=copy)
        return told

    def alive(self, copy: int) -> list[str]:
        """Who is in an episode; EnvironmentFault for an agent that is not listed."""
        agents = getattr(self.envs[copy], "agents", None)
        if agents is None:
            raise EnvironmentFault("agents_attribute_missing", environment=self.id)
        for name in agents:
            self.number(name)
        return list(agents)

    def number(self, name: Any) -> int:
        """Of an agent, among all; EnvironmentFault if it is not listed."""
        if name not in self._number:
            raise EnvironmentFault("agent_unknown", environment=self.id, agent=name, choices=list(self.names))
        return self._number[name]

    def close(self) -> None:
        """Closes all copies."""
        while self.envs:
            self.envs.pop().close()


def _infos(env: Any, told: Any) -> Mapping[str, Any]:
    """What a `reset` says beside the observations: returned by parallel environments, kept by those in turns."""
    infos = told[1] if isinstance(told, tuple) and len(told) == 2 else getattr(env, "infos", None)
    return infos if isinstance(infos, Mapping) else {}


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
