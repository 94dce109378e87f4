"""Several policies of one kind as one computation, whatever their algorithm.

In flow: their updates. Out flow: the stack of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from workers.algorithms.build import Update
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.outcomes import Outcome, one_by_one
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stacked import PPOStack
from workers.algorithms.stacked_values import ValueStack
from workers.learning.batches import Segments, Transitions

__all__ = ["Stack"]

Given = Segments | Transitions


class Stack:
    """Of `updates` of one kind (workers/cohorts.py); of one it is that one."""

    def __init__(self, updates: Sequence[Update]) -> None:
        self.updates = [*updates]
        self._streamed = [update for update in updates if isinstance(update, PPOUpdate)]
        self._replayed = [update for update in updates if isinstance(update, DQNUpdate | IQNUpdate)]
        several = len(updates) > 1
        self._ppo = PPOStack(self._streamed) if several and self._streamed else None
        self._values = ValueStack(self._replayed) if several and self._replayed else None

    def update(self, given: Sequence[Given], progress: Sequence[float]) -> list[Outcome]:
        """What becomes of the update of each, with the batch that is given to it."""
        segments = [batch for batch in given if isinstance(batch, Segments)]
        transitions = [batch for batch in given if isinstance(batch, Transitions)]
        if self._ppo is not None:
            return self._ppo.update(segments, progress)
        if self._values is not None:
            return self._values.update(transitions, progress)
        streamed = one_by_one(self._streamed, segments, progress) if segments else []
        return streamed + (one_by_one(self._replayed, transitions, progress) if transitions else [])
