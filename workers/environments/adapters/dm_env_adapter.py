"""dm_env's environments, spoken to as Gymnasium's are.

In flow: dm_env's time steps and specs. Out flow: Gymnasium's tuples and spaces; an episode whose last discount is 0 has
terminated, any other was truncated. dm_env knows no seeds: a run can be repeated only if the function that makes the
environment gives it one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.arrays import limits
from workers.environments.adapters.adapter_checks import malformed

if TYPE_CHECKING:
    import gymnasium


def is_dm_env(env: Any) -> bool:
    """Whether it has dm_env's specs."""
    return hasattr(env, "observation_spec") and hasattr(env, "action_spec") and hasattr(env, "step")


class DmEnv:
    """What `GymnasiumEnvironment` takes, from a `dm_env.Environment`."""

    def __init__(self, id: str, env: Any) -> None:
        self._id, self._env = id, env
        self.observation_space = _space(env.observation_spec(), f"{id}: its observation")
        self.action_space = _space(env.action_spec(), f"{id}: its action")

    def reset(self, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """The first observation; dm_env takes no seed."""
        return self._told("reset", self._env.reset()).observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """EnvironmentFault if the environment restarted before it had ended."""
        now = self._told("step", self._env.step(action))
        if now.first():
            raise EnvironmentFault("episode_restarted_without_end", environment=self._id)
        over = bool(now.last())
        terminated = over and not now.discount
        return now.observation, now.reward, terminated, over and not terminated, {}

    def _told(self, method: str, told: Any) -> Any:
        if not hasattr(told, "observation") or not hasattr(told, "discount"):
            raise malformed(f"{self._id}, agent agent", method, "a TimeStep", told, "dm_env.Environment")
        return told

    def close(self) -> None:
        """Closes the environment."""
        self._env.close()


def _space(spec: Any, where: str) -> gymnasium.Space[Any]:
    """Gymnasium's space of an array, bounded or not, of choices, or of a dictionary, list or tuple of such."""
    from gymnasium import spaces

    if isinstance(spec, Mapping):
        return spaces.Dict({key: _space(part, where) for key, part in spec.items()})
    if isinstance(spec, list | tuple):
        return spaces.Tuple([_space(part, where) for part in spec])
    if spec.dtype.kind not in "biuf":
        raise ConfigurationError("spec_not_numeric", where=where, value=spec)
    whole, low, high = spec.dtype.kind in "biu", getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
    if spec.dtype.kind in "iu" and spec.shape == () and np.isfinite(low) and np.isfinite(high):
        return spaces.Discrete(int(high) - int(low) + 1, start=int(low))
    if whole and not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        low, high = limits(spec.dtype.name)
    low, high = (np.broadcast_to(np.asarray(one, spec.dtype), spec.shape) for one in (low, high))
    return spaces.Box(low, high, spec.shape, dtype=spec.dtype.type)
