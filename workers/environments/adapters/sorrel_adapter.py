"""Gridworlds in the manner of Sorrel (https://github.com/social-ai-uoft/sorrel) as worlds, E copies stepped one by one.

In flow: actions. Out flow: what each agent's `pov` shows, and what its `act` brought. A turn goes as there: entities
with `has_transitions` that are no agents change first, in the order of the map; then each agent acts, and sees what
those before it did (`simultaneous`: all are shown the same, then act in their order).

What is used of an environment: `world` (`map`, and where there are any, `total_reward` and `is_done`), `agents` (each
`pov(world)`, `act(world, action)` -> reward, `is_done(world)` and its number of actions), `reset()`, `turn`,
`stop_if_done`, and the most turns of an episode, `max_turns` or `config.experiment.max_turns`.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, Discrete, Space, Tuple
from protocol.spaces.gymnasium import world_of
from workers.environments.adapters.adapter_checks import copy_seeds, max_steps
from workers.environments.adapters.space_conversion import SpaceConverter, narrowed
from workers.environments.adapters.turn_builder import TurnBuilder
from workers.environments.base import Environment, Turn
from workers.environments.checks.closing import close_all, made_copies


def is_gridworld(env: Any) -> bool:
    """Whether it has a world and agents that see and act in it."""
    agents = getattr(env, "agents", None)
    if not hasattr(env, "world") or not isinstance(agents, Sequence) or isinstance(agents, str):
        return False
    return bool(agents) and all(hasattr(agent, verb) for agent in agents for verb in ("pov", "act", "is_done"))


class SorrelEnvironment(Environment):
    """`copies` gridworlds, each from `make_one`; agents are called `agent_0` and so on, in the order of `agents`.

    An observation is an array, or a dictionary or tuple of arrays; (1, F) is held as (F,). An agent whose
    `is_done` is true has terminated and acts no more in that episode; with `stop_if_done`, `world.is_done` at the end
    of a turn ends it for all. After the most turns it is truncated. ConfigurationError if the number of actions is
    nowhere to be found.
    """

    def __init__(
        self,
        id: str,
        make_one: Callable[[], Any],
        copies: int,
        turn_mode: Literal["sequential", "simultaneous"] = "sequential",
    ) -> None:
        self.copies, self.turn_mode = copies, turn_mode
        with made_copies(id, make_one, copies) as self._envs:
            agents = _agents(id, self._envs[0])
            self._turns = _most_turns(self._envs[0])
            self.world = narrowed(world_of(id, agents, self._turns))
        speakers = [
            SpaceConverter(f"{id}, agent {agent.name}", place, agent)
            for agent, place in zip(agents, self.world.places, strict=True)
        ]
        self._board = TurnBuilder(id, speakers, copies)
        self._alive: list[list[int]] = [[] for _ in range(copies)]
        """[E]: agents that act in the present turn of a copy and have not done so, in their order."""
        self._done: list[set[int]] = [set() for _ in range(copies)]

    def reset(self, seed: int) -> Turn:
        """Starts new episodes. Where `reset` takes no seed, the generators of `random` and `numpy.random` are seeded,
        from which such worlds draw."""
        self._board.clear()
        if "seed" not in inspect.signature(self._envs[0].reset).parameters:
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
        for i, one in enumerate(copy_seeds(seed, self.copies)):
            self._begin(i, one)
            self._look(i)
        return self._board.turn()

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Lets those who were present act. An environment step is complete when all agents of a copy have acted."""
        steps, chosen = 0, list(self._board.each(actions))
        self._board.begin()
        for agent, i, action in chosen:
            self._act(i, agent, action)
        for i in range(self.copies):
            if not self._alive[i]:
                steps += 1
                self._end_turn(i)
            self._look(i)
        return self._board.turn(env_steps=steps)

    def _act(self, copy: int, agent: int, action: int) -> None:
        """One agent acts; its reward is added to the world's total where its `act` has not done so."""
        env = self._envs[copy]
        world, one = env.world, env.agents[agent]
        before = getattr(world, "total_reward", None)
        reward = one.act(world, action)
        if before is not None and world.total_reward == before:
            world.total_reward += reward
        self._board.add_reward(agent, copy, reward)
        self._alive[copy].remove(agent)
        if one.is_done(world):
            self._done[copy].add(agent)
            self._board.end(agent, copy, True, False, None)

    def _end_turn(self, copy: int) -> None:
        """Ends the episode if it is over; then what changes by itself, in the episode that goes on or begins."""
        env = self._envs[copy]
        left = [k for k in range(len(env.agents)) if k not in self._done[copy]]
        over = getattr(env, "stop_if_done", False) and getattr(env.world, "is_done", False)
        cut = self._turns is not None and env.turn >= self._turns
        for agent in left if over or cut else ():
            final = None if over else _view(env, agent)
            self._board.end(agent, copy, over, cut, final)
        if over or cut or not left:
            self._begin(copy)
        else:
            self._change(copy)

    def _begin(self, copy: int, seed: int | None = None) -> None:
        env = self._envs[copy]
        if seed is not None and "seed" in inspect.signature(env.reset).parameters:
            env.reset(seed=seed)
        else:
            env.reset()
        self._done[copy].clear()
        self._change(copy)

    def _change(self, copy: int) -> None:
        """A turn begins: what has transitions and is no agent changes."""
        env = self._envs[copy]
        env.turn += 1
        agents = {id(agent) for agent in env.agents}
        for entity in getattr(env.world.map, "flat", env.world.map):
            if entity.has_transitions and id(entity) not in agents:
                entity.transition(env.world)
        self._alive[copy] = [k for k in range(len(env.agents)) if k not in self._done[copy]]

    def _look(self, copy: int) -> None:
        """Shows the world to those who act next."""
        next_ones = self._alive[copy] if self.turn_mode == "simultaneous" else self._alive[copy][:1]
        for agent in next_ones:
            self._board.observe(agent, copy, _view(self._envs[copy], agent))

    def close(self) -> None:
        """Closes the copies that can be closed, though some may raise."""
        close_all(self._envs)


