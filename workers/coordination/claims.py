"""What a member tells of itself, as far as it can be true: the books believe nothing else.

In flow: counters and episodes of heartbeats and farewells, and pages of counters. Out flow: those that are believed; of
the others a line in the log, and a count.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from functools import lru_cache

from protocol.messages.core import Episodes
from protocol.refusal_log import RefusalLog
from workers.coordination.member_store import WorkerRecord
from workers.metrics.segment_accounting import Page
from workers.metrics.step_time import STAMPS
from workers.planning.policy_plan import most_steps

_LARGEST = 2.0**53
"""Of any counter: whole numbers are exact up to here, and nothing counts so far in a lifetime."""
_A_SECOND = 1e8
"""The most that anything can be counted up in a second."""
_DOUBTED, _JUMP, _UNHEARD = 2.0, 60.0, 1_000
"""Who waited so many lives and seconds more is told of, as is who is so many times all versions behind, and more than
may come between two heartbeats of a learner; below, clocks differ or jumped."""
_NAMES, _NAMES_A_POLICY = 1_000, 100
"""The most counters that a member may have, and as many metrics."""
_STEP_REWARD = 1e12
"""The most that a step may earn; a return beyond it would outweigh all others for ever."""
_MADE = ("agent_steps", "env_steps", "resumed_steps")
"""What an actor's quota is counted in."""
_TOTALS = ("agent_steps", "env_steps", "fixed_steps", "unfinished_steps", "produced.", "dropped.")
"""Counters of actors that never fall."""
_LEVELS = ("backlog.", "flight.", "waits.", "held.", *STAMPS, "first_going.", "first_ended.")
_EVENTS = ("environment_restarts", "refused_acks", "refused_messages.", "episodes.", "infos.")
_LEAGUE = ("league.games.", "league.points.")
_WORKERS = ("received.", "trained.", "duplicates.", "rejected.", "rows_", "resumed_steps", "health.", "outside_step.")
_BOOKS = (*_TOTALS, *_LEVELS, *_EVENTS, *_LEAGUE, *_WORKERS)
"""Counters that the books are made of, none below 0; what others a world has is its own."""
_SUMS = ("returns.", "first_returns.", "info_sums.", "league.margin.")
"""Those of what actors' steps earned, and of what their worlds told."""

_waits = lru_cache(16)(lambda names: [name for name in names if name.startswith("waits.")])
"""Of the names on a page, those of waits: a thousand pages have the same."""


