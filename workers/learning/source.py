"""Where a member gets its segments from: the receiver of a learner process, or the one-process channel."""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.receiver import Arrival


class SegmentSource(Protocol):
    """Arrivals of one policy, oldest first, and what is said about them; nothing, where nobody waits to hear it."""

    def arrivals(self, policy: str) -> deque[Arrival]:
        """Announced segments; the taker pops from the left."""

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """`count` more segments of this actor, up to number `upto`, were copied, refused or admitted for good."""
        return

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are not needed any more."""
        return

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """A segment of this actor incarnation was rejected."""
        return

    def flush_acks(self) -> None:
        """What comes next takes long: what is settled is told now."""
        return
