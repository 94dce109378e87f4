"""Gymnasium environments of several agents: spaces, actions, observations and rewards are tuples, one entry an agent.

In flow: what `gymnasium.make` gives. Out flow: the same as a PettingZoo parallel environment of the agents `agent_0`,
`agent_1` and so on, as which it is a world.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError, EnvironmentFault
from workers.environments.adapters.adapter_checks import RESET, STEP, declared_space, has_ended, malformed
from workers.environments.adapters.gymnasium_adapter import gymnasium_errors
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.base import Environment
from workers.environments.checks.closing import close_logged

_PREFIX = "gymnasium_multi:"


def is_tuple_multi_agent(env: Any) -> bool:
    """Whether a Gymnasium environment says that it has so many agents as there are entries in its spaces."""
    seen, done = (getattr(getattr(env, name, None), "spaces", {}) for name in ("observation_space", "action_space"))
    inner = getattr(env, "unwrapped", env)
    count = getattr(inner, "n_agents", getattr(inner, "num_agents", None))
    tuples = isinstance(seen, Sequence) and isinstance(done, Sequence)
    return tuples and len(seen) == len(done) and bool(count == len(seen))


class TupleMultiAgent:
    """`env` in the language of PettingZoo: all agents act at once, and an episode ends for all of them together.

    Ends may be told once for all or once for each. ConfigurationError if its spaces are not tuples of one length.
    """

    def __init__(self, id: str, env: Any) -> None:
        self._id, self._env = id, env
        spaces = [declared_space(id, env, field) for field in ("observation_space", "action_space")]
        seen, done = (getattr(space, "spaces", ()) for space in spaces)
        if not isinstance(seen, Sequence) or not isinstance(done, Sequence) or not 0 < len(seen) == len(done):
            close_logged(id, env.close)
            raise ConfigurationError(
                "spaces_not_per_agent",
                environment=id,
                observation_space=spaces[0],
                action_space=spaces[1],
                single=id.removeprefix(_PREFIX),
            )
        self.possible_agents = [f"agent_{i}" for i in range(len(seen))]
        self.agents: list[str] = []
        self.unwrapped = self
        self.max_cycles = getattr(getattr(env, "spec", None), "max_episode_steps", None)

    def observation_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._env.observation_space.spaces[self.possible_agents.index(agent)]

    def action_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._env.action_space.spaces[self.possible_agents.index(agent)]

    def reset(self, **seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """(observations, infos) of a new episode, by agent."""
        told = self._env.reset(**seed)
        if not isinstance(told, tuple | list) or len(told) != 2:
            raise malformed(self._id, "reset", RESET, told)
        seen = told[0]
        self.agents = list(self.possible_agents)
        return self._each("observation", seen), {}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """(observations, rewards, terminations, truncations, infos), by agent."""
        told = self._env.step(tuple(actions.values()))
        if not isinstance(told, tuple | list) or len(told) != 5:
            raise malformed(self._id, "step", STEP, told)
        seen, reward, terminated, truncated, info = told
        ends = [self._all(told) for told in (terminated, truncated)]
        if any(ends):
            self.agents = []
        infos = {} if self.agents else dict.fromkeys(self.possible_agents, info)
        terminations, truncations = (dict.fromkeys(self.possible_agents, end) for end in ends)
        return self._each("observation", seen), self._each("reward", reward), terminations, truncations, infos

    def close(self) -> None:
        """Closes it."""
        self._env.close()

    def _each(self, field: str, told: Any) -> dict[str, Any]:
        if not isinstance(told, Sequence | np.ndarray) or len(told) != len(self.possible_agents):
            got = f"of {len(told)}" if isinstance(told, Sequence | np.ndarray) else type(told).__name__
            raise EnvironmentFault(
                "tuple_per_agent_expected",
                environment=self._id,
                field=field,
                count=len(self.possible_agents),
                value=got,
            )
        return dict(zip(self.possible_agents, told, strict=True))

    def _all(self, told: Any) -> bool:
        """Whether an episode is over: told once, or of each agent alike."""
        if not isinstance(told, Sequence | np.ndarray):
            return has_ended(self._id, "an end", told)
        ends = {has_ended(self._id, "an end", end) for end in self._each("end", told).values()}
        if len(ends) > 1:
            raise EnvironmentFault("episode_ends_for_some", environment=self._id)
        return ends.pop()


def from_id(id: str, copies: int, settings: Mapping[str, Any], observe: ObservedParts | None = None) -> Environment:
    """The environment `gymnasium.make(id without its prefix, **settings)`; ConfigurationError if it cannot be made."""
    name = id.removeprefix(_PREFIX)
    with gymnasium_errors(id, name, settings) as gymnasium:

        def make_one() -> TupleMultiAgent:
            return TupleMultiAgent(id, gymnasium.make(name, disable_env_checker=True, **settings))

        return PettingZooEnvironment(id, make_one, copies, observe)
