"""Our worlds as PettingZoo's environments, parallel or in turns, for programs that speak to those.

In flow: PettingZoo's actions. Out flow: its observations, rewards and ends, of one copy. PettingZoo's agents do not
come back within an episode: where one does, or where ours is told of an end only when its next episode has begun, it
takes its first action until all have ended; no reward or end is lost or told twice by that. The last observation of a
terminated episode is not kept by a world, as its value is 0: the one before it is shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pettingzoo import AECEnv, ParallelEnv

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.pettingzoo import to_pettingzoo
from workers.environments.base import Environment, Outcome, Present, Turn

__all__ = ["ParallelView", "TurnView"]

_MOST_TURNS = 100_000
"""Turns without anyone to act, after which a world is said to hang."""


class _Copy:
    """One copy of a world: who is to act, what each agent saw last, what it is told."""

    def __init__(self, environment: Environment) -> None:
        world = environment.world
        self.observations, actions = to_pettingzoo(world)
        self.actions: dict[str, Any] = actions
        self.names = [agent.name for agent in world.agents]
        if environment.copies != 1:
            raise ConfigurationError(
                f"{world.id} has {environment.copies} copies, and PettingZoo's environments are one; make it with one"
            )
        if list(self.observations) != self.names or any(
            agent.action_mask or population.common is not None
            for place in world.places
            for agent, (_, population) in ((place.agent, one) for one in place.populations)
        ):
            raise ConfigurationError(
                f"{world.id} has templates, masks or common observations, which are not shown to PettingZoo; "
                "make it of named agents with observations of their own"
            )
        self.environment, self.id = environment, world.id
        self.generator = np.random.default_rng()
        self.seen: dict[str, NDArray[Any]] = {}
        self.ended: set[str] = set()
        self.waiting: list[str] = []
        """Agents present in this turn, in their order."""
        self.acted: set[str] = set()
        """Agents that have acted in this episode and not ended."""

    def begin(self, seed: int | None) -> None:
        """A new episode, drawn from `seed` or, without one, from where the last seed has led."""
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self.seen, self.ended, self.acted = {}, set(), set()
        self._take(self.environment.reset(int(self.generator.integers(2**31))))

    def step(self, chosen: Mapping[str, Any]) -> dict[str, tuple[float, bool, bool]]:
        """Acts for all who wait: `chosen`, or the first action for who has ended. Agent -> reward, terminated,
        truncated."""
        actions = []
        for name in self.waiting:
            space = self.actions[name]
            action = chosen.get(name, space.start) if name not in self.ended else space.start
            if not space.contains(action):
                raise EnvironmentFault(
                    f"{self.id}, agent {name}: action should be {space.start} to {space.start + space.n - 1} but is "
                    f"{action!r}; correct it"
                )
            actions.append(np.array([int(action) - space.start]))
        self.acted.update(name for name in self.waiting if name not in self.ended)
        return self._take(self.environment.step(actions))

    def _take(self, turn: Turn) -> dict[str, tuple[float, bool, bool]]:
        news: dict[str, tuple[float, bool, bool]] = {}
        self.waiting = []
        for outcome in turn.outcomes:
            if len(outcome.copies):
                self._tell(news, outcome)
        for told in turn.present:
            name = self.names[told.agent]
            if not len(told.observation):
                continue
            self.waiting.append(name)
            self._tell(news, told)
            if name not in self.ended:
                self.seen[name] = told.observation[0].copy()
        return news

    def _tell(self, news: dict[str, tuple[float, bool, bool]], told: Present | Outcome) -> None:
        name = self.names[told.agent]
        if name in self.ended:
            return
        terminated, truncated = bool(told.terminated[0]), bool(told.truncated[0])
        news[name] = (float(told.reward[0]), terminated, truncated)
        if truncated:
            assert told.final_observation is not None
            self.seen[name] = told.final_observation[0].copy()
        if terminated or truncated:
            self.ended.add(name)
            self.acted.discard(name)

    def look(self, name: str) -> Any:
        """A copy of what the agent saw last; zeros before it saw anything."""
        seen = self.seen.get(name)
        space = self.observations[name]
        return np.zeros(space.shape, space.dtype) if seen is None else seen.copy()


class ParallelView(ParallelEnv):
    """One copy of a world whose agents act all at once; ConfigurationError for more copies."""

    def __init__(self, environment: Environment) -> None:
        self._copy = _Copy(environment)
        self.metadata = {"name": environment.world.id, "render_modes": []}
        self.render_mode = None
        self.possible_agents = list(self._copy.names)
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._copy.observations[agent]

    def action_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._copy.actions[agent]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """A new episode."""
        self._copy.begin(seed)
        self.agents = list(self._copy.waiting)
        return {name: self._copy.look(name) for name in self.agents}, {name: {} for name in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """EnvironmentFault for an action outside its space, of an agent that does not act, or lacking; for a step where
        no episode runs; and where the agents act one after another."""
        copy, acted = self._copy, self.agents
        if not acted:
            raise EnvironmentFault(f"{copy.id}: step came where no episode runs; call reset first")
        for name in sorted(set(acted) ^ set(actions)):
            expected, got = ("an action", "missing") if name in acted else ("none, as it does not act", "there")
            raise EnvironmentFault(f"{copy.id}, agent {name}: action should be {expected} but is {got}; correct it")
        news = copy.step(actions)
        for name in acted:
            if name not in news:
                raise EnvironmentFault(
                    f"{copy.id}, agent {name}: it should be present in every turn until its end but is not; set "
                    "turn_mode to simultaneous, or take TurnView"
                )
        self.agents = [name for name in copy.waiting if name not in copy.ended]
        told = [*acted, *(name for name in self.agents if name not in acted)]
        nothing = (0.0, False, False)
        return (
            {name: copy.look(name) for name in told},
            {name: news.get(name, nothing)[0] for name in told},
            {name: news.get(name, nothing)[1] for name in told},
            {name: news.get(name, nothing)[2] for name in told},
            {name: {} for name in told},
        )

    def close(self) -> None:
        """Closes the world."""
        self._copy.environment.close()


class TurnView(AECEnv):
    """One copy of a world whose agents act one after another, or all at once (then in their order, unseen by the
    others); ConfigurationError for more copies."""

    def __init__(self, environment: Environment) -> None:
        super().__init__()
        self._copy = _Copy(environment)
        self.metadata = {"name": environment.world.id, "render_modes": [], "is_parallelizable": False}
        self.render_mode = None
        self.possible_agents = list(self._copy.names)
        self.agents: list[str] = []
        self._chosen: dict[str, Any] = {}

    def observation_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._copy.observations[agent]

    def action_space(self, agent: str) -> Any:
        """Of one agent."""
        return self._copy.actions[agent]

    def observe(self, agent: str) -> Any:
        """What the agent saw last."""
        return self._copy.look(agent)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        """A new episode, of all possible agents."""
        self._copy.begin(seed)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}
        self._chosen = {}
        self._skip_agent_selection = None
        self.agent_selection = self._copy.waiting[0]

    def step(self, action: Any) -> None:
        """EnvironmentFault for an action outside the space, and where no episode runs."""
        if not self.agents:
            raise EnvironmentFault(f"{self._copy.id}: step came where no episode runs; call reset first")
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        space = self.action_space(name)
        if not space.contains(action):
            raise EnvironmentFault(
                f"{self._copy.id}, agent {name}: action should be {space.start} to {space.start + space.n - 1} but is "
                f"{action!r}; correct it"
            )
        self._cumulative_rewards[name] = 0.0
        self._clear_rewards()
        self._chosen[name] = action
        self._go_on()
        self._accumulate_rewards()
        self._deads_step_first()

    def _go_on(self) -> None:
        """To the next agent that has to choose, or to the end of all."""
        copy = self._copy
        for _ in range(_MOST_TURNS):
            for name in copy.waiting:
                if name not in copy.ended and name not in self._chosen:
                    self.agent_selection = name
                    return
            news = copy.step(self._chosen)
            self._chosen = {}
            for name, (reward, terminated, truncated) in news.items():
                self.rewards[name] += reward
                self.terminations[name], self.truncations[name] = terminated, truncated
            if not copy.acted and not any(name not in copy.ended for name in copy.waiting):
                for name in self.agents:  # who never came cannot come any more
                    self.truncations[name] |= not self.terminations[name]
                return
        raise EnvironmentFault(
            f"{copy.id}: agents {', '.join(sorted(copy.acted))} should act or end but did neither for {_MOST_TURNS} "
            "turns; correct the environment"
        )

    def close(self) -> None:
        """Closes the world."""
        self._copy.environment.close()
