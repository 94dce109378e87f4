"""What a member tells of itself, as far as it can be true: the books believe nothing else.

In flow: counters and episodes of heartbeats and farewells. Out flow: those that are believed; of the others a line in
the log, and a count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from protocol.refusal_log import RefusalLog
from workers.coordination.member_store import WorkerRecord

__all__ = ["Claims"]

_LARGEST = 2.0**53
"""Of any counter: whole numbers are exact up to here, and nothing counts so far in a lifetime."""
_BEYOND = 1_000_000
"""Steps that an actor may make beyond its quota, as its copies force on it."""
_STEP_REWARD = 1e12
"""The most that a step may earn; a return beyond it would outweigh all others for ever."""
_TOTALS = ("agent_steps", "env_steps", "fixed_steps", "unfinished_steps", "produced.", "dropped.")
"""Counters of actors that never fall."""
_LEVELS = ("backlog.", "flight.", "waits.", "held.")
_BOOKS = (*_TOTALS, *_LEVELS, "received.", "trained.", "duplicates.", "rejected.", "rows_")
"""Counters that the books are made of; what others a world has is its own."""


class Claims:
    """Of all members of a run, of which `played` are the policies. `refusals` counts what is not believed."""

    def __init__(self, played: Collection[str], refusals: RefusalLog | None = None) -> None:
        self._played, self._refusals = played, refusals or RefusalLog()

    def counters(self, member: WorkerRecord, told: Mapping[str, float]) -> dict[str, float]:
        """What `member` has counted so far: as `told`, or what it told before, where something in that cannot be."""
        if (fault := self._fault(member, told)) is None:
            return dict(told)
        self._doubt(member, *fault)
        return member.counters

    def episodes(
        self, member: WorkerRecord, entry: tuple[str, int, int, float], before: int, taken: bool
    ) -> tuple[str, int, int, float] | None:
        """The entry (policy, steps, episodes, sum of returns), or None where it cannot be. `before`: steps in the last
        one of its policy; `taken`: whether it is that one, told again."""
        policy, steps, count, returns = entry
        if policy not in self._played:
            self._doubt(member, "policy_unknown", f"episodes of {policy!r}, which nobody plays")
        elif taken:
            pass
        elif steps > _most_steps(member):
            self._doubt(member, "steps_beyond_quota", f"{steps} steps of {policy!r} with a quota of {member.quota}")
        elif count > 2 * (steps - before) + 1_000:
            self._doubt(member, "more_episodes_than_steps", f"{count} episodes of {policy!r} in {steps - before} steps")
        elif abs(returns) > _STEP_REWARD * max(1, steps):
            self._doubt(member, "return_too_large", f"returns of {policy!r} that sum to {returns:g} in {steps} steps")
        else:
            return entry
        return None

    def _fault(self, member: WorkerRecord, told: Mapping[str, float]) -> tuple[str, str] | None:
        if not told:
            return None
        if not (min(told.values()) >= 0 and max(told.values()) <= _LARGEST):
            for name, value in told.items():
                if name.startswith(_BOOKS) and not 0 <= value <= _LARGEST:
                    return "counter_impossible", f"{name} is {value:g}"
        if member.role != "actor":
            return None
        if (steps := max(told.get("agent_steps", 0), told.get("env_steps", 0))) > _most_steps(member):
            return "steps_beyond_quota", f"{steps:g} steps with a quota of {member.quota}"
        for name, value in member.counters.items():
            if value > told.get(name, 0) and name.startswith(_TOTALS):
                return "counter_fell", f"{name} was {value:g} and is {told.get(name, 0):g}"
        return None

    def _doubt(self, member: WorkerRecord, kind: str, what: str) -> None:
        self._refusals.tell("claim_not_believed", kind, what, worker=member.name, incarnation=member.incarnation)


def _most_steps(member: WorkerRecord) -> int:
    """Agent steps, of all policies, that this incarnation can have made."""
    return 2 * member.quota + _BEYOND
