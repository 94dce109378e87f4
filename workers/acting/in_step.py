"""What an actor does in lock-step: when a round has ended for it, and which weights it goes on with.

In flows: turns made, seats. Out flow: the version that each policy must have before the next turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.config import Run
from protocol.errors import EnvironmentFault
from protocol.lockstep import round_before
from workers.acting.seat import Seat
from workers.environments.base import Turn

__all__ = ["InStep"]


class InStep:
    """Of an actor with these `seats`, whose policies learn."""

    def __init__(self, run: Run, seats: Sequence[Seat]) -> None:
        self._length, self._seats = run.policy.segment_length, seats

    def wanted(self, turn: int) -> int:
        """The version without which `turn`, counted from 0, may not begin, where it is not that of the turn before (0
        where it is); EnvironmentFault if an agent has not acted in every turn until then."""
        number = round_before(turn, self._length)
        if number is None:
            return 0
        for seat in self._seats:
            if (seat.segments != number + 1).any():
                raise EnvironmentFault("lockstep_agent_pauses", agent=seat.name, key="schedule")
        return number + 2  # the first version is published before anybody acts

    @staticmethod
    def within(turn: Turn) -> bool:
        """Whether some of the groups have still to act until all have acted equally often."""
        return turn.group != 0 or not turn.env_steps
