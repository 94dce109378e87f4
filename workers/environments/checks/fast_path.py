"""A quick look at what is told of one agent and what it does, for the turns in which all is as always.

In flows: `AgentTimeStep`, actions. Out flow: True where nothing can be wrong; where it is False, row_checks.py finds
out what is, if anything.

Legend: `N` rows of the agent when it is present everywhere, `n` of them present.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Discrete, Place
from workers.environments.base import AgentTimeStep

_FEW = 8192
"""Numbers whose product a processor forms faster than their sum, and without further threads."""
_HANDFUL = 32
"""Choices that Python compares faster than numpy begins to."""
_ACTION, _REWARD, _END = np.dtype(np.int64), np.dtype(np.float32), np.dtype(np.bool_)
_COPIES, _CLOCK = np.dtype(np.int64), np.dtype(np.float64)


class FastCheck:
    """Of the agent at `place` in `copies` copies. It knows agents without nested observations and masks."""

    def __init__(self, place: Place, copies: int) -> None:
        rows = copies * place.many
        seen = place.observed
        self._known = not seen.nested and place.masked is None
        self._shape, self._dtype = seen.shape, seen.dtype
        self._floats = seen.dtype.kind == "f"
        self._rows = rows
        action = place.acted.leaves[0].space if place.acted.leaves and not place.acted.nested else None
        plain = isinstance(action, Discrete) and action.start == 0 and action.dtype == "int64"
        self._choices = action.n if isinstance(action, Discrete) and plain else 0

    def is_valid_turn(self, told: AgentTimeStep) -> bool:
        """Whether nothing was cut, and copies, form and numbers are right."""
        seen, reward, copies, clock = told.observation, told.reward, told.copies, told.clock
        try:
            rows = (self._rows,) if copies is None else copies.shape
            usual = (
                self._known
                and told.action_mask is None
                and told.final_observation is None
                and seen.dtype is self._dtype
                and seen.shape == (*rows, *self._shape)
                and reward.dtype is _REWARD
                and reward.shape == rows
                and told.terminated.dtype is _END
                and told.terminated.shape == rows
                and told.truncated.dtype is _END
                and told.truncated.shape == rows
                and not len(told.final_index)
                and (clock is None or (clock.dtype is _CLOCK and clock.shape == rows and _finite(clock)))
                and (copies is None or self._increasing(copies))
            )
        except (AttributeError, TypeError):  # no arrays at all
            return False
        if not usual or np.count_nonzero(told.truncated):
            return False
        return _finite(reward) and (not self._floats or _finite(seen))

    def are_valid_actions(self, chosen: Any, copies: NDArray[np.int64] | None = None) -> bool:
        """Whether it acts in each of `copies`, everywhere if they are None, each action being one of its choices."""
        if not self._choices or type(chosen) is not np.ndarray or chosen.dtype is not _ACTION:
            return False
        if chosen.shape != ((self._rows,) if copies is None else copies.shape):
            return False
        if 0 < len(chosen) <= _HANDFUL:
            numbers = chosen.tolist()
            return min(numbers) >= 0 and max(numbers) < self._choices
        # a negative number is a very large one without a sign
        return not np.count_nonzero(chosen.view(np.uint64) >= self._choices)

    def _increasing(self, copies: NDArray[np.int64]) -> bool:
        """Whether these are numbers of rows, none twice."""
        if copies.dtype is not _COPIES or copies.ndim != 1 or not len(copies):
            return False
        if copies[0] < 0 or copies[-1] >= self._rows:
            return False
        return not np.count_nonzero(copies[1:] <= copies[:-1])


def _finite(numbers: NDArray[Any]) -> bool:
    """One NaN or infinity makes a sum NaN or infinite; one that merely overflowed is looked at elsewhere."""
    if numbers.size <= _FEW:
        return math.isfinite(np.vdot(numbers, numbers))
    with np.errstate(invalid="ignore", over="ignore"):
        return math.isfinite(np.add.reduce(numbers, None))
