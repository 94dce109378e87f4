"""The world of a run, as a process tells it that is forked to make it: whoever asks runs no code of the user.

In flow: a run's configuration. Out flow: its world; ConfigurationError and the like as that process has told them.
"""

from __future__ import annotations

import logging
import sys
import time
from contextlib import ExitStack

from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from protocol.spaces import World, parse_world
from workers.environments.registry import single_copy
from workers.evaluation.forked import Ended, Forked, Tell
from workers.rollout.players.scripted_player import check_fixed
from workers.runtime.last_words import tell_failure
from workers.runtime.logs import SHOWN

__all__ = ["described"]

log = logging.getLogger(__name__)

_SECONDS = 300.0
_SLOW_SECONDS = 5.0
"""After which it is said where a world is that is still being made, and again after twice as long."""
_CLOSE_SECONDS = 3.0
"""In which a world that was described may close itself."""


def described(run: Run, role: str, lock: int | None = None) -> World:
    """The world of `run`, in which all its scripts can act. To be asked before threads are begun. `lock`: the
    descriptor that holds the run's folder, which what a world may leave behind must not hold.

    Where it cannot be made, or a script cannot act, the other process says so as `role` does, and this one ends with
    its exit code. EnvironmentFault where it ended, or hung, before it could say anything. How it is closed after it
    was described keeps nobody, and is logged.
    """
    world = run.environment.id
    other = Forked(lambda tell: _describe(run, role, tell), () if lock is None else (lock,))
    try:
        told = _heard(other, world, role)
        if not told:
            raise EnvironmentFault("world_not_described", environment=world, reason=other.fate)
        if told.isdecimal():
            sys.exit(int(told))
        other.lines(_CLOSE_SECONDS)
        if not other.over or other.crashed:
            log.warning('event=close_failed environment=%s reason="%s"', world, other.fate)
            other.close(0.0)
    finally:
        other.close()
    return parse_world(told)


def _heard(other: Forked, world: str, role: str) -> str:
    """What the other process tells; empty where that is nothing. As long as it does not, it is said where it is."""
    began, told = time.monotonic(), other.lines(_SLOW_SECONDS)
    while not told and not other.over and (past := time.monotonic() - began) < _SECONDS:
        at = other.at()
        log.warning("event=making_world environment=%s seconds=%.0f at=%r", world, past, at, extra=SHOWN)
        said = f"{role}: {world} is still being made after {past:.0f} s,{at or ' at an unknown place'}"
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - whoever waits for it reads this
        told = other.lines(min(past, _SECONDS - past))
    return told[0] if told else ""


def _describe(run: Run, role: str, tell: Tell) -> int:
    """In the forked process: tells the world, or the exit code of what it has said, before the world is closed."""
    run = run.anchored()
    with ExitStack() as closing:
        try:
            environment = single_copy(run.environment, run.lockstep_checkpoints)
            closing.callback(environment.close)
            check_fixed(run, environment.world)
        except Exception as fault:
            if not isinstance(fault.__cause__, Ended):  # in the world's code
                tell(str(tell_failure(role, fault)[1]))
        else:
            tell(environment.world.model_dump_json())
    return 0
