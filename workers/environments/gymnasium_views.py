"""Our worlds of one agent as Gymnasium's environments, single or vector, for programs that speak to those.

In flow: Gymnasium's actions. Out flow: its observations, rewards and ends. The last observation of a terminated episode
is not kept by a world, as its value is 0: a single environment shows the one before it again, a vector none.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.gymnasium import to_gymnasium
from workers.environments.base import Environment, Present, Turn

__all__ = ["GymnasiumView", "VectorView"]


class GymnasiumView(gymnasium.Env[Any, Any]):
    """A world of one agent in one copy; ConfigurationError for another."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, environment: Environment) -> None:
        _check(environment)
        if environment.copies != 1:
            raise ConfigurationError(
                f"{environment.world.id} has {environment.copies} copies, and a gymnasium.Env is one; "
                "make it with one copy, or take VectorView"
            )
        self._environment = environment
        agent = environment.world.agents[0]
        self.observation_space = to_gymnasium(agent.observation)
        self.action_space = to_gymnasium(agent.action)
        self._seen: NDArray[Any] | None = None
        """The last observation; None where no episode is running."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, drawn from `seed` or, without one, from where the last seed has led."""
        super().reset(seed=seed)
        present = _only(self._environment, self._environment.reset(int(self.np_random.integers(2**31))))
        self._seen = present.observation[0].copy()
        return self._seen.copy(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """EnvironmentFault for an action outside the space, and for a step where no episode is running."""
        if self._seen is None:
            raise EnvironmentFault(f"{self._environment.world.id}: step came where no episode runs; call reset first")
        chosen = _actions(self._environment, np.asarray([action]), self.action_space)
        present = _only(self._environment, self._environment.step([chosen]))
        terminated, truncated = bool(present.terminated[0]), bool(present.truncated[0])
        if truncated:
            assert present.final_observation is not None
            seen, self._seen = present.final_observation[0].copy(), None
        elif terminated:
            seen, self._seen = self._seen, None
        else:
            self._seen = present.observation[0].copy()
            seen = self._seen.copy()
        return seen, float(present.reward[0]), terminated, truncated, {}

    def close(self) -> None:
        """Closes the world."""
        self._environment.close()


class VectorView(VectorEnv[Any, Any, Any]):
    """All copies of a world of one agent; an episode restarts in the step that ended it (`SAME_STEP`).

    `final_obs` in the infos is the last observation of each truncated episode.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, environment: Environment) -> None:
        _check(environment)
        self._environment = environment
        self.num_envs = environment.copies
        agent = environment.world.agents[0]
        self.single_observation_space = to_gymnasium(agent.observation)
        self.single_action_space = to_gymnasium(agent.action)
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._runs = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes in all copies, drawn from `seed` (one number) or from where the last one has led."""
        if seed is not None and not isinstance(seed, int):
            raise EnvironmentFault(
                f"{self._environment.world.id}: seed should be one number for all copies but is {type(seed).__name__}; "
                "give a number"
            )
        super().reset(seed=seed, options=options)
        present = _only(self._environment, self._environment.reset(int(self.np_random.integers(2**31))))
        self._runs = True
        return present.observation.copy(), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """EnvironmentFault for actions outside the space, and for a step before the reset."""
        if not self._runs:
            raise EnvironmentFault(f"{self._environment.world.id}: step came before reset; call reset first")
        chosen = _actions(self._environment, np.asarray(actions), self.single_action_space)
        present = _only(self._environment, self._environment.step([chosen]))
        infos: dict[str, Any] = {}
        if present.final_observation is not None:
            finals = np.full(self.num_envs, None, object)
            for row, final in zip(present.final_index.tolist(), present.final_observation, strict=True):
                finals[row] = final.copy()
            infos = {"final_obs": finals, "_final_obs": present.truncated.copy()}
        told = present.observation, present.reward, present.terminated, present.truncated
        observation, reward, terminated, truncated = (one.copy() for one in told)
        return observation, reward, terminated, truncated, infos

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the world."""
        self._environment.close()


def _check(environment: Environment) -> None:
    world = environment.world
    if len(world.places) != 1 or len(world.places[0].slots) != 1:
        raise ConfigurationError(
            f"{world.id} has {sum(len(place.slots) for place in world.places)} agents, and Gymnasium's environments "
            "have one; take ParallelView or TurnView"
        )
    if environment.groups != 1:
        raise ConfigurationError(f"{world.id} steps its copies in groups; make it with async_factor 1")


def _only(environment: Environment, turn: Turn) -> Present:
    if len(turn.present) != 1 or turn.present[0].copies is not None or turn.outcomes:
        raise EnvironmentFault(
            f"{environment.world.id}, agent {environment.world.agents[0].name}: it should be present in all copies in "
            "every turn but is not; Gymnasium has no word for that"
        )
    return turn.present[0]


def _actions(environment: Environment, actions: NDArray[Any], space: Any) -> NDArray[np.int64]:
    """[E] from 0, checked against the space."""
    where = f"{environment.world.id}, agent {environment.world.agents[0].name}: action"
    if actions.shape != (environment.copies,) or actions.dtype.kind not in "iu":
        raise EnvironmentFault(
            f"{where} should be int64[{environment.copies}] but is {actions.dtype}{list(actions.shape)}; correct it"
        )
    outside = actions[(actions < space.start) | (actions >= space.start + space.n)]
    if outside.size:
        raise EnvironmentFault(
            f"{where} should be {space.start} to {space.start + space.n - 1} but is {outside[0]}; correct it"
        )
    return actions.astype(np.int64) - space.start