def _view(env: Any, agent: int) -> Any:
    """What an agent sees; (1, F) becomes (F,)."""
    return _flat(env.agents[agent].pov(env.world))


def _flat(seen: Any) -> Any:
    if isinstance(seen, Mapping):
        return {key: _flat(part) for key, part in seen.items()}
    if isinstance(seen, tuple):
        return tuple(_flat(part) for part in seen)
    array = np.asarray(seen)
    return array[0] if array.ndim == 2 and len(array) == 1 else array


def _space_of(seen: Any) -> Space:
    """The space of what was seen; nobody declares it."""
    if isinstance(seen, Mapping):
        return Dict(spaces={key: _space_of(part) for key, part in seen.items()})
    if isinstance(seen, tuple):
        return Tuple(spaces=tuple(_space_of(part) for part in seen))
    return Box.model_validate({"shape": seen.shape, "dtype": seen.dtype.name})


def _agents(id: str, env: Any) -> tuple[Agent, ...]:
    return tuple(
        Agent(
            name=f"agent_{k}",
            observation=_space_of(_view(env, k)),
            action=Discrete(n=_actions(f"{id}, agent agent_{k},", agent)),
        )
        for k, agent in enumerate(env.agents)
    )


def _actions(where: str, agent: Any) -> int:
    """How many actions an agent has."""
    for holder, name in ((getattr(agent, "action_spec", None), "n_actions"), (agent, "n_actions")):
        if isinstance(getattr(holder, name, None), int | np.integer):
            return int(getattr(holder, name))
    choices = getattr(agent, "action_space", None)
    if isinstance(choices, Sequence) and list(choices) == list(range(len(choices))):
        return len(choices)
    raise ConfigurationError("sorrel_action_count_unknown", where=where)


def _most_turns(env: Any) -> int | None:
    """Turns after which an episode is cut."""
    experiment = getattr(getattr(env, "config", None), "experiment", None)
    for holder in (env, experiment, env.world):
        turns = max_steps(getattr(holder, "max_turns", None))
        if turns is not None:
            return turns
    return None
