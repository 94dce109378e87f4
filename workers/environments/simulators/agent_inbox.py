"""What simulators told of one agent since the last turn: who asks for an action, whose episode ended.

In flows: observations, rewards and ends by row. Out flow: a `AgentTimeStep` and an `AgentOutcome`.

Legend: `E` copies, `C` places in each, `R` = E * C rows, `n` of them present.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Place
from workers.environments.base import AgentOutcome, AgentTimeStep

_NOBODY: NDArray[np.int64] = np.empty(0, np.int64)


class AgentInbox:
    """Of agent number `agent`, at `place`, in `copies` copies."""

    def __init__(self, agent: int, place: Place, copies: int) -> None:
        rows = copies * place.many
        self.many = place.many
        self._agent, self._place = agent, place
        self._seen = place.observed.zeros(rows)
        """[R, *shape]: what each was told to see last."""
        self._masks = None if place.masked is None else place.masked.zeros(rows)
        self.open = np.zeros(rows, np.bool_)
        """[R]: who acted and was told of no end since."""
        self.asked = np.zeros(rows, np.bool_)
        """[R]: who asks for an action."""
        self._reward = np.zeros(rows, np.float32)
        self._clock = np.zeros(rows)
        """[R]: when each was told to see that, by its own clock."""
        self._never = np.zeros(rows, np.bool_)
        self._order: NDArray[np.int64] = np.arange(rows)
        self._ends: dict[int, tuple[float, bool]] = {}
        """row -> reward, truncated."""
        self._finals: dict[int, NDArray[Any]] = {}
        self.position: NDArray[np.int64] = np.zeros(rows, np.int64)
        """[R]: of those present in the last turn, where in it."""
        self.acting = False
        """Whether anybody was present in the last turn."""

    def add_observation(
        self, row: int, seen: NDArray[Any], mask: NDArray[np.bool_] | None, reward: float, clock: float
    ) -> None:
        """An observation, made at `clock`; `reward` is of the last action, if there is one."""
        self._seen[row] = seen
        if self._masks is not None:
            self._masks[row] = mask
        self._reward[row] = reward
        self._clock[row] = clock
        self.asked[row] = True

    def end(self, row: int, reward: float, final: NDArray[Any] | None) -> None:
        """The last action of an open row ended the episode, or it was cut with `final` as the last observation."""
        self._ends[row] = (reward, final is not None)
        if final is not None:
            self._finals[row] = final
        self.open[row] = False

    def truncate(self, row: int) -> bool:
        """Nothing more is to come: what is asked for is withdrawn, and an open row is cut, with the newest observation
        as the last one and what reward is known. Whether there was one."""
        reward = float(self._reward[row]) if self.asked[row] else 0.0
        self.asked[row] = False
        if not self.open[row]:
            return False
        self.end(row, reward, self._seen[row].copy())
        return True

    @property
    def ended(self) -> bool:
        """Whether there is an end to tell of."""
        return bool(self._ends)

    def take(self) -> tuple[AgentTimeStep | None, AgentOutcome | None]:
        """All of it; those who asked are given actions next."""
        present = self._present()
        self.acting = present is not None
        return present, self._outcome()

    def _present(self) -> AgentTimeStep | None:
        (rows,) = self.asked.nonzero()
        n = len(rows)
        if not n:
            return None
        if n == len(self.asked):
            return self._everybody()
        self.position[rows] = self._order[:n]
        masks = None if self._masks is None else self._masks[rows]
        never = self._never[:n]
        present = AgentTimeStep(self._agent, self._seen[rows], self._reward[rows], never, never, rows, _NOBODY)
        present.action_mask, present.clock = masks, self._clock[rows]
        self.open[rows] = True
        self.asked[rows] = False
        return present

    def _everybody(self) -> AgentTimeStep:
        """Where all rows ask."""
        self.position[:] = self._order
        never, masks = self._never, self._masks
        present = AgentTimeStep(self._agent, self._seen.copy(), self._reward.copy(), never, never, None, _NOBODY)
        present.action_mask, present.clock = None if masks is None else masks.copy(), self._clock.copy()
        self.open.fill(True)
        self.asked.fill(False)
        return present

    def _outcome(self) -> AgentOutcome | None:
        if not self._ends:
            return None
        rows = np.array(sorted(self._ends), np.int64)
        told = [self._ends[row] for row in rows.tolist()]
        truncated = np.array([cut for _, cut in told], np.bool_)
        reward = np.array([earned for earned, _ in told], np.float32)
        outcome = AgentOutcome(self._agent, rows, reward, ~truncated, truncated, np.flatnonzero(truncated))
        if len(outcome.final_index):
            final = outcome.final_observation = self._place.observed.zeros(len(outcome.final_index))
            for k, row in enumerate(rows[truncated].tolist()):
                final[k] = self._finals[row]
        self._ends.clear()
        self._finals.clear()
        return outcome
