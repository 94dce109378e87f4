"""The side of a process: turns of its own copies into shared memory, actions for them out of it.

In flows: turns of an environment of S copies, actions in shared memory. Out flows: its rows of a group, actions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.vectorized.shared_arrays import OUTCOME, PRESENT, SharedTurns

_Index = slice | NDArray[np.int64]


class TurnWriter:
    """The rows of `process` in `group`."""

    def __init__(self, exchange: SharedTurns, process: int, group: int) -> None:
        size = exchange.division.share
        self._copies = slice(process * size, (process + 1) * size)
        self._many = exchange.many
        self._sizes = [size * many for many in exchange.many]
        self._firsts = [process * rows for rows in self._sizes]
        """Rows of this process and the first of them, by agent."""
        self._columns = exchange.columns[group]
        self._sheet = exchange.sheets[group, process]
        self._common = None if exchange.common is None else exchange.common[group]
        self._acting: list[tuple[int, _Index]] = []
        """(agent, rows) of the last turn, in its order."""

    def write(self, turn: Turn) -> None:
        """Everything that `turn` tells, which is of each agent in one entry of a kind."""
        sheet = [turn.env_steps, len(turn.present), len(turn.outcomes)]
        self._acting.clear()
        if self._common is not None:
            self._common[self._copies] = turn.common
        for present in turn.present:
            where = self._where(present.agent, present.copies)
            columns = self._columns[present.agent]
            columns.observation[where] = present.observation
            if present.action_mask is not None:
                columns.action_mask[where] = present.action_mask
            self._acting.append((present.agent, where))
            sheet += self._tell(PRESENT, present, where)
        for outcome in turn.outcomes:
            sheet += self._tell(OUTCOME, outcome, self._where(outcome.agent, outcome.copies))
        self._sheet[: len(sheet)] = sheet
        self._sheet[len(sheet) :] = 0

    def actions(self) -> list[NDArray]:
        """The actions for those present in the last turn written, in its order."""
        return [self._columns[agent].action[where] for agent, where in self._acting]

    def truncate_lost_episodes(self, turn: Turn) -> Turn:
        """`turn`, the first of an environment that takes a crashed one's place, with the ends of the episodes that went
        with that: every action still open is told as truncated, the last observation as the final one."""
        present = {one.agent: one for one in turn.present}
        outcomes = list(turn.outcomes)
        for agent, columns in enumerate(self._columns):
            rows: NDArray[np.int64] = np.flatnonzero(columns.open[self._where(agent, None)])
            if agent in present:
                here = present[agent]
                every = np.arange(self._sizes[agent]) if here.copies is None else here.copies
                present[agent] = self._cut_present(here, np.flatnonzero(np.isin(every, rows)), every)
                rows = np.setdiff1d(rows, every)
            if len(rows):
                outcomes.append(self._cut_outcome(agent, rows))
        return replace(turn, present=tuple(present.values()), outcomes=tuple(outcomes))

    def _cut_present(self, present: AgentTimeStep, cut: NDArray[np.int64], every: NDArray[np.int64]) -> AgentTimeStep:
        if not len(cut):
            return present
        truncated = np.zeros(len(every), np.bool_)
        truncated[cut] = True
        rows = every[cut]
        last, seen = self._last(present.agent, rows)
        return replace(present, truncated=truncated, final_index=cut, final_observation=last, final_common=seen)

    def _cut_outcome(self, agent: int, rows: NDArray[np.int64]) -> AgentOutcome:
        n = len(rows)
        none, (last, seen) = np.zeros(n, np.bool_), self._last(agent, rows)
        return AgentOutcome(agent, rows, np.zeros(n, np.float32), none, np.ones(n, np.bool_), np.arange(n), last, seen)

    def _last(self, agent: int, rows: NDArray[np.int64]) -> tuple[NDArray, NDArray | None]:
        """What an agent, and all with it, saw last in `rows` of this process."""
        seen = None if self._common is None else self._common[self._copies][rows // self._many[agent]]
        return self._columns[agent].observation[rows + self._firsts[agent]], seen

    def _where(self, agent: int, copies: NDArray[np.int64] | None) -> _Index:
        """Rows of the group, of those of this process."""
        first = self._firsts[agent]
        return slice(first, first + self._sizes[agent]) if copies is None else copies + first

    def _tell(self, kind: int, told: AgentTimeStep | AgentOutcome, where: _Index) -> list[int]:
        """Rewards and ends of one agent; its entry in the sheet."""
        columns = self._columns[told.agent]
        columns.reward[kind][where] = told.reward
        columns.terminated[kind][where] = told.terminated
        columns.truncated[kind][where] = told.truncated
        if len(told.final_index):
            copies = told.final_index if told.copies is None else told.copies[told.final_index]
            rows = copies + self._firsts[told.agent]
            columns.final_observation[rows] = told.final_observation
            if told.final_common is not None:
                columns.final_common[rows] = told.final_common
        if isinstance(where, slice):
            return [told.agent, -1, len(told.final_index)]
        first = self._firsts[told.agent]
        columns.copies[kind, first : first + len(where)] = where
        return [told.agent, len(where), len(told.final_index)]
