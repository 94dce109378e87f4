"""Our worlds as PettingZoo's environments, parallel or in turns, for programs that speak to those.

In flow: PettingZoo's actions. Out flow: its observations, rewards and ends, of one copy. PettingZoo's agents do not
come back within an episode: where one does, or where ours is told of an end only when its next episode has begun, it
takes its first legal action until all have ended; no reward or end is lost or told twice by that. The last observation
of a terminated episode is not kept by a world, as its value is 0: the one before it is shown again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from protocol.errors import EnvironmentFault
from workers.environments.base import Environment
from workers.environments.views.single_copy import SingleCopy

_MOST_TURNS = 100_000
"""Turns without anyone to act, after which a world is said to hang."""


class ParallelView(ParallelEnv):
    """One copy of a world whose agents act all at once; ConfigurationError for more copies."""

    def __init__(self, environment: Environment) -> None:
        self._copy = SingleCopy(environment)
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
            raise EnvironmentFault("no_episode_running", environment=copy.id)
        for name in sorted(set(acted) ^ set(actions)):
            expected, got = ("an action", "missing") if name in acted else ("none, as it does not act", "there")
            raise EnvironmentFault(
                "action_invalid", environment=copy.id, agent=name, expected=expected, value=got, field="action"
            )
        news = copy.step({name: copy.read(name, action) for name, action in actions.items()})
        for name in acted:
            if name not in news:
                raise EnvironmentFault("agent_absent_before_end", environment=copy.id, agent=name)
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
        self._copy = SingleCopy(environment)
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
            raise EnvironmentFault("no_episode_running", environment=self._copy.id)
        name = self.agent_selection
        if self.terminations[name] or self.truncations[name]:
            self._was_dead_step(action)
            return
        self._chosen[name] = self._copy.read(name, action)
        self._cumulative_rewards[name] = 0.0
        self._clear_rewards()
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
            "agents_neither_act_nor_end", environment=copy.id, agents=sorted(copy.acted), limit=_MOST_TURNS
        )

    def close(self) -> None:
        """Closes the world."""
        self._copy.environment.close()
