"""Who acts and what was earned, gathered copy by copy into turns: what adapters share whose agents come and go.

In flows: for each agent and copy an observation to act on, rewards, an end. Out flow: the `Turn`. Where all agents act
in all copies it is whole arrays; otherwise it names the copies of each agent. A reward is held until the agent acts
again or ends: it is told once. One that comes before the agent's first action of an episode is told with that action.

Legend: `K` agents, `E` copies.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import World
from workers.environments.adapting import copy_in
from workers.environments.base import Outcome, Present, Turn

__all__ = ["Board"]

log = logging.getLogger(__name__)


class Board:
    """The state of `copies` copies between two turns; `begin`, then what happened, then `turn`."""

    def __init__(self, world: World, copies: int) -> None:
        agents = world.agents
        self._where = [f"{world.id}, agent {agent.name}:" for agent in agents]
        shape = (len(agents), copies)
        self.observation = [np.zeros((copies, *a.observation.shape), a.observation.dtype) for a in agents]
        """[K] of [E, *shape]: what those see that act."""
        self.present = np.zeros(shape, np.bool_)
        """[K, E]: who acts in the coming turn."""
        self.held = np.zeros(shape, np.float64)
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

    def clear(self) -> None:
        """New episodes in all copies: nothing that came before is told any more."""
        for array in (self.present, self.held, self._open):
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

    def see(self, agent: int, copy: int, observation: Any) -> None:
        """`agent` is to act on this; EnvironmentFault where it is not of its space."""
        copy_in(self.observation[agent], copy, observation, self._where[agent])
        self.present[agent, copy] = True

    def earn(self, agent: int, copy: int, reward: Any) -> None:
        """Adds a reward; EnvironmentFault where that is no number."""
        try:
            self.held[agent, copy] += float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFault(
                f"{self._where[agent]} reward should be a number but is {reward!r}; correct the environment"
            ) from None

    def end(self, agent: int, copy: int, terminated: Any, truncated: Any, final: Any) -> None:
        """The agent's episode ended; it counts as terminated alone where it was both. `final` is what it saw last."""
        if not self._open[agent, copy] or (agent, copy) in self._last:
            self._forget(agent, copy)
            return
        self._last[agent, copy] = self.held[agent, copy]
        self.held[agent, copy] = 0
        self._terminated[agent, copy] = terminated
        self._truncated[agent, copy] = not terminated
        if terminated:
            return
        if not truncated or final is None:
            raise EnvironmentFault(
                f"{self._where[agent]} its last observation should come with a truncated episode but is {final!r}; "
                "correct the environment"
            )
        self._finals[agent, copy] = np.array(final)

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
        np.multiply(self.held, told, out=self._reward, casting="same_kind")
        self.held[told] = 0
        for place, reward in self._last.items():
            self._reward[place] = reward
        present = tuple(self._present(agent) for agent in agents if acts[agent].any())
        if ended is None:
            return Turn(present, env_steps)
        away = tuple(self._outcome(agent, ended[agent]) for agent in agents if ended[agent].any())
        return Turn(present, env_steps, away)

    def _present(self, agent: int) -> Present:
        observation, reward = self.observation[agent], self._reward[agent]
        terminated, truncated, copies = self._terminated[agent], self._truncated[agent], None
        if not self.present[agent].all():
            copies = np.flatnonzero(self.present[agent])
            observation, reward = observation[copies], reward[copies]
            terminated, truncated = terminated[copies], truncated[copies]
        told = Present(agent, observation, reward, terminated, truncated, copies)
        self._add_finals(told)
        return told

    def _outcome(self, agent: int, ended: NDArray[np.bool_]) -> Outcome:
        copies = np.flatnonzero(ended)
        told = Outcome(
            agent,
            copies,
            self._reward[agent, copies],
            self._terminated[agent, copies],
            self._truncated[agent, copies],
        )
        self._add_finals(told)
        return told

    def _add_finals(self, told: Present | Outcome) -> None:
        if not self._finals:
            return
        rows = np.flatnonzero(told.truncated)
        if not len(rows):
            return
        seen = self.observation[told.agent]
        told.final_index = rows
        told.final_observation = np.empty((len(rows), *seen.shape[1:]), seen.dtype)
        copies = rows if told.copies is None else told.copies[rows]
        for row, copy in enumerate(copies.tolist()):
            final = self._finals[told.agent, copy]
            copy_in(told.final_observation, row, final, f"{self._where[told.agent]} last")

    def _forget(self, agent: int, copy: int) -> None:
        """An agent that never acted in its episode has no row to be rewarded in."""
        if self.held[agent, copy] and agent not in self._warned:
            self._warned.add(agent)
            log.warning("event=reward_without_action where=%r reward=%g", self._where[agent], self.held[agent, copy])
        self.held[agent, copy] = 0
