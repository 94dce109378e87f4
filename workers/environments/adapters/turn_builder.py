"""Who acts and what was earned, gathered copy by copy into turns: what adapters share whose agents come and go.

In flows: for each agent and copy an observation to act on, rewards, an end; actions of those who were to act. Out
flows: the `Turn`, and the actions as the environments expect them. Where all agents act in all copies a turn is whole
arrays; otherwise it names the copies of each agent. A reward is held until the agent acts again or ends: it is told
once. One that comes before the agent's first action of an episode is told with that action.

Legend: `K` agents, `E` copies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from workers.environments.adapters.adapter_checks import has_ended, number_of, step_before_reset
from workers.environments.adapters.space_conversion import SpaceConverter
from workers.environments.base import AgentOutcome, AgentTimeStep, Turn

log = logging.getLogger(__name__)


class TurnBuilder:
    """The state of `copies` copies between two turns; `begin`, then what happened, then `turn`."""

    def __init__(self, id: str, agents: Sequence[SpaceConverter], copies: int) -> None:
        self._id, self._agents, self._copies = id, agents, copies
        self._where = [agent.where for agent in agents]
        shape = (len(agents), copies)
        self.observation = [agent.place.observed.zeros(copies) for agent in agents]
        """[K] of [E, *shape]: what those see that act."""
        self.masks = [None if agent.place.masked is None else agent.place.masked.zeros(copies) for agent in agents]
        """[K] of [E, *shape] or None: what they may do."""
        self.present = np.zeros(shape, np.bool_)
        """[K, E]: who acts in the coming turn."""
        self.pending_reward = np.zeros(shape, np.float64)
        """[K, E]: rewards that are not told yet."""
        self._open = np.zeros(shape, np.bool_)
        self._reward = np.zeros(shape, np.float32)
        self._terminated = np.zeros(shape, np.bool_)
        self._truncated = np.zeros(shape, np.bool_)
        self._finals: dict[tuple[int, int], Any] = {}
        """What was seen last of a truncated episode."""
        self._last: dict[tuple[int, int], float] = {}
        """Last rewards of episodes that ended in this turn."""
        self._warned: set[int] = set()
        self._turn: Turn | None = None
        """The last one, whose agents act next."""

    def clear(self) -> None:
        """New episodes in all copies: nothing that came before is told any more."""
        for array in (self.present, self.pending_reward, self._open):
            array.fill(0)
        self.begin()

    def begin(self) -> None:
        """Those present have acted; now comes what that brought."""
        self._open |= self.present
        self.present.fill(False)
        if self._last:
            self._terminated.fill(False)
            self._truncated.fill(False)
            self._finals.clear()
            self._last.clear()

    def actions_by_agent(self, actions: Sequence[NDArray[Any]]) -> list[tuple[int, range | list[int], list[Any]]]:
        """(agent, copies, its action in each) for all who are present in the last turn; EnvironmentFault where there
        has been none."""
        if self._turn is None:
            raise step_before_reset(self._id)
        every = range(self._copies)
        return [
            (one.agent, every if one.copies is None else one.copies.tolist(), self._agents[one.agent].values(chosen))
            for one, chosen in zip(self._turn.present, actions, strict=True)
        ]

    def each(self, actions: Sequence[NDArray[Any]]) -> Iterator[tuple[int, int, Any]]:
        """The same one by one: (agent, copy, action)."""
        for agent, copies, values in self.actions_by_agent(actions):
            for copy, value in zip(copies, values, strict=True):
                yield agent, copy, value

    def observe(self, agent: int, copy: int, observation: Any, info: Any = None) -> None:
        """`agent` is to act on this; EnvironmentFault where it is not of its space."""
        masks = self.masks[agent]
        if masks is not None:
            self._agents[agent].write_mask(masks, copy, observation, info)
        elif info:
            self._agents[agent].refuse_late_mask(info)
        self._agents[agent].write_observation(self.observation[agent], copy, observation)
        self.present[agent, copy] = True

    def add_reward(self, agent: int, copy: int, reward: Any) -> None:
        """Adds a reward; EnvironmentFault where that is no number."""
        self.pending_reward[agent, copy] += number_of(self._where[agent], reward)

    def has_ended(self, agent: int, terminated: Any, truncated: Any) -> tuple[bool, bool]:
        """Whether the agent's episode was terminated, and whether truncated; EnvironmentFault where neither is said."""
        where = self._where[agent]
        return has_ended(where, "terminated", terminated), has_ended(where, "truncated", truncated)

    def end(self, agent: int, copy: int, terminated: bool, truncated: bool, final: Any) -> bool:
        """The agent's episode ended; it counts as terminated alone where it was both. `final` is what it saw last.
        Whether there was one: who never acted has none."""
        if not self._open[agent, copy] or (agent, copy) in self._last:
            self._forget(agent, copy)
            return False
        self._last[agent, copy] = self.pending_reward[agent, copy]
        self.pending_reward[agent, copy] = 0
        self._terminated[agent, copy] = terminated
        self._truncated[agent, copy] = not terminated
        if terminated:
            return True
        if not truncated or final is None:
            raise EnvironmentFault("last_observation_unexpected", where=self._where[agent], value=final)
        self._finals[agent, copy] = deepcopy(final)  # environments may use what they showed again
        return True

    def waits(self, copy: int) -> NDArray[np.int64]:
        """Agents whose last action in this copy has brought neither another turn nor an end so far."""
        told = [agent for agent, at in self._last if at == copy]
        waits = self._open[:, copy] & ~self.present[:, copy]
        waits[told] = False
        return np.flatnonzero(waits)

    def turn(self, env_steps: int = 0) -> Turn:
        """Everything since `begin`; arrays are valid until the next one."""
        acts, agents = self.present, range(len(self.present))
        told = self._open & acts
        ended = None
        if self._last:
            ended = self._terminated | self._truncated
            told &= ~ended
            self._open &= ~ended
            ended &= ~acts
        np.multiply(self.pending_reward, told, out=self._reward, casting="same_kind")
        self.pending_reward[told] = 0
        for place, reward in self._last.items():
            self._reward[place] = reward
        present = tuple(self._present(agent) for agent in agents if acts[agent].any())
        away: tuple[AgentOutcome, ...] = ()
        if ended is not None:
            away = tuple(self._outcome(agent, ended[agent]) for agent in agents if ended[agent].any())
        self._turn = Turn(present, env_steps, away)
        return self._turn

    def _present(self, agent: int) -> AgentTimeStep:
        observation, reward = self.observation[agent], self._reward[agent]
        terminated, truncated, copies = self._terminated[agent], self._truncated[agent], None
        mask = self.masks[agent]
        if not self.present[agent].all():
            copies = np.flatnonzero(self.present[agent])
            observation, reward = observation[copies], reward[copies]
            terminated, truncated = terminated[copies], truncated[copies]
            mask = None if mask is None else mask[copies]
        told = AgentTimeStep(agent, observation, reward, terminated, truncated, copies, action_mask=mask)
        self._add_finals(told)
        return told

    def _outcome(self, agent: int, ended: NDArray[np.bool_]) -> AgentOutcome:
        copies = np.flatnonzero(ended)
        told = AgentOutcome(
            agent, copies, self._reward[agent, copies], self._terminated[agent, copies], self._truncated[agent, copies]
        )
        self._add_finals(told)
        return told

    def _add_finals(self, told: AgentTimeStep | AgentOutcome) -> None:
        if not self._finals:
            return
        rows = np.flatnonzero(told.truncated)
        if not len(rows):
            return
        agent = self._agents[told.agent]
        told.final_index = rows
        told.final_observation = agent.place.observed.zeros(len(rows))
        copies = rows if told.copies is None else told.copies[rows]
        for row, copy in enumerate(copies.tolist()):
            agent.write_observation(told.final_observation, row, self._finals[told.agent, copy])

    def _forget(self, agent: int, copy: int) -> None:
        """An agent that never acted in its episode has no row to be rewarded in."""
        if self.pending_reward[agent, copy] and agent not in self._warned:
            self._warned.add(agent)
            log.warning(
                "event=reward_without_action where=%r reward=%g", self._where[agent], self.pending_reward[agent, copy]
            )
        self.pending_reward[agent, copy] = 0
