"""One copy of a world, agent by agent: who is to act, what each saw last, what it is told.

In flows: turns; an action for each agent that waits, a row of its place. Out flows: by agent, values as PettingZoo
nests them, rewards and ends. Those that stand for many are agents of their own, called as PettingZoo's spaces are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces.drawing import first_legal
from protocol.spaces.pettingzoo import to_pettingzoo
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn
from workers.environments.views.agent_view import AgentView

News = dict[str, tuple[float, bool, bool]]
"""agent -> reward, terminated, truncated"""


class SingleCopy:
    """The only copy of `environment`; ConfigurationError where there are more."""

    def __init__(self, environment: Environment) -> None:
        world = environment.world
        if environment.copies != 1:
            raise ConfigurationError("pettingzoo_view_needs_one_copy", environment=world.id, count=environment.copies)
        self.environment, self.id = environment, world.id
        self.observations, self.actions = to_pettingzoo(world)
        self._slots = [place.slots for place in world.places]
        self.names = [name for slots in self._slots for name in slots]
        self._shown: dict[str, AgentView] = {}
        for place in world.places:
            self._shown |= dict.fromkeys(place.slots, AgentView(world, place))
        self.generator = np.random.default_rng()
        self._turn = Turn(())
        self._seen: dict[str, Any] = {}
        self._masks: dict[str, NDArray[Any]] = {}
        """What those who wait may do."""
        self.ended: set[str] = set()
        self.waiting: list[str] = []
        """Agents present in this turn, in their order."""
        self.acted: set[str] = set()
        """Agents that have acted in this episode and not ended."""

    def begin(self, seed: int | None) -> None:
        """A new episode, drawn from `seed` or, without one, from where the last seed has led."""
        if seed is not None:
            self.generator = np.random.default_rng(seed)
        self._seen, self.ended, self.acted = {}, set(), set()
        self._take(self.environment.reset(int(self.generator.integers(2**31))))

    def read(self, name: str, action: Any) -> NDArray[Any]:
        """[1]: an action of one agent; EnvironmentFault if it is not in its space, or not legal now."""
        return self._shown[name].row(action, f"{self.id}, agent {name}", self._masks.get(name))

    def step(self, chosen: Mapping[str, NDArray[Any]]) -> News:
        """Acts for all who wait: `chosen`, or the first legal action for who has ended."""
        actions = []
        for present in self._turn.present:
            names = self._names(present)
            place = self.environment.world.places[present.agent]
            first = first_legal(place.acted, len(names), present.action_mask)
            for row, name in enumerate(names):
                if name in chosen and name not in self.ended:
                    first[row] = chosen[name][0]
            actions.append(first)
        self.acted.update(name for name in self.waiting if name not in self.ended)
        return self._take(self.environment.step(actions))

    def look(self, name: str) -> Any:
        """What the agent saw last, in arrays of its own, and what it may do now."""
        shown = self._shown[name]
        if name not in self._seen:
            return shown.empty()
        row, common = self._seen[name]
        return shown.value(row, None if name in self.ended else self._masks.get(name), common)

    def _take(self, turn: Turn) -> News:
        news: News = {}
        self._turn, self.waiting, self._masks = turn, [], {}
        for outcome in turn.outcomes:
            self._tell(news, outcome)
        common = None if turn.common is None else turn.common[0].copy()
        for told in turn.present:
            self._tell(news, told)
            for row, name in enumerate(self._names(told)):
                self.waiting.append(name)
                if told.action_mask is not None:
                    self._masks[name] = told.action_mask[row].copy()
                if name not in self.ended:
                    self._seen[name] = (told.observation[row, ...].copy(), common)
        return news

    def _tell(self, news: News, told: AgentTimeStep | AgentOutcome) -> None:
        finals = {int(row): k for k, row in enumerate(told.final_index)}
        for row, name in enumerate(self._names(told)):
            if name in self.ended:
                continue
            terminated, truncated = bool(told.terminated[row]), bool(told.truncated[row])
            news[name] = (float(told.reward[row]), terminated, truncated)
            if truncated:
                assert told.final_observation is not None
                k = finals[row]
                common = None if told.final_common is None else told.final_common[k].copy()
                self._seen[name] = (told.final_observation[k, ...].copy(), common)
            if terminated or truncated:
                self.ended.add(name)
                self.acted.discard(name)

    def _names(self, told: AgentTimeStep | AgentOutcome) -> list[str]:
        """Of each row."""
        slots = self._slots[told.agent]
        return list(slots) if told.copies is None else [slots[place] for place in told.copies.tolist()]
