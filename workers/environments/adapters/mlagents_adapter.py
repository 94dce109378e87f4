"""Unity ML-Agents' environments (the low-level API, `mlagents_envs.base_env.BaseEnv`) as worlds, E copies one by one.

In flow: actions of those who asked for one. Out flow: a turn of those who ask next. Each behaviour is a population of
like agents, at most as many at once as its first step shows or `most_agents[behaviour]` on the environment says. The
API knows no seeds at a reset: the function that makes the environment gives it one, and a worker id of its own.

Written from the documentation of the API (release 20 and later), and tested against an object that speaks it: the
package `mlagents_envs` itself is nowhere imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Agent, ArrayPopulation, Box, Dict, DictPopulation, Discrete, MultiDiscrete, Tuple, World
from workers.environments.adapters.adapter_checks import step_before_reset
from workers.environments.adapters.mlagents_behavior import BehaviorAgents
from workers.environments.base import Environment, Turn
from workers.environments.checks.closing import close_all, made_copies

_MOST_STEPS = 10_000
"""Steps of a simulation in which nobody asks for an action, after which it is said to hang."""


def is_mlagents(env: Any) -> bool:
    """Whether it speaks the low-level API."""
    return all(hasattr(env, verb) for verb in ("behavior_specs", "get_steps", "set_actions"))


class MlAgentsEnvironment(Environment):
    """`copies` environments, each from `make_one`; ConfigurationError for one without behaviours.

    An environment step is a step of the simulation: until at least one agent asks for an action. An agent that was
    interrupted is truncated, any other that ended has terminated.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.copies = copies
        with made_copies(id, make_one, copies) as self._envs:
            first = self._envs[0]
            first.reset()
            self._specs = dict(first.behavior_specs)
            self.world = _world(id, first)
        self._herds = [
            BehaviorAgents(f"{id}, agent {place.name}", name, number, place, copies)
            for number, (name, place) in enumerate(zip(self._specs, self.world.places, strict=True))
        ]
        self._turn: Turn | None = None

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies; the API takes no seed."""
        for herd in self._herds:
            herd.clear()
        for copy, env in enumerate(self._envs):
            env.reset()
            self._take(copy)
        return self._tell(0)

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Gives their actions to all who asked, and steps each copy until somebody asks."""
        if self._turn is None:
            raise step_before_reset(self.world.id)
        chosen = {
            present.agent: self._everywhere(present.agent, present.copies, acts)
            for present, acts in zip(self._turn.present, actions, strict=True)
        }
        for herd in self._herds:
            herd.begin()
        steps = sum(self._step_copy(copy, chosen) for copy in range(self.copies))
        return self._tell(steps)

    def _step_copy(self, copy: int, chosen: dict[int, NDArray[Any]]) -> int:
        """Steps of the simulation."""
        env = self._envs[copy]
        for number, herd in enumerate(self._herds):
            rows = herd.asked(copy)
            if len(rows):
                env.set_actions(herd.name, self._said(number, chosen[number][rows]))
        env.step()
        return 1 + self._take(copy)

    def _take(self, copy: int) -> int:
        """What a copy says, stepping it on until somebody asks; how often."""
        env = self._envs[copy]
        for steps in range(_MOST_STEPS):
            for name in env.behavior_specs:
                if name not in self._specs:
                    raise EnvironmentFault(
                        "behavior_appeared_late", environment=self.world.id, expected=list(self._specs), value=name
                    )
            asked = [herd.take(copy, *env.get_steps(herd.name)) for herd in self._herds]
            if any(asked):
                return steps
            env.step()
        raise EnvironmentFault("no_agent_asks_for_action", environment=self.world.id, copy=copy, limit=_MOST_STEPS)

    def _tell(self, env_steps: int) -> Turn:
        told = [herd.told() for herd in self._herds]
        present = tuple(one for one, _ in told if one is not None)
        self._turn = Turn(present, env_steps, tuple(one for _, one in told if one is not None))
        return self._turn

    def _everywhere(self, agent: int, rows: NDArray[np.int64] | None, actions: NDArray[Any]) -> NDArray[Any]:
        """[N, *shape]: actions by row."""
        if rows is None:
            return actions
        place = self.world.places[agent]
        every = place.acted.zeros(self.copies * place.many)
        every[rows] = actions
        return every

    def _said(self, number: int, actions: NDArray[Any]) -> Any:
        """As an ActionTuple."""
        told = self._specs[self._herds[number].name].action_spec.empty_action(len(actions))
        for leaf, part in self.world.places[number].acted.parts(actions):
            if isinstance(leaf.space, Box):
                told.add_continuous(np.array(part, np.float32))
            else:
                told.add_discrete(part.reshape(len(part), -1).astype(np.int32))
        return told

    def close(self) -> None:
        """Closes all copies, though some may raise."""
        close_all(self._envs)


def _world(id: str, env: Any) -> World:
    if not env.behavior_specs:
        raise ConfigurationError("no_behaviors_after_reset", environment=id)
    most = getattr(env, "most_agents", {})
    herds = []
    for name, spec in env.behavior_specs.items():
        seen = tuple(Box(shape=tuple(one.shape)) for one in spec.observation_specs)
        agent = Agent(
            name="agent",
            observation=seen[0] if len(seen) == 1 else Tuple(spaces=seen),
            action=_action(f"{id}, behavior {name}", spec.action_spec),
            action_mask=bool(spec.action_spec.discrete_branches),
        )
        there = len(env.get_steps(name)[0])
        label = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-")
        herds.append(ArrayPopulation(name=label, template=agent, capacity=max(1, most.get(name, there))))
    return World(id=id, population=DictPopulation(agents=tuple(herds)))


def _action(where: str, spec: Any) -> Box | Discrete | MultiDiscrete | Dict:
    """Numbers from -1 to 1, as Unity takes them, choices, or both."""
    size, branches = int(spec.continuous_size), tuple(map(int, spec.discrete_branches))
    parts: dict[str, Any] = {}
    if size:
        parts["continuous"] = Box(shape=(size,), low=-1, high=1)
    if branches:
        parts["discrete"] = Discrete(n=branches[0]) if len(branches) == 1 else MultiDiscrete(nvec=branches)
    if not parts:
        raise ConfigurationError("behavior_without_actions", where=where)
    return Dict(spaces=parts) if len(parts) == 2 else next(iter(parts.values()))
