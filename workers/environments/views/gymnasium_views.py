"""Our worlds of one agent as Gymnasium's environments, single or vector, for programs that speak to those.

In flow: Gymnasium's actions. Out flow: its observations, rewards and ends. The last observation of a terminated episode
is not kept by a world, as its value is 0: a single environment shows the one before it again, a vector none. Masks of
legal actions, and what a population observes in common, lie beside the observation (see
workers/environments/views/agent_view.py).
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.pettingzoo import to_pettingzoo
from workers.environments.base import AgentTimeStep, Environment, Turn
from workers.environments.views.agent_view import AgentView


class GymnasiumView(gymnasium.Env[Any, Any]):
    """A world of one agent in one copy; ConfigurationError for another."""

    metadata = {"render_modes": []}  # noqa: RUF012

    def __init__(self, environment: Environment) -> None:
        self._shown, self._where, spaces = _agent(environment)
        if environment.copies != 1:
            raise ConfigurationError(
                "gymnasium_view_needs_one_copy", environment=environment.world.id, count=environment.copies
            )
        self._environment = environment
        self.observation_space, self.action_space = spaces
        self._seen: Any = None
        """The last observation; None where no episode is running."""
        self._turn = Turn(())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new episode, drawn from `seed` or, without one, from where the last seed has led."""
        super().reset(seed=seed)
        self._turn = self._environment.reset(int(self.np_random.integers(2**31)))
        self._seen = self._look(_only(self._environment, self._turn))
        return self._seen, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """EnvironmentFault for an action outside the space, and for a step where no episode is running."""
        if self._seen is None:
            raise EnvironmentFault("no_episode_running", environment=self._environment.world.id)
        mask = _only(self._environment, self._turn).action_mask
        chosen = self._shown.row(action, self._where, None if mask is None else mask[0])
        self._turn = self._environment.step([chosen])
        present = _only(self._environment, self._turn)
        terminated, truncated = bool(present.terminated[0]), bool(present.truncated[0])
        if truncated:
            assert present.final_observation is not None
            common = None if present.final_common is None else present.final_common[0]
            seen, self._seen = self._shown.value(present.final_observation[0, ...], None, common), None
        elif terminated:
            seen, self._seen = self._seen, None
        else:
            seen = self._seen = self._look(present)
        return seen, float(present.reward[0]), terminated, truncated, {}

    def _look(self, present: AgentTimeStep) -> Any:
        mask = None if present.action_mask is None else present.action_mask[0]
        common = None if self._turn.common is None else self._turn.common[0]
        return self._shown.value(present.observation[0, ...], mask, common)

    def close(self) -> None:
        """Closes the world."""
        self._environment.close()


class VectorView(VectorEnv[Any, Any, Any]):
    """All copies of a world of one agent; an episode restarts in the step that ended it (`SAME_STEP`).

    `final_obs` in the infos is the last observation of each truncated episode.
    """

    metadata = {"render_modes": [], "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, environment: Environment) -> None:
        self._shown, self._where, spaces = _agent(environment)
        self._environment = environment
        self.num_envs = environment.copies
        self.single_observation_space, self.single_action_space = spaces
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        self._turn: Turn | None = None

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """New episodes in all copies, drawn from `seed` (one number) or from where the last one has led."""
        if seed is not None and not isinstance(seed, int):
            raise EnvironmentFault(
                "seed_not_one_number", environment=self._environment.world.id, value=type(seed).__name__
            )
        super().reset(seed=seed, options=options)
        self._turn = self._environment.reset(int(self.np_random.integers(2**31)))
        return self._look(_only(self._environment, self._turn)), {}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """EnvironmentFault for actions outside the space, and for a step before the reset."""
        if self._turn is None:
            raise EnvironmentFault("step_before_reset", environment=self._environment.world.id)
        masks = _only(self._environment, self._turn).action_mask
        chosen = self._shown.rows(actions, self.num_envs, self._where, masks)
        self._turn = self._environment.step([chosen])
        present = _only(self._environment, self._turn)
        infos: dict[str, Any] = {}
        if present.final_observation is not None:
            finals = np.full(self.num_envs, None, object)
            for k, copy in enumerate(present.final_index.tolist()):
                common = None if present.final_common is None else present.final_common[k]
                finals[copy] = self._shown.value(present.final_observation[k, ...], None, common)
            infos = {"final_obs": finals, "_final_obs": present.truncated.copy()}
        reward, terminated, truncated = (one.copy() for one in (present.reward, present.terminated, present.truncated))
        return self._look(present), reward, terminated, truncated, infos

    def _look(self, present: AgentTimeStep) -> Any:
        assert self._turn is not None
        return self._shown.batch(present.observation, present.action_mask, self._turn.common)

    def close_extras(self, **kwargs: Any) -> None:
        """Closes the world."""
        self._environment.close()


def _agent(environment: Environment) -> tuple[AgentView, str, tuple[Any, Any]]:
    """How the only agent is shown, what sentences on it begin with, and its spaces."""
    world = environment.world
    if len(world.places) != 1 or len(world.places[0].slots) != 1:
        raise ConfigurationError(
            "gymnasium_view_needs_one_agent",
            environment=world.id,
            count=sum(len(place.slots) for place in world.places),
        )
    if environment.groups != 1:
        raise ConfigurationError("view_needs_ungrouped_copies", environment=world.id, key="environment.async_factor")
    observations, actions = to_pettingzoo(world)
    (place,) = world.places
    (name,) = observations
    return AgentView(world, place), f"{world.id}, agent {place.name}", (observations[name], actions[name])


def _only(environment: Environment, turn: Turn) -> AgentTimeStep:
    if len(turn.present) != 1 or turn.present[0].copies is not None or turn.outcomes:
        raise EnvironmentFault(
            "agent_sometimes_absent", environment=environment.world.id, agent=environment.world.agents[0].name
        )
    return turn.present[0]
