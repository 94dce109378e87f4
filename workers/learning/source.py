"""Where a member gets its segments from: the receiver of a learner process, or the one-process channel."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.arrivals import Arrival

__all__ = ["Source"]


class Source(Protocol):
    """Arrivals of one policy, oldest first, and what is said about them."""

    def arrivals(self, policy: str) -> deque[Arrival]:
        """Announced segments; the taker pops from the left."""

    def settle(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """`count` more segments of this actor, up to number `upto`, were copied, refused or admitted for good."""

    def give_back(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are not needed any more."""

    def answer(self) -> None:
        """What comes next takes long: what is settled is told now."""
