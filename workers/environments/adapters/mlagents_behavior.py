"""Agents of one Unity ML-Agents behaviour in all copies: who stands in which place, what is open, what is told.

In flows: `DecisionSteps` and `TerminalSteps` of a copy, actions. Out flows: a `AgentTimeStep` and an `AgentOutcome`,
the actions in the order in which the copy's agents asked for them. An agent's number is that of its episode; an episode
that begins in the step in which another ended takes that one's place, so that streams go on.

Legend: `E` copies, `C` places in each, `N` = E * C rows, `n` of them present.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Place
from workers.environments.base import AgentOutcome, AgentTimeStep

log = logging.getLogger(__name__)

_End = tuple[float, bool, list[NDArray[Any]]]
"""Reward, whether it was interrupted, and the last observation by leaf."""


class BehaviorAgents:
    """Behaviour `name`, whose agents are at `place`, which is number `agent`; `where` begins every sentence on it."""

    def __init__(self, where: str, name: str, agent: int, place: Place, copies: int) -> None:
        self.name, self._where, self._agent, self._place = name, where, agent, place
        self._many, rows = place.many, copies * place.many
        self._slots: list[dict[int, int]] = [{} for _ in range(copies)]
        """[E]: number of an agent -> its place."""
        self._asked: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * copies
        """[E]: rows of those who wait for an action, in the order in which they asked."""
        self._seen = place.observed.zeros(rows)
        self._masks = None if place.masked is None else place.masked.zeros(rows)
        self._present = np.zeros(rows, np.bool_)
        self._open = np.zeros(rows, np.bool_)
        """[N]: who acted and was told nothing since."""
        self._held = np.zeros(rows)
        """[N]: rewards before the first action, told with it."""
        self._reward = np.zeros(rows, np.float32)
        self._ends: dict[int, _End] = {}

    def clear(self) -> None:
        """New episodes everywhere."""
        for slots in self._slots:
            slots.clear()
        self._open.fill(False)
        self._held.fill(0)
        self._asked = [rows[:0] for rows in self._asked]
        self.begin()

    def begin(self) -> None:
        """Those present have acted; now comes what that brought."""
        self._present.fill(False)
        self._reward.fill(0)
        self._ends.clear()

    def asked(self, copy: int) -> NDArray[np.int64]:
        """Rows of those in a copy who are to be given actions, in order; they count as given."""
        rows, self._asked[copy] = self._asked[copy], self._asked[copy][:0]
        self._open[rows] = True
        return rows

    def take(self, copy: int, decisions: Any, terminals: Any) -> bool:
        """What a step of a copy brought; whether anybody asks for an action."""
        slots, freed = self._slots[copy], []
        earned = _rewards(terminals)
        for k, number in enumerate(terminals.agent_id.tolist()):
            slot = slots.pop(number, None)
            row = copy * self._many + (slot or 0)
            if slot is None or not self._open[row]:
                self._forget(earned[k])
                continue
            freed.append(slot)
            last = [np.array(seen[k]) for seen in self._observed(terminals)]
            self._ends[row] = (float(earned[k] + self._held[row]), bool(terminals.interrupted[k]), last)
            self._held[row] = 0
        rows = np.empty(len(decisions.agent_id), np.int64)
        earned = _rewards(decisions)
        for k, number in enumerate(decisions.agent_id.tolist()):
            fresh = number not in slots
            if fresh:
                slots[number] = freed.pop() if freed else self._free(slots)
            row = rows[k] = copy * self._many + slots[number]
            if fresh:
                self._held[row] = earned[k]
            else:
                self._reward[row], self._held[row] = earned[k] + self._held[row], 0
        self._look(rows, decisions)
        self._asked[copy] = rows
        return bool(len(rows))

    def told(self) -> tuple[AgentTimeStep | None, AgentOutcome | None]:
        """Of everybody, since `begin`."""
        here = np.flatnonzero(self._present)
        away = np.array(sorted(row for row in self._ends if not self._present[row]), np.int64)
        for row, (reward, _, _) in self._ends.items():
            self._reward[row] = reward
        self._open[here] = self._open[away] = False
        present = outcome = None
        if len(here):
            mask = None if self._masks is None else self._masks[here]
            copies = None if len(here) == len(self._present) else here
            news = self._reward[here], *self._how(here), copies, *self._last(here)
            present = AgentTimeStep(self._agent, self._seen[here], *news, action_mask=mask)
        if len(away):
            outcome = AgentOutcome(self._agent, away, self._reward[away], *self._how(away), *self._last(away))
        return present, outcome

    def _how(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """(terminated, truncated), [n] each."""
        ended = [self._ends.get(row) for row in rows.tolist()]
        truncated = np.array([end is not None and end[1] for end in ended], np.bool_)
        return np.array([end is not None for end in ended], np.bool_) & ~truncated, truncated

    def _last(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[Any] | None]:
        """Which of `rows` were truncated, and what they saw last."""
        cut = np.flatnonzero(self._how(rows)[1])
        if not len(cut):
            return cut, None
        final = self._place.observed.zeros(len(cut))
        for leaf, (_, part) in enumerate(self._place.observed.parts(final)):
            part[...] = [self._ends[row][2][leaf] for row in rows[cut].tolist()]
        return cut, final

    def _look(self, rows: NDArray[np.int64], decisions: Any) -> None:
        self._present[rows] = True
        observed = self._observed(decisions)
        for (_, part), seen in zip(self._place.observed.parts(self._seen), observed, strict=True):
            part[rows] = seen
        if self._masks is None or self._place.masked is None:
            return
        for _, mask in self._place.masked.parts(self._masks):  # Unity's are true for what is not legal
            given = decisions.action_mask
            mask[rows] = True if given is None else ~np.concatenate(given, axis=1)

    def _observed(self, steps: Any) -> list[NDArray[Any]]:
        """By leaf, [n, *shape]."""
        leaves, n = self._place.observed.leaves, len(steps.agent_id)
        expected = [(n, *leaf.space.shape) for leaf in leaves]
        got = [tuple(seen.shape) for seen in steps.obs]
        if got != expected:
            raise EnvironmentFault("behavior_observation_shapes", where=self._where, expected=expected, value=got)
        return list(steps.obs)

    def _free(self, slots: dict[int, int]) -> int:
        taken = set(slots.values())
        slot = next((slot for slot in range(self._many) if slot not in taken), None)
        if slot is None:
            raise EnvironmentFault("behavior_agents_exceeded", where=self._where, limit=self._many, behavior=self.name)
        return slot

    def _forget(self, reward: float) -> None:
        """An agent that never acted in its episode has no row to be rewarded in."""
        if reward:
            log.warning("event=reward_without_action where=%r reward=%g", self._where, reward)


def _rewards(steps: Any) -> NDArray[np.float64]:
    """[n]: an agent's own and its group's."""
    own = np.asarray(steps.reward, np.float64)
    return own + np.asarray(getattr(steps, "group_reward", 0.0), np.float64)
