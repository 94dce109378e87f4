"""How a run comes to its end: running -> actors draining -> learners draining -> ended; and whether it moves until
then, or who waits for what. Time is given.

In flows: who is left, whether all was made, whether somebody asked to stop; steps, members, counters of waiting. Out
flows: the stage, and what a worker of a role is to do in it; a sentence, empty as long as anything moves.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from protocol.messages.core import Command, Role
from workers.metrics.segment_accounting import Page, Pages

Stage = Literal["running", "actors_draining", "learners_draining", "ended", "left"]
"""`left`: to the coordinator that comes next."""
_LAST: tuple[Role, ...] = ("learner", "relay", "evaluator")
"""Who ends when all actors have."""


class RunLifecycle:
    """One run's. Each draining has a time limit in seconds, twice as long where the run reached its end."""

    def __init__(self, actor_timeout: float, learner_timeout: float) -> None:
        self._timeouts = {"actors_draining": actor_timeout, "learners_draining": learner_timeout}
        self._until: float | None = None
        self.now: Stage = "running"

    @property
    def over(self) -> bool:
        """Whether this coordinator has nothing more to wait for."""
        return self.now in ("ended", "left")

    def leave(self) -> None:
        """The run goes on without this coordinator."""
        self.now = "left"

    def drain(self, now: float, complete: bool) -> None:
        """Begins to end a run that has `complete`d, or was stopped."""
        self._enter("actors_draining", now, complete)

    def advance(self, now: float, complete: bool, there: Callable[[Role], bool]) -> bool:
        """One stage on, if nobody of those who drain is `there` any more or their time is up; whether it is another."""
        before = self.now
        if self.now == "actors_draining" and (not there("actor") or self._overdue(now)):
            self._enter("learners_draining", now, complete)
        elif self.now == "learners_draining" and (not any(map(there, _LAST)) or self._overdue(now)):
            self._enter("ended", now, complete)
        return self.now != before

    def command(self, role: Role, paused: bool) -> Command:
        """What a worker is told."""
        if self.now == "running" or role == "supervisor":
            return "pause" if paused and role == "actor" else "go"
        if role == "actor":
            return "drain"
        return "go" if self.now == "actors_draining" else "drain"

    def _enter(self, stage: Stage, now: float, complete: bool) -> None:
        self.now = stage
        self._until = now + self._timeouts.get(stage, 0.0) * (2 if complete else 1)

    def _overdue(self, now: float) -> bool:
        return self._until is not None and now > self._until


log = logging.getLogger(__name__)


class StallDetector:
    """Of one run; nothing may move for `seconds`. `stalls`: how often that was too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moved_at = 0.0
        self._progress = -1
        self._before: Pages = {}
        """What everybody had counted when something moved last."""
        self.stalls = 0
        self.message = ""

    def look(self, now: float, paused: bool, view: Mapping[str, Any], absent: Sequence[str], pages: Pages) -> None:
        """The same by the books' `view`; who is `paused` moves in time alone. What begins to stand still is logged."""
        steps, before = sum(policy["train_steps"] or 0 for policy in view["policies"].values()), self.message
        said = self.update(now, int(now * 1000) if paused else view["made"] + steps, view["workers"], absent, pages)
        if said and not before:
            log.error('event=stalled reason="%s"', said)

    def update(
        self, now: float, progress: int, workers: Sequence[Mapping[str, Any]], absent: Sequence[str], pages: Pages
    ) -> str:
        """`progress`: anything that grows while the run moves; `workers`: the table of members; `absent`: names of
        those that are wanted and not there."""
        if progress != self._progress or not workers:
            self._progress, self._moved_at, self.message = progress, now, ""
            self._before = pages
        elif not self.message and now - self._moved_at >= self._seconds:
            self.stalls += 1
            told = [self._told(worker, pages) for worker in workers if worker["role"] in ("actor", "learner", "relay")]
            told += [f"{name} is not there" for name in absent]
            self.message = f"nothing moved for {now - self._moved_at:.0f} s: {', '.join(told)}"
        return self.message

    def _told(self, worker: Mapping[str, Any], pages: Pages) -> str:
        key = worker["name"], worker["incarnation"]
        before = _waits(self._before.get(key, {}))
        grown = {cause: value - before.get(cause, 0.0) for cause, value in _waits(pages.get(key, {})).items()}
        most = max(grown, key=lambda cause: grown[cause], default="")
        if worker["silent"] > self._seconds / 2:
            return f"{worker['name']} is silent"
        if most and grown[most] > self._seconds / 10:
            kind, _, of = most.removeprefix("waits.").partition(".")
            return f"{worker['name']} waits for {kind}{f' of {of}' if of else ''}"
        return f"{worker['name']} is {worker['state']} and waits for nothing"


def _waits(page: Page) -> dict[str, float]:
    return {name: value for name, value in page.items() if name.startswith("waits.")}
