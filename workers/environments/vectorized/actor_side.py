"""The side of the actor: a group's turn, put together from what the processes wrote; its actions, handed to them.

In flows: rows in shared memory, actions. Out flow: `Turn`; where all copies are present and nothing ended, the very
same one again and again, whose arrays are views of shared memory.

Legend: `P` processes, `n` rows told of.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentOutcome, AgentTimeStep, Turn
from workers.environments.vectorized.shared_arrays import ENTRY, OUTCOME, PRESENT, SharedTurns

_PLAIN = 256
"""Turns that are kept because only their numbers change."""
_Parts = dict[int, dict[int, tuple[int, int]]]
"""agent -> process -> (n or -1 for all, truncated)"""


class TurnReader:
    """Group `number` of all copies."""

    def __init__(self, exchange: SharedTurns, number: int) -> None:
        self._number = number
        self._shares = [exchange.division.share * many for many in exchange.many]
        """Rows of a process, by agent."""
        self._columns = exchange.columns[number]
        self._common = None if exchange.common is None else exchange.common[number]
        self._sheet = exchange.sheets[number]
        self._plain: dict[bytes, Turn] = {}
        self._last = Turn(())

    def begin(self) -> None:
        """No action is waiting for its reward: all copies are about to be reset."""
        for columns in self._columns:
            columns.open.fill(False)

    def read(self) -> Turn:
        """The turn that all processes have written; valid until the next actions are handed over."""
        key = self._sheet.tobytes()
        turn = self._plain.get(key)
        if turn is None:
            turn = self._build_turn()
            plain = all(p.copies is None and not len(p.final_index) for p in turn.present) and not turn.outcomes
            if plain and len(self._plain) < _PLAIN:
                self._plain[key] = turn
        self._last = turn
        return turn

    def write_actions(self, actions: Sequence[NDArray]) -> None:
        """Actions [n, *shape] for each entry of the last turn's `present`, in that order."""
        for present, action in zip(self._last.present, actions, strict=True):
            columns = self._columns[present.agent]
            where = slice(None) if present.copies is None else present.copies
            columns.action[where] = action
            columns.open[where] = True

    def _build_turn(self) -> Turn:
        told: tuple[_Parts, _Parts] = ({}, {})
        env_steps = 0
        for process, (steps, presents, outcomes, *entries) in enumerate(self._sheet.tolist()):
            env_steps += steps
            for number in range(presents + outcomes):
                agent, n, truncated = entries[number * ENTRY : (number + 1) * ENTRY]
                kind = PRESENT if number < presents else OUTCOME
                told[kind].setdefault(agent, {})[process] = (n, truncated)
        return Turn(
            tuple(self._present(agent, parts) for agent, parts in told[PRESENT].items()),
            env_steps,
            tuple(self._outcome(agent, parts) for agent, parts in told[OUTCOME].items()),
            self._number,
            self._common,
        )

    def _present(self, agent: int, parts: dict[int, tuple[int, int]]) -> AgentTimeStep:
        columns = self._columns[agent]
        even = len(parts) == len(self._sheet) and all(n < 0 for n, _ in parts.values())
        rows = None if even else self._rows(PRESENT, agent, parts)
        where: slice | NDArray[np.int64] = slice(None) if rows is None else rows
        present = AgentTimeStep(
            agent,
            columns.observation[where],
            columns.reward[PRESENT][where],
            columns.terminated[PRESENT][where],
            columns.truncated[PRESENT][where],
            rows,
            action_mask=columns.action_mask[where] if columns.action_mask.size else None,
        )
        if any(truncated for _, truncated in parts.values()):
            present.final_index = np.flatnonzero(present.truncated)
            ended = present.final_index if rows is None else rows[present.final_index]
            present.final_observation = columns.final_observation[ended]
            present.final_common = None if self._common is None else columns.final_common[ended]
        return present

    def _outcome(self, agent: int, parts: dict[int, tuple[int, int]]) -> AgentOutcome:
        columns, rows = self._columns[agent], self._rows(OUTCOME, agent, parts)
        terminated, truncated = columns.terminated[OUTCOME][rows], columns.truncated[OUTCOME][rows]
        outcome = AgentOutcome(agent, rows, columns.reward[OUTCOME][rows], terminated, truncated)
        if truncated.any():
            outcome.final_index = np.flatnonzero(truncated)
            outcome.final_observation = columns.final_observation[rows[truncated]]
            outcome.final_common = None if self._common is None else columns.final_common[rows[truncated]]
        columns.open[rows[terminated | truncated]] = False
        return outcome

    def _rows(self, kind: int, agent: int, parts: dict[int, tuple[int, int]]) -> NDArray[np.int64]:
        """[n] rows told of, increasing."""
        copies, share = self._columns[agent].copies[kind], self._shares[agent]
        every = np.arange(copies.size)
        pieces = [
            every[process * share :][:share] if n < 0 else copies[process * share :][:n]
            for process, (n, _) in sorted(parts.items())
        ]
        return np.concatenate(pieces)
