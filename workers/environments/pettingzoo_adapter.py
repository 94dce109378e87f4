"""PettingZoo parallel environments as worlds, E copies stepped one by one.

In flow: actions of all agents. Out flow: a turn with all agents present; the step that ends an episode begins the next.
All agents live as long as the episode.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Agent, World
from workers.environments.adapting import box, copy_in, copy_seeds, discrete
from workers.environments.base import Environment, Present, Turn

__all__ = ["PettingZooEnvironment", "from_id"]


class PettingZooEnvironment(Environment):
    """`copies` parallel environments, each from `make_one`; ConfigurationError for spaces not taken in this release.

    An agent that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.copies = copies
        self._envs: list[Any] = []
        try:
            for _ in range(copies):
                self._envs.append(_without_guards(make_one()))
            first = self._envs[0]
            self._names = list(first.possible_agents)
            agents, self._starts = self._agents(id, first)
        except BaseException:
            self.close()
            raise
        steps = getattr(first.unwrapped, "max_cycles", None)
        self.world = World(id=id, agents=agents, episode_steps=steps if isinstance(steps, int) and steps > 0 else None)
        shapes = [(copies, *agent.observation.shape) for agent in agents]
        self._observations = [np.zeros(s, a.observation.dtype) for s, a in zip(shapes, agents, strict=True)]
        self._rewards = np.zeros((len(agents), copies), np.float32)
        self._terminated = np.zeros((len(agents), copies), np.bool_)
        self._truncated = np.zeros((len(agents), copies), np.bool_)
        self._where = [f"{id}, agent {name}," for name in self._names]

    def _agents(self, id: str, env: Any) -> tuple[tuple[Agent, ...], list[int]]:
        """Our agents and the number of each one's first action."""
        agents, starts = [], []
        for name in self._names:
            observation = box(env.observation_space(name), f"{id}, agent {name},")
            action, start = discrete(env.action_space(name), f"{id}, agent {name},")
            try:
                agents.append(Agent(name=name, observation=observation, action=action))
            except ValidationError:
                raise ConfigurationError(
                    f"{id} has an agent called {name!r}; rename it with letters, digits, '_', '.' and '-' only"
                ) from None
            starts.append(start)
        if not agents:
            raise ConfigurationError(f"{id} has no agents in possible_agents; list them there")
        return tuple(agents), starts

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        for i, (env, one) in enumerate(zip(self._envs, copy_seeds(seed, self.copies), strict=True)):
            self._see(i, env.reset(seed=one)[0])
        for array in (self._rewards, self._terminated, self._truncated):
            array.fill(0)
        return Turn(self._present([]))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy with one action array [E] for each agent, in the order of `world.agents`."""
        names = self._names
        chosen = [(a + start).tolist() for a, start in zip(actions, self._starts, strict=True)]
        finals: list[Mapping[str, Any]] = []
        self._terminated.fill(False)
        self._truncated.fill(False)
        for i, (env, acts) in enumerate(zip(self._envs, zip(*chosen, strict=True), strict=True)):
            seen, rewards, terminations, truncations, _ = env.step(dict(zip(names, acts, strict=True)))
            try:
                for k, name in enumerate(names):
                    self._rewards[k, i] = rewards[name]
            except KeyError:
                raise self._died(i) from None
            if any(terminations.values()) or any(truncations.values()):
                self._end(i, terminations, truncations)
                finals.append(seen)
                seen, _ = env.reset()
            self._see(i, seen)
        return Turn(self._present(finals), env_steps=self.copies)

    def _see(self, copy: int, seen: Mapping[str, Any]) -> None:
        for name, target, where in zip(self._names, self._observations, self._where, strict=True):
            if name not in seen:
                raise self._died(copy)
            copy_in(target, copy, seen[name], where)

    def _end(self, copy: int, terminations: Mapping[str, Any], truncations: Mapping[str, Any]) -> None:
        """Marks how the episode ended for each agent; EnvironmentFault if it did not end for all of them."""
        for k, name in enumerate(self._names):
            if terminations.get(name, False):
                self._terminated[k, copy] = True
            elif truncations.get(name, False):
                self._truncated[k, copy] = True
            else:
                raise self._died(copy)

    def _died(self, copy: int) -> EnvironmentFault:
        return EnvironmentFault(
            f"in copy {copy} of {self.world.id} some agents ended before the others, and this release needs agents "
            "that live as long as the episode; end the episode for all of them at once, or keep them without effect"
        )

    def _present(self, finals: list[Mapping[str, Any]]) -> tuple[Present, ...]:
        """All agents; `finals` are the last observations of the copies that ended, in the order of the copies."""
        ended = np.flatnonzero(self._terminated[0] | self._truncated[0])
        present = []
        for k, observation in enumerate(self._observations):
            one = Present(k, observation, self._rewards[k], self._terminated[k], self._truncated[k])
            cut = [(i, final) for i, final in zip(ended, finals, strict=True) if self._truncated[k, i]]
            if cut:
                one.final_index = np.array([i for i, _ in cut], np.int64)
                one.final_observation = np.empty((len(cut), *observation.shape[1:]), observation.dtype)
                for row, (i, final) in enumerate(cut):
                    if self._names[k] not in final:
                        raise self._died(int(i))
                    copy_in(one.final_observation, row, final[self._names[k]], self._where[k])
            present.append(one)
        return tuple(present)

    def close(self) -> None:
        """Closes all copies."""
        while self._envs:
            self._envs.pop().close()


def _without_guards(env: Any) -> Any:
    """`env` without the wrappers that only check the order of calls and the range of actions, both of which hold here:
    a converted environment spends a third of its time in them."""
    try:
        from pettingzoo.utils import wrappers
        from pettingzoo.utils.conversions import aec_to_parallel_wrapper
    except ImportError:
        return env
    if type(env) is aec_to_parallel_wrapper:
        while type(env.aec_env) in (wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper):
            env.aec_env = env.aec_env.env
    return env


def from_id(id: str, copies: int, settings: Mapping[str, Any]) -> Environment:
    """`parallel_env(**settings)` of the module named in `id`, as a world; ConfigurationError if it cannot be made."""
    name = id.removeprefix("pettingzoo:")
    package = name.partition(".")[0]
    try:
        function = importlib.import_module(name).parallel_env
    except (ImportError, AttributeError, ValueError) as fault:
        missing = fault.name if isinstance(fault, ModuleNotFoundError) else None
        if missing and not name.startswith(f"{missing}.") and missing != name:
            remedy = f"needs a package that is missing; run: pip install {missing.partition('.')[0]}"
        elif missing == package:
            remedy = f"needs a package that is missing; run: pip install {package}"
        else:
            remedy = f"names no module with a function parallel_env ({fault}); correct environment.id"
        raise ConfigurationError(f"{id} {remedy}") from fault
    try:
        return PettingZooEnvironment(id, lambda: function(**settings), copies)
    except (TypeError, ValueError, AssertionError) as fault:
        raise ConfigurationError(
            f"{id} cannot be made with the settings {dict(settings)} ({' '.join(str(fault).split())}); "
            "correct environment.settings"
        ) from fault
