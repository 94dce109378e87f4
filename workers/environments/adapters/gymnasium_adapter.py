"""Gymnasium environments as worlds with the single agent `agent`, E copies stepped one by one.

In flow: actions [E]. Out flow: observations, rewards and ends; the step that ends an episode begins the next.
CartPole, for which Gymnasium has a vectorised twin, is stepped by that instead, and so is what has no other form.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError
from protocol.errors.packages import missing_module, not_installed
from workers.environments.adapters.adapter_checks import (
    RESET,
    STEP,
    check_reset,
    check_same,
    copy_seeds,
    declared_space,
    has_ended,
    malformed,
    max_steps,
    number_of,
    picture_of,
    settings_refused,
    step_before_reset,
)
from workers.environments.adapters.batched.gymnasium_vector import CartPole, GymnasiumVector
from workers.environments.adapters.space_conversion import translate
from workers.environments.base import AgentTimeStep, Environment, Turn
from workers.environments.checks.closing import close_all, made_copies
from workers.environments.known_ids import gymnasium_names, is_meant, nearest, registering_module


class GymnasiumEnvironment(Environment):
    """`copies` environments, each from `make_one`; ConfigurationError for spaces that cannot be taken.

    An episode that terminated counts as terminated alone, even where its time was up in the same step.
    """

    def __init__(self, id: str, make_one: Callable[[], Any], copies: int, observe: ObservedParts | None = None) -> None:
        self.copies = copies
        self._where = f"{id}, agent agent"
        with made_copies(id, make_one, copies) as self._envs:
            first = self._envs[0]
            check_reset(self._where, first.reset)
            steps = max_steps(getattr(getattr(first, "spec", None), "max_episode_steps", None))
            self._spaces = tuple(declared_space(id, first, field) for field in ("observation_space", "action_space"))
            observed, acted = {"agent": self._spaces[0]}, {"agent": self._spaces[1]}
            infos = {"agent": self._begin(first)[1]}
            self.world, (self._agent,) = translate(id, observed, acted, infos, steps, observe)
        place = self.world.places[0]
        self._observation = place.observed.zeros(copies)
        self._masks = None if place.masked is None else place.masked.zeros(copies)
        self._reward = np.zeros(copies, np.float32)
        self._terminated = np.zeros(copies, np.bool_)
        self._truncated = np.zeros(copies, np.bool_)
        self._begun = False

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        for i, (env, one) in enumerate(zip(self._envs, copy_seeds(seed, self.copies), strict=True)):
            seen, info = self._begin(env, seed=one)
            self._show(i, seen, info)
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        self._begun = True
        return Turn((self._present([]),))

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        """Steps every copy; where an episode ended, the observation is already the next episode's first."""
        if not self._begun:
            raise step_before_reset(self.world.id)
        finals: list[Any] = []
        for i, (env, action) in enumerate(zip(self._envs, self._agent.values(actions[0]), strict=True)):
            told = env.step(action)
            if not isinstance(told, tuple) or len(told) != 5:
                raise malformed(self._where, "step", STEP, told)
            seen, reward, terminated, truncated, info = told
            self._reward[i] = reward if type(reward) is float else number_of(self._where, reward)
            if terminated is not False:
                terminated = has_ended(self._where, "terminated", terminated)
            if truncated is not False:
                truncated = has_ended(self._where, "truncated", truncated)
            self._terminated[i] = terminated
            self._truncated[i] = truncated and not terminated
            if terminated or truncated:
                if info:
                    self.tell(0, info)
                if not terminated:
                    finals.append(deepcopy(seen))  # environments may use what they showed again
                seen, info = self._begin(env)
            self._show(i, seen, info)
        return Turn((self._present(finals),), env_steps=self.copies)

    def _show(self, copy: int, seen: Any, info: Any) -> None:
        self._agent.write_observation(self._observation, copy, seen)
        if self._masks is not None:
            self._agent.write_mask(self._masks, copy, seen, info)
        elif info:
            self._agent.refuse_late_mask(info)

    def _begin(self, env: Any, **seed: int) -> tuple[Any, Any]:
        """The first observation of a new episode, and its info."""
        told = env.reset(**seed)
        if not isinstance(told, tuple) or len(told) != 2:
            raise malformed(self._where, "reset", RESET, told)
        check_same(self._spaces[0], env.observation_space, self._where, "observation space")
        check_same(self._spaces[1], env.action_space, self._where, "action space")
        return told

    def _present(self, finals: list[Any]) -> AgentTimeStep:
        present = AgentTimeStep(0, self._observation, self._reward, self._terminated, self._truncated)
        present.action_mask = self._masks
        if finals:
            present.final_index = np.flatnonzero(self._truncated)
            present.final_observation = self.world.places[0].observed.zeros(len(finals))
            for row, seen in enumerate(finals):
                self._agent.write_observation(present.final_observation, row, seen)
        return present

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """What the environment renders, where it was made with `render_mode: rgb_array`."""
        return picture_of(self._envs[copy])

    def close(self) -> None:
        """Closes all copies, though some may raise."""
        close_all(self._envs)


def from_id(id: str, copies: int, settings: Mapping[str, Any], observe: ObservedParts | None = None) -> Environment:
    """The environment `gymnasium.make(id without its prefix, **settings)`; ConfigurationError if it cannot be made."""
    name = id.removeprefix("gymnasium:")
    with gymnasium_errors(id, name, settings) as gymnasium:
        spec = gymnasium.spec(name) if ":" not in name else None
        entry = spec.vector_entry_point if spec else None
        if entry == "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv" and observe is None:
            return CartPole(id, gymnasium.make_vec(name, num_envs=copies, **settings))
        if spec and spec.entry_point is None and entry is not None:
            return GymnasiumVector(id, gymnasium.make_vec(name, num_envs=copies, **settings), observe)
        make_one = partial(gymnasium.make, name, disable_env_checker=True, **settings)
        return GymnasiumEnvironment(id, make_one, copies, observe)


@contextmanager
def gymnasium_errors(id: str, name: str, settings: Mapping[str, Any]) -> Iterator[Any]:
    """Gymnasium, with which `name` is made; ConfigurationError, in one sentence, if it cannot be."""
    try:
        import gymnasium
    except ImportError:
        raise not_installed(id, "gymnasium") from None
    try:
        module, _, function = registering_module(name).partition(":")
        if module and name not in gymnasium.registry:
            registrar = importlib.import_module(module)
            if function:
                getattr(registrar, function)()
        yield gymnasium
    except ConfigurationError:
        raise
    except gymnasium.error.DependencyNotInstalled as fault:
        # Gymnasium's own sentence names the extra to install.
        raise ConfigurationError(
            "environment_dependency_missing", environment=id, reason=" ".join(str(fault).split())
        ) from fault
    except ModuleNotFoundError as fault:
        raise not_installed(id, missing_module(fault) or name.partition(":")[0]) from fault
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as fault:
        near = nearest(name.rpartition(":")[2].rpartition("/")[2], gymnasium_names())
        raise ConfigurationError(
            "gymnasium_id_unknown",
            environment=name,
            reason=" ".join(str(fault).split()),
            hint=is_meant([f"gymnasium:{one}" for one in near]),
            prefix=id.partition(":")[0],
            key="environment.id",
        ) from fault
    except (gymnasium.error.Error, TypeError, ValueError, AssertionError) as fault:
        raise settings_refused(id, settings, fault) from fault
