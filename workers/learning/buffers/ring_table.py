"""The rings that replayed segments lie in, and which of their slots may still be read.

In flows: announcements of segments, and later their records. Out flow: yes or no for each record.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Records, Ring
from protocol.experience.shared_obs import SharedObs


@dataclass(slots=True)
class _Known:
    """A ring; `common` holds the moments that its segments refer to (a pool is there once for each actor)."""

    ring: Ring
    common: SharedObs | None
    pooled: bool
    blocks: int = 0
    """Blocks so far."""
    newest: int = -1
    """The last of them, by place in the ring."""


class RingTable:
    """Rings by number. Of each actor's own, the newest `kept` blocks of `block` slots are read: nothing is overwritten
    while it is copied. What lies in a pool stays until it is given back."""

    def __init__(self, block: int, kept: int) -> None:
        self._block, self._kept = block, kept
        self._known: list[_Known] = []

    def __getitem__(self, number: int) -> tuple[Ring, SharedObs | None]:
        known = self._known[number]
        return known.ring, known.common

    def numbers(self, ring: Ring) -> list[int]:
        """All numbers of `ring`."""
        return [number for number, known in enumerate(self._known) if known.ring is ring]

    def number(self, arrival: Arrival, used: NDArray[np.int32]) -> int:
        """That of the ring of `arrival`; a new one is a number that none of the records alive has, whose numbers are
        `used`."""
        for number in self.numbers(arrival.ring):
            if self._known[number].common is arrival.common:
                return number
        new = _Known(arrival.ring, arrival.common, arrival.owned)
        for number in range(len(self._known)):
            if not (used == number).any():
                self._known[number] = new
                return number
        self._known.append(new)
        return len(self._known) - 1

    def enter_kept(self, ring: Ring, count: int) -> None:
        """`ring`, which nobody writes any more, under the first `count` numbers, before any other comes."""
        self._known = [_Known(ring, None, False) for _ in range(count)]

    def ordinals(self, number: int, slots: NDArray[np.uint32]) -> NDArray[np.int64]:
        """[n]: how many blocks of ring `number` were admitted before those of `slots` [n], which are now."""
        known = self._known[number]
        block = slots.astype(np.int64) // self._block
        others = np.cumsum(np.diff(block, prepend=known.newest) != 0)
        ordinal = known.blocks + others - 1
        known.blocks += int(others[-1])
        known.newest = int(block[-1])
        return ordinal

    def pooled(self, number: NDArray[np.int32]) -> NDArray[np.bool_]:
        """[n]: whether the slots of rings `number` [n] are a pool's, to be given back."""
        return np.array([self._known[i].pooled for i in number], np.bool_)

    def usable(self, number: NDArray[np.int32], ordinal: NDArray[np.int64], records: Records) -> NDArray[np.bool_]:
        """[n]: whether the slots of `records` [n] were not begun again since they were admitted, and will not be
        written next: a pool's never are."""
        first = [0 if known.pooled else known.blocks - self._kept for known in self._known]
        return self._current(number, records) & (ordinal >= np.array(first)[number])

    def _current(self, number: NDArray[np.int32], records: Records) -> NDArray[np.bool_]:
        if len(self._known) == 1:
            return self._known[0].ring.current(records)
        whole = np.empty(len(records), np.bool_)
        for one in np.unique(number):
            mine = number == one
            whole[mine] = self._known[one].ring.current(records[mine])
        return whole
