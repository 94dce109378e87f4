"""Gymnasium environments as worlds with the single agent `agent`, E copies stepped one by one.

In flow: actions [E]. Out flow: observations, rewards and ends; the step that ends an episode begins the next.
CartPole, for which Gymnasium has a vectorised twin, is stepped by that instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, World
from workers.environments.adapting import box, copy_in, copy_seeds, discrete
from workers.environments.base import Environment, Present, Turn
from workers.environments.cartpole import CartPole

__all__ = ["GymnasiumEnvironment", "from_id"]


class GymnasiumEnvironment(Environment):
    """`copies` environments, each from `make_one`; ConfigurationError for spaces this release does not take.

    An episode that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int) -> None:
        self.copies = copies
        self._envs: list[Any] = []
        try:
            for _ in range(copies):
                self._envs.append(make_one())
            first = self._envs[0]
            observation = box(first.observation_space, id)
            action, self._start = discrete(first.action_space, id)
        except BaseException:
            self.close()
            raise
        steps = getattr(first.spec, "max_episode_steps", None)
        self.world = World(
            id=id,
            agents=(Agent(name="agent", observation=observation, action=action),),
            episode_steps=steps if isinstance(steps, int) and steps > 0 else None,
        )
        self._observation = np.zeros((copies, *observation.shape), observation.dtype)
        self._reward = np.zeros(copies, np.float32)
        self._terminated = np.zeros(copies, np.bool_)
        self._truncated = np.zeros(copies, np.bool_)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        for i, (env, one) in enumerate(zip(self._envs, copy_seeds(seed, self.copies), strict=True)):
            copy_in(self._observation, i, env.reset(seed=one)[0], self.world.id)
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        return Turn((self._present([]),))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy; where an episode ended, the observation is already the next episode's first."""
        observation, name = self._observation, self.world.id
        finals: list[Any] = []
        for i, (env, action) in enumerate(zip(self._envs, (actions[0] + self._start).tolist(), strict=True)):
            seen, self._reward[i], terminated, truncated, _ = env.step(action)
            self._terminated[i] = terminated
            self._truncated[i] = truncated and not terminated
            if terminated or truncated:
                if not terminated:
                    finals.append(seen)
                seen, _ = env.reset()
            copy_in(observation, i, seen, name)
        return Turn((self._present(finals),), env_steps=self.copies)

    def _present(self, finals: list[Any]) -> Present:
        present = Present(0, self._observation, self._reward, self._terminated, self._truncated)
        if finals:
            present.final_index = np.flatnonzero(self._truncated)
            present.final_observation = np.empty((len(finals), *self._observation.shape[1:]), self._observation.dtype)
            for row, seen in enumerate(finals):
                copy_in(present.final_observation, row, seen, self.world.id)
        return present

    def close(self) -> None:
        """Closes all copies."""
        while self._envs:
            self._envs.pop().close()


def from_id(id: str, copies: int, settings: Mapping[str, Any]) -> Environment:
    """The environment `gymnasium.make(id without its prefix, **settings)`; ConfigurationError if it cannot be made."""
    name = id.removeprefix("gymnasium:")
    try:
        import gymnasium
    except ImportError:
        raise ConfigurationError(f"{id} needs a package that is missing; run: pip install gymnasium") from None
    try:
        entry = gymnasium.spec(name).vector_entry_point if ":" not in name else None
        if entry == "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv":
            return CartPole(id, gymnasium.make_vec(name, num_envs=copies, **settings))
        return GymnasiumEnvironment(id, lambda: gymnasium.make(name, disable_env_checker=True, **settings), copies)
    except gymnasium.error.DependencyNotInstalled as fault:
        # Gymnasium's own sentence names the extra to install.
        raise ConfigurationError(f"{id} needs a package that is missing: {' '.join(str(fault).split())}") from fault
    except ModuleNotFoundError as fault:
        package = (fault.name or name).partition(".")[0]
        raise ConfigurationError(f"{id} needs a package that is missing; run: pip install {package}") from fault
    except gymnasium.error.UnregisteredEnv as fault:
        raise ConfigurationError(
            f"Gymnasium does not know {name!r} ({' '.join(str(fault).split())}); correct environment.id, "
            "or name the module that registers it, as in gymnasium:MODULE:ID"
        ) from fault
    except (gymnasium.error.Error, TypeError, ValueError, AssertionError) as fault:
        raise ConfigurationError(
            f"{id} cannot be made with the settings {dict(settings)} ({' '.join(str(fault).split())}); "
            "correct environment.settings"
        ) from fault
