"""Worlds that step all agents in all copies by one call, on NumPy, torch or JAX.

In flow: actions by agent, [E, ...] each. Out flow: turns in which all agents are present. Arrays are taken as they are,
without a copy where their library shares memory with NumPy.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import EnvironmentFault
from workers.environments.adapters.adapter_checks import (
    check_reset,
    copy_seeds,
    declared_space,
    malformed,
    mapping_of,
    max_steps,
    step_before_reset,
)
from workers.environments.adapters.pettingzoo_copies import agent_names, possible_agents
from workers.environments.adapters.space_conversion import BatchConverter, translate
from workers.environments.base import AgentTimeStep, Environment, Turn, refuse_sequential
from workers.environments.checks.closing import closed_on_failure
from workers.runtime.state_capture import State

RESET, STEP = "(observations, infos)", "(observations, rewards, terminated, truncated, infos)"
_API = "a batched parallel world"


class BatchedWorld(Protocol):
    """PettingZoo's parallel interface with a first dimension of copies, `E` = `num_envs`. Mappings are by agent; spaces
    are those of one copy. An episode begins, and ends, for all agents of a copy at once, and the next begins in the
    same step. A `max_episode_steps` and a `close` are optional, as are `get_state` and `set_state` (plain arrays by
    name), without which lock-step is refused."""

    num_envs: int
    possible_agents: Sequence[Any]

    def observation_space(self, agent: str) -> Any:
        """A space of Gymnasium's."""

    def action_space(self, agent: str) -> Any:
        """A space of Gymnasium's."""

    def reset(self, seed: int) -> tuple[Mapping[str, Any], Mapping[str, Mapping[str, Any]]]:
        """(observations, infos) of new episodes in all copies."""

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Mapping[str, Mapping[str, Any]]]:
        """(observations, rewards, terminated [E], truncated [E], infos). Where an episode ended, observations are the
        next one's first, and its last ones are in `final_observation` of each agent's info: batched, and only looked at
        where it was truncated. `action_mask` of an info says what may be chosen next; numbers [E] are measures."""