class Claims:
    """Of all members of a run, of which `played` are the policies. `refusals` counts what is not believed."""

    def __init__(self, played: set[str], refusals: RefusalLog | None = None) -> None:
        self.played, self._refusals = played, refusals or RefusalLog()
        self.began: dict[tuple[str, int], float] = {}
        """(name, incarnation) of actors and learners -> when it was let in, unless an earlier coordinator did that."""

    def counters(self, member: WorkerRecord, told: Mapping[str, float]) -> dict[str, float]:
        """What `member` has counted so far: as `told`, or what it told before, where something in that cannot be. No
        more was waited than time passed."""
        now, actor = time.monotonic(), member.role == "actor"
        if self._too_many(member, "counters", told):
            return member.counters
        if (fault := _fault(actor, member.quota, told, member.counters, now - member.believed_at)) is None:
            member.believed_at = now
            return {**self._waited((member.name, member.incarnation), told, now)}
        self._doubt((member.name, member.incarnation), *fault)
        return member.counters

    def metrics(self, member: WorkerRecord, told: dict[str, float]) -> dict[str, float]:
        """As `told`, or what it told before, where that is more than a worker has."""
        return member.metrics if self._too_many(member, "metrics", told) else told

    def _too_many(self, member: WorkerRecord, what: str, told: Mapping[str, float]) -> bool:
        most = _NAMES + _NAMES_A_POLICY * len(self.played)
        if len(told) > most:
            self._doubt((member.name, member.incarnation), "names_too_many", f"{len(told)} {what}, of {most} at most")
        return len(told) > most

    def page(
        self, worker: tuple[str, int], quota: int | None, told: Page, before: Page, now: float, then: float
    ) -> Page:
        """The same of the page of a worker (name, incarnation): as `told` `now`, or as it was `before`, `then`."""
        if told == before or (fault := _fault(worker[0].startswith("actor"), quota, told, before, now - then)) is None:
            return self._waited(worker, told, now)
        self._doubt(worker, *fault)
        return before

    def lag(self, member: WorkerRecord, policy: str, told: float, newest: float) -> float:
        """Versions by which `member` is behind: at most all that there are, of which `newest` are heard of."""
        if not told <= _DOUBTED * newest + _UNHEARD:
            self._doubt((member.name, member.incarnation), "lag_beyond_versions", f"{told:g} of {newest:g} of {policy}")
        return min(newest, max(0.0, told))

    def _waited(self, worker: tuple[str, int], told: Page, now: float) -> Page:
        """As `told`, with no more waited for all causes together than one thread can have since it was let in."""
        waits = {name: told[name] for name in _waits(tuple(told))}
        if (waited := sum(waits.values())) <= (life := now - self.began.get(worker, -math.inf)):
            return told
        if waited > _DOUBTED * life + _JUMP:
            self._doubt(worker, "waited_longer_than_there", f"{waited:g} s waited in {life:.1f} s")
        return {**told, **{name: value * life / waited for name, value in waits.items()}}

    def episodes(self, member: WorkerRecord, entry: Episodes, before: int, taken: bool) -> Episodes | None:
        """The entry, or None where it cannot be. `before`: steps in the last one of its policy; `taken`: whether it is
        that one, told again."""
        policy, steps, count, returns, length = entry
        who = member.name, member.incarnation
        if policy not in self.played:
            self._doubt(who, "policy_unknown", f"episodes of {policy!r}, which nobody plays")
        elif taken:
            pass
        elif steps > most_steps(member.quota):
            self._doubt(who, "steps_beyond_quota", f"{steps} steps of {policy!r} with a quota of {member.quota}")
        elif count > 2 * (steps - before) + 1_000:
            self._doubt(who, "more_episodes_than_steps", f"{count} episodes of {policy!r} in {steps - before} steps")
        elif abs(returns) > _STEP_REWARD * max(1, steps):
            self._doubt(who, "return_too_large", f"returns of {policy!r} that sum to {returns:g} in {steps} steps")
        elif length > 2 * (member.steps_before + steps) + 1_000:
            self._doubt(who, "episodes_too_long", f"{length} steps in episodes of {policy!r}, of {steps} in all")
        else:
            return entry
        return None

    def _doubt(self, worker: tuple[str, int], kind: str, what: str) -> None:
        self._refusals.tell("claim_not_believed", kind, what, worker=worker[0], incarnation=worker[1])


def _fault(actor: bool, quota: int | None, told: Page, before: Page, seconds: float) -> tuple[str, str] | None:
    """What cannot be in what a worker has counted, `seconds` after what it had `before`."""
    if not told:
        return None
    largest = max(told.values())
    if not (min(told.values()) >= 0 and largest <= _LARGEST) or math.isnan(sum(told.values())):
        for name, value in told.items():
            if name.startswith(_BOOKS) and not 0 <= value <= _LARGEST:
                return "counter_impossible", f"{name} is {value:g}"
    if not actor:
        return None
    if quota is not None and max(largest, -min(told.values())) > (most := _STEP_REWARD * most_steps(quota)):
        for name, value in told.items():
            if name.startswith(_SUMS) and abs(value) > most:
                return "return_too_large", f"{name} is {value:g} with a quota of {quota}"
    if quota is not None and (steps := max(told.get(n, 0) for n in _MADE)) > most_steps(quota):
        return "steps_beyond_quota", f"{steps:g} steps with a quota of {quota}"
    for name, value in before.items():
        if value > told.get(name, 0) and name.startswith(_TOTALS):
            return "counter_fell", f"{name} was {value:g} and is {told.get(name, 0):g}"
    if largest > (most := _A_SECOND * (seconds + 1)):
        for name, value in told.items():
            if name.startswith(_BOOKS) and value - before.get(name, 0) > most:
                return "counter_too_fast", f"{name} rose by {value - before.get(name, 0):g} in {seconds:.1f} s"
    return None
