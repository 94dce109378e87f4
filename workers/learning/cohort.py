"""The members of one learner process: who makes an update now, and what becomes of one that fails.

In flow: members with their data. Out flow: updates. A member whose updates or weights are no numbers any more goes back
to its newest checkpoint, or else to its last published weights, and the others do not notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.counters import Counters
from protocol.errors import TrainingFault
from workers.learning.member import Member

__all__ = ["Cohort"]

log = logging.getLogger(__name__)


class Cohort:
    """`members` share a process. Each may fail `restarts` times; `published` gives the last weights that it did
    publish. A member that is alone in its process ends with it, and is started again with it."""

    def __init__(
        self,
        members: Sequence[Member],
        restarts: int,
        published: Callable[[str], NDArray[np.uint8] | None],
        counters: Counters,
    ) -> None:
        self._members, self._restarts, self._published = members, restarts, published
        self._counters = counters

    def step(self) -> list[Member]:
        """At most one update of each member that has the data for it; those who made one."""
        return [member for member in self._members if self._guarded(member, member.step)]

    def finish(self) -> None:
        """The last publication and checkpoint of each."""
        for member in self._members:
            self._guarded(member, member.finish)

    def _guarded(self, member: Member, work: Callable[[], bool | None]) -> bool:
        try:
            return bool(work())
        except TrainingFault as fault:
            if len(self._members) == 1 or member.rounds is not None:  # lock-step knows no second try
                raise
            self._start_again(member, fault)
            return False

    def _start_again(self, member: Member, fault: TrainingFault) -> None:
        """As if the member's process had been started again; raises `fault` when it was too often."""
        again = f"member_restarts.{member.name}"
        if self._counters[again] >= self._restarts:
            raise fault
        started = time.monotonic()
        self._counters.add(again)
        log.error("event=member_failed policy=%s reason=%s", member.name, fault)
        member.restart(self._published(member.name))
        seconds = time.monotonic() - started
        restarts = int(self._counters[again])
        log.info("event=member_restarted policy=%s restarts=%d seconds=%.2f", member.name, restarts, seconds)
