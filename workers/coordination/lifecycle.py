"""How a run comes to its end: running -> actors draining -> learners draining -> ended. Pure; time is given.

In flows: who is left, whether all was made, whether somebody asked to stop. Out flow: the stage, and what a worker of a
role is to do in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from protocol.messages.core import Command, Role

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