class BatchedParallel(Environment):
    """Plays `batched`; ConfigurationError for spaces that cannot be taken, or agents that are to act in turn."""

    def __init__(
        self, id: str, batched: Any, observe: ObservedParts | None = None, turn_mode: str | None = None
    ) -> None:
        self._batched, self._id, self.copies = batched, id, int(batched.num_envs)
        self._begun = False
        with closed_on_failure(id, self.close):
            keys = possible_agents(id, batched)
            if len(keys) > 1:
                refuse_sequential(id, turn_mode)
            named = dict(zip(agent_names(id, keys), keys, strict=True))
            observed = {name: declared_space(id, batched, "observation_space", key) for name, key in named.items()}
            acted = {name: declared_space(id, batched, "action_space", key) for name, key in named.items()}
            check_reset(id, batched.reset, always_seeded=True)
            _, infos = self._told("reset", RESET, batched.reset(seed=0))
            limit = max_steps(getattr(batched, "max_episode_steps", None))
            self.world, agents = translate(id, observed, acted, infos, limit, observe)
        self._agents = [(key, BatchConverter(one, self.copies)) for key, one in zip(keys, agents, strict=True)]
        self.has_state = hasattr(batched, "get_state")

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies."""
        observations, infos = self._told("reset", RESET, self._batched.reset(seed=copy_seeds(seed, 1)[0]))
        self._begun = True
        none = np.zeros(self.copies, np.bool_)
        rewards = dict.fromkeys(observations, np.zeros(self.copies, np.float32))
        return Turn(tuple(self._present(observations, rewards, none, none, infos)))

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Steps all copies in one call."""
        if not self._begun:
            raise step_before_reset(self.world.id)
        chosen = {name: agent.act(action) for (name, agent), action in zip(self._agents, actions, strict=True)}
        seen, rewards, terminated, truncated, infos = self._told("step", STEP, self._batched.step(chosen))
        terminated = self._column("terminated", terminated, "b")
        truncated = self._column("truncated", truncated, "b") & ~terminated
        present = self._present(seen, rewards, terminated, truncated, infos)
        finals, ended = np.flatnonzero(truncated), np.flatnonzero(terminated | truncated).tolist()
        for (name, agent), one in zip(self._agents, present, strict=True):
            info = self._info(infos, name)
            if len(finals):
                last = self._of("info", info, "final_observation", name)
                one.final_index, one.final_observation = finals, agent.write_observation(last)[finals]
            told = [(key, value) for key, value in info.items() if getattr(value, "shape", None) == (self.copies,)]
            own = [(key, value) for key, value in told if key != "final_observation"]
            for copy in ended if own else ():
                self.tell(one.agent, {key: value[copy] for key, value in own})
        return Turn(tuple(present), env_steps=self.copies)

    def _present(
        self, seen: Any, rewards: Any, terminated: NDArray[np.bool_], truncated: NDArray[np.bool_], infos: Any
    ) -> list[AgentTimeStep]:
        found = []
        for number, (name, agent) in enumerate(self._agents):
            observation = self._of("observations", seen, name, name)
            reward = self._column(f"reward of {name}", self._of("rewards", rewards, name, name), "fiub")
            row = agent.write_observation(observation), reward.astype(np.float32, copy=False)
            mask = agent.write_mask(observation, self._info(infos, name))
            found.append(AgentTimeStep(number, *row, terminated.copy(), truncated.copy(), action_mask=mask))
        return found

    def _told(self, method: str, expected: str, told: Any) -> Any:
        """What a call returned, with an empty mapping where it has no infos."""
        whole = isinstance(told, tuple | list) and len(told) == expected.count(",") + 1
        if not whole or not isinstance(told[-1], Mapping | None):
            raise malformed(self._id, method, expected, told, _API)
        return *told[:-1], told[-1] or {}

    def _info(self, infos: Any, agent: Hashable) -> Mapping[Any, Any]:
        return mapping_of(f"{self._id}, agent {agent}", infos.get(agent))

    def _of(self, field: str, told: Any, name: Hashable, agent: Hashable) -> Any:
        if not isinstance(told, Mapping) or name not in told:
            raise EnvironmentFault("dict_entry_missing", where=f"{self._id}, agent {agent}", field=field, entry=name)
        return told[name]

    def _column(self, field: str, told: Any, kinds: str) -> NDArray[Any]:
        """[E]; EnvironmentFault where it is of another shape, or of none of the `kinds` of numbers."""
        column = np.asarray(told)
        if column.shape != (self.copies,) or column.dtype.kind not in kinds:
            expected = f"{'bool' if kinds == 'b' else 'float32'}[{self.copies}]"
            facts = {"where": self._id, "field": field, "expected": expected}
            raise EnvironmentFault("vector_array_mismatch", **facts, dtype=column.dtype, shape=list(column.shape))
        return column

    def close(self) -> None:
        """Closes the world, where it can be closed."""
        getattr(self._batched, "close", lambda: None)()

    def get_state(self) -> State:
        """That of the world."""
        return dict(self._batched.get_state())

    def set_state(self, state: State) -> None:
        """The inverse."""
        self._batched.set_state(state)


def as_gymnasium(given: Any, like: Any = None) -> Any:
    """A space of a library that calls its spaces as Gymnasium does: gymnax, JaxMARL, Gym; any other as it is. `like`:
    what is really seen, whose shapes and types of numbers count."""
    from gymnasium import spaces

    match type(given).__name__:
        case "Discrete":
            return spaces.Discrete(int(given.n))
        case "MultiDiscrete":
            return spaces.MultiDiscrete(np.asarray(getattr(given, "nvec", getattr(given, "num_categories", None))))
        case "Box":
            seen = given if like is None else like
            shape, dtype = tuple(seen.shape), np.dtype(seen.dtype)
            low, high = (np.broadcast_to(np.asarray(bound, dtype), shape) for bound in (given.low, given.high))
            return spaces.Box(low, high, shape, dtype.type)
        case "Dict" | "dict":
            parts = getattr(given, "spaces", given)
            return spaces.Dict(
                {name: as_gymnasium(part, None if like is None else like[name]) for name, part in parts.items()}
            )
    return given
