"""Scenarios of VMAS, which steps all agents in all copies by torch.

In flow: actions [E, ...] of NumPy. Out flow: what a step brought, as arrays of NumPy that lie where torch has them.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.errors.packages import missing_module, not_installed
from workers.environments.adapters.adapter_checks import check_limit, settings_refused
from workers.environments.adapters.batched.parallel import as_gymnasium
from workers.environments.known_ids import is_meant, nearest

_STEPS = 100
"""Of an episode, where no `max_steps` is set: as BenchMARL has it."""


class VmasWorld:
    """`vmas:SCENARIO` in E copies, with what `vmas.make_env` and the scenario take as settings."""

    def __init__(self, id: str, copies: int, settings: Mapping[str, Any]) -> None:
        try:
            import vmas
        except ImportError as fault:
            raise not_installed(id, missing_module(fault) or "vmas") from fault
        name = id.partition(":")[2]
        known = {name: name for name in (*vmas.scenarios, *vmas.mpe_scenarios, *vmas.debug_scenarios)}
        if name not in known:
            hint = is_meant([f"vmas:{one}" for one in nearest(name, known)])
            raise ConfigurationError("vmas_scenario_unknown", value=name, hint=hint, key="environment.id")
        ours = {"dict_spaces": True, "terminated_truncated": True}
        if taken := [key for key in ("wrapper", "device", "seed", *ours) if key in settings]:
            key = f"environment.settings.{taken[0]}"
            raise ConfigurationError("setting_is_environment_key", field=taken[0], key=key)
        try:
            _check(settings, vmas.make_env)
            with warnings.catch_warnings():
                warnings.filterwarnings("error", "Scenario kwargs", UserWarning)  # of settings that it does not know
                self._env = vmas.make_env(name, copies, **{"max_steps": _STEPS, **settings}, **ours)
        except (TypeError, ValueError, AssertionError, UserWarning) as fault:
            raise settings_refused(id, settings, fault) from fault
        self.num_envs, self.max_episode_steps = copies, self._env.max_steps
        self.possible_agents = [agent.name for agent in self._env.agents]

    def observation_space(self, agent: str) -> Any:
        """Gymnasium's."""
        return as_gymnasium(self._env.observation_space[agent])

    def action_space(self, agent: str) -> Any:
        """Gymnasium's."""
        return as_gymnasium(self._env.action_space[agent])

    def reset(self, seed: int) -> tuple[Any, Any]:
        """From the generators of torch, NumPy and Python that VMAS keeps for itself."""
        return self._env.reset(seed=seed), {}

    def step(self, actions: Mapping[str, NDArray[Any]]) -> tuple[Any, ...]:
        """In all copies; VMAS restarts none by itself."""
        import torch

        given = {name: torch.from_numpy(np.atleast_2d(action.T).T) for name, action in actions.items()}
        seen, rewards, terminated, truncated, told = self._env.step(given)
        rewards = {name: reward.flatten() for name, reward in rewards.items()}  # those of `wheel` are columns
        ended = (terminated | truncated).nonzero().ravel().tolist()
        if ended:
            infos = {name: {**told[name], "final_observation": seen[name]} for name in self.possible_agents}
            if len(ended) == self.num_envs:
                return self._env.reset(), rewards, terminated, truncated, infos
            for copy in ended:
                self._env.reset_at(copy, return_observations=False)
            (seen,) = self._env.get_from_scenario(True, False, False, False)
            return seen, rewards, terminated, truncated, infos
        return seen, rewards, terminated, truncated, told


def _check(settings: Mapping[str, Any], make_env: Callable[..., Any]) -> None:
    """TypeError or ValueError for what VMAS would play otherwise than it is meant."""
    for name, parameter in inspect.signature(make_env).parameters.items():
        if isinstance(parameter.default, bool) and not isinstance(settings.get(name, False), bool):
            raise TypeError(f"{name} should be true or false but is {settings[name]!r}")
    check_limit("max_steps", settings.get("max_steps"))
