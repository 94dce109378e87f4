"""Where a member gets its segments from: the receiver of a learner process, or the one-process channel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.receiver import Arrival

__all__ = ["SegmentSource", "drain"]


class SegmentSource(Protocol):
    """Arrivals of one policy, oldest first, and what is said about them."""

    def arrivals(self, policy: str) -> deque[Arrival]:
        """Announced segments; the taker pops from the left."""

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """`count` more segments of this actor, up to number `upto`, were copied, refused or admitted for good."""

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Pool slots that are not needed any more."""

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """A segment of this actor incarnation was rejected."""

    def flush_acks(self) -> None:
        """What comes next takes long: what is settled is told now."""


def drain(
    source: SegmentSource, policy: str, room: Callable[[], int], copy: Callable[[Arrival, NDArray[np.void]], None]
) -> None:
    """Gives `copy` what has arrived, part after part, none larger than the `room` there is, and settles each."""
    arrivals = source.arrivals(policy)
    while arrivals and (most := room()) > 0:
        arrival = arrivals[0]
        chunk = arrival.records[:most]
        copy(arrival, chunk)
        arrival.records = arrival.records[len(chunk) :]
        if arrival.owned:
            source.release(policy, chunk["slot"])
        source.acknowledge(policy, arrival, int(chunk["number"][-1]), len(chunk))
        if len(arrival.records) == 0:
            arrivals.popleft()
