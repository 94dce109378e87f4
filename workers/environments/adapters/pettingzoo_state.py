"""PettingZoo environments whose `state()` learners see: it comes as a part of every agent's observation.

In flow: an environment, parallel or in turns. Out flow: the same environment, in each of whose observations there is
`central`, the state at that moment, beside `own` (or beside the parts that an observation has by name).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any

import numpy as np

from protocol.errors import ConfigurationError
from workers.environments.adapters.space_conversion import MASK
from workers.environments.checks.closing import close_logged
from workers.environments.wrappers.own_parts import CENTRAL, OWN, refuse_second


def with_states(id: str, make_one: Callable[[], Any]) -> Callable[[], Any]:
    """Makes environments with their states; ConfigurationError for those that have none."""
    return lambda: StateWrapper(id, make_one())


class StateWrapper:
    """`env`, which is asked for its state after each step and before it begins anew."""

    def __init__(self, id: str, env: Any) -> None:
        self._env, self._id = env, id
        self._states = _space(id, env)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def observation_space(self, agent: Hashable) -> Any:
        """The agent's, with the state."""
        import gymnasium

        space = self._env.observation_space(agent)
        if isinstance(space, gymnasium.spaces.Dict) and CENTRAL in space.spaces:
            raise refuse_second(self._id, str(agent))
        if not isinstance(space, gymnasium.Space):  # which is told by who asks
            return space
        if not isinstance(space, gymnasium.spaces.Dict):
            return gymnasium.spaces.Dict({OWN: space, CENTRAL: self._states})
        if set(space.spaces) == {"observation", MASK}:
            inner = gymnasium.spaces.Dict({OWN: space["observation"], CENTRAL: self._states})
            return gymnasium.spaces.Dict({"observation": inner, MASK: space[MASK]})
        return gymnasium.spaces.Dict({**space.spaces, CENTRAL: self._states})

    def reset(self, *args: Any, **options: Any) -> Any:
        """As the environment's."""
        return self._each(self._env.reset(*args, **options))

    def step(self, action: Any) -> Any:
        """As the environment's."""
        return self._each(self._env.step(action))

    def last(self, observe: bool = True) -> Any:
        """As the environment's, where agents take turns."""
        told = self._env.last(observe)
        if not observe or not isinstance(told, tuple | list) or not told:  # which is told by who asks
            return told
        return (self._beside(told[0], self._state()), *told[1:])

    def observe(self, agent: Hashable) -> Any:
        """As the environment's, where agents take turns."""
        return self._beside(self._env.observe(agent), self._state())

    def _each(self, told: Any) -> Any:
        """What a call returned, with the state in each observation that begins it."""
        if not isinstance(told, tuple | list) or not told or not isinstance(told[0], Mapping):
            return told
        state = self._state()
        return ({agent: self._beside(one, state) for agent, one in told[0].items()}, *told[1:])

    def _state(self) -> Any:
        return np.array(self._env.state())  # a copy: environments may use theirs again

    @staticmethod
    def _beside(seen: Any, state: Any) -> Any:
        if not isinstance(seen, Mapping):
            return {OWN: seen, CENTRAL: state}
        if seen.keys() == {"observation", MASK}:
            return {"observation": {OWN: seen["observation"], CENTRAL: state}, MASK: seen[MASK]}
        return {**seen, CENTRAL: state}


def _space(id: str, env: Any) -> Any:
    """Gymnasium's space of the states of `env`, as it says or as its first one shows."""
    import gymnasium

    try:
        env.reset(seed=0)
        state = np.asarray(env.state())
    except (AttributeError, NotImplementedError):
        close_logged(id, env.close)
        raise ConfigurationError("state_method_missing", environment=id, key="environment.central_state") from None
    told = getattr(env, "state_space", None)
    if told is not None:
        return told
    if state.dtype.kind == "f":
        return gymnasium.spaces.Box(-np.inf, np.inf, state.shape, state.dtype.type)
    limits = np.iinfo(state.dtype) if state.dtype.kind in "iu" else None
    low, high = (0, 1) if limits is None else (limits.min, limits.max)
    return gymnasium.spaces.Box(low, high, state.shape, state.dtype.type)
