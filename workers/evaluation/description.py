"""The world of a run, as a process tells it that is forked to make it: whoever asks runs no code of the user.

In flow: a run's configuration. Out flow: its world; ConfigurationError and the like as that process has told them.
"""

from __future__ import annotations

import sys

from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from protocol.spaces import World, parse_world
from workers.environments.registry import describe
from workers.evaluation.forked import Forked, Tell
from workers.rollout.players.scripted_player import check_fixed
from workers.runtime.last_words import tell_failure

__all__ = ["described"]

_SECONDS = 300.0


def described(run: Run, role: str, lock: int | None = None) -> World:
    """The world of `run`, in which all its scripts can act. To be asked before threads are begun. `lock`: the
    descriptor that holds the run's folder, which what a world may leave behind must not hold.

    Where it cannot be made, or a script cannot act, the other process says so as `role` does, and this one ends with
    its exit code. EnvironmentFault where it ended, or hung, before it could say anything.
    """
    other = Forked(lambda tell: _describe(run, role, tell), () if lock is None else (lock,))
    try:
        told = other.lines(_SECONDS)
        fate = other.fate
    finally:
        other.close()
    if not told:
        raise EnvironmentFault("world_not_described", environment=run.environment.id, reason=fate)
    if told[0].isdecimal():
        sys.exit(int(told[0]))
    return parse_world(told[0])


def _describe(run: Run, role: str, tell: Tell) -> int:
    """In the forked process: tells the world, or the exit code of what it has said."""
    run = run.anchored()
    try:
        world = describe(run.environment, run.lockstep_checkpoints)
        check_fixed(run, world)
    except Exception as fault:
        tell(str(tell_failure(role, fault)[1]))
        return 0
    tell(world.model_dump_json())
    return 0
