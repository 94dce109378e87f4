"""Between acting and learning in one process, without a queue.

In flow: segments that a seat has finished. Out flow: the same as a member's arrivals.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from protocol.errors import TrainingFault, WireError
from protocol.experience.receiver import Arrival
from protocol.experience.shared_obs import SharedObs
from protocol.memory.shared_file import Counters
from workers.planning.policy_plan import TrainingPlan
from workers.rollout.segment_block import Rows


class InProcessQueue:
    """Sender and source of one policy at once: what a seat finishes is what the member finds."""

    def __init__(
        self, plan: TrainingPlan, actor: tuple[str, int], counters: Counters, common: SharedObs | None
    ) -> None:
        self.ring, self._common = plan.ring(None, counters), common
        self._credit, self._block = plan.credit(), plan.block
        self._actor, self._policy, self._counters = actor, plan.name, counters
        self._arrivals: deque[Arrival] = deque()

    def take(self, on_wait: Callable[[], None]) -> slice:
        """Slots to write; the member has always made room by then."""
        behind = self._credit.paced and self._credit.backlog
        index = None if behind else self._credit.take()
        if index is None:
            raise TrainingFault("segments_exhausted", policy=self._policy, key="credits")
        slots = self._slots(index)
        self.ring.begin(slots)
        return slots

    def finish(self, slots: slice, valid: Rows, before: Rows) -> None:
        """The slots are whole: the member's arrivals."""
        count = self.ring.finish(slots, self._credit.next, valid, before)
        self._credit.finish(slots.start // self._block, count)
        self._counters.add(f"produced.{self._policy}", count)
        for block in self._credit.announce():
            records = self.ring.segments(self._slots(block.index))
            self._arrivals.append(Arrival(*self._actor, self.ring, records, False, self._common))

    def arrivals(self, policy: str) -> deque[Arrival]:
        """What was finished and not taken."""
        return self._arrivals

    def acknowledge(self, policy: str, arrival: Arrival, upto: int, count: int) -> None:
        """The member has it."""
        self._credit.acknowledge(upto)
        self._counters.set(f"flight.{self._policy}", self._credit.travelling)

    def release(self, policy: str, slots: NDArray[np.uint32]) -> None:
        """Nothing is pooled here."""

    def refuse(self, policy: str, actor: tuple[str, int], fault: WireError) -> None:
        """The log says so."""

    def flush_acks(self) -> None:
        """Nobody waits for it."""

    def _slots(self, index: int) -> slice:
        """Of block `index`."""
        return slice(index * self._block, (index + 1) * self._block)
