"""What an agent sees: in the columns of its rows, and as its policy is shown it.

In flow: rows of observations. Out flows: columns, one a leaf; what the policy takes, joined and stacked.
Legend: `E` streams, `n` of them; `F` stacked frames; `C` values of all heads of the policy.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workers.policies.interface import Interface
from workers.rollout.segment_block import Index


class SharedObservationView(Protocol):
    """What all agents see in the present turn."""

    @property
    def newest(self) -> NDArray:
        """[E, *shape]"""


class ObservationEncoder:
    """Of `streams` streams; stream i is of copy `copies[i]` among those of a moment of `common`."""

    def __init__(
        self,
        interface: Interface,
        streams: int,
        frames: int,
        common: SharedObservationView | None,
        copies: NDArray[np.int64],
    ) -> None:
        self._place, self._shown, self._actions = (
            interface.place,
            interface.observation_encoding,
            interface.action_encoding,
        )
        self._common, self._copies = common, copies
        shown = self._shown
        self._stack = np.zeros((streams, frames, *shown.shape), shown.dtype) if frames > 1 else None
        self._begins = np.ones(streams, np.bool_)
        self.names = [leaf.name for leaf in self._place.observed.leaves]
        """The columns of observations."""

    def encode(self, streams: Index, observation: NDArray) -> NDArray:
        """What the policy is to see of `observation` (n rows): [n, *shape], stacked [n, F, *shape]."""
        seen = observation
        if not self._shown.is_identity:
            parts = self._place.parts("observation", observation)
            if self._common is not None:
                parts["common"] = self._common.newest[self._copies[streams]]
            seen = self._shown.encode(parts.__getitem__, (len(observation),))
        return seen if self._stack is None else self._push(self._stack, streams, seen)

    def reset_streams(self, streams: NDArray[np.int64]) -> None:
        """The next observation of `streams` is the first of an episode."""
        self._begins[streams] = True

    def legal(self, mask: NDArray) -> NDArray[np.bool_] | None:
        """[n, C]: which values may be chosen, of a mask's n rows; None where all may be, always."""
        return self._actions.legal(self._place.parts("action_mask", mask).__getitem__, (len(mask),))

    def columns(self, observation: NDArray, mask: NDArray | None = None) -> dict[str, NDArray]:
        """What n rows of observations and masks are in the columns of a segment, by their names."""
        parts = self._place.parts("observation", observation)
        return parts if mask is None else parts | self._place.parts("action_mask", mask)

    def _push(self, stack: NDArray, streams: Index, newest: NDArray) -> NDArray:
        """The last F observations of each stream, newest last; at an episode's start all are its first."""
        begins = self._begins[streams]
        seen = stack[streams]
        seen[:, :-1] = seen[:, 1:]
        seen[:, -1] = newest
        if begins.any():
            seen[begins] = newest[begins][:, None]
        if not isinstance(streams, slice):
            stack[streams] = seen
        self._begins[streams] = False
        return seen
