"""The world of a run, as a process tells it that is forked to make it: whoever asks runs no code of the user.

In flow: a run's configuration. Out flow: its world; ConfigurationError and the like as that process has told them.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack

from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from protocol.messages.core import Role
from protocol.spaces import World, parse_world
from protocol.spaces.drawing import first_legal
from workers.environments.base import Environment
from workers.environments.registry import single_copy
from workers.environments.simulators import EXTERNAL
from workers.evaluation.forked import Ended, Forked, Tell
from workers.metrics.hooks.calls import hooked_roles
from workers.planning.policy_plan import LayoutFields, PolicyPlan, plan_policies
from workers.rollout.players.scripted_player import check_fixed
from workers.runtime.last_words import tell_failure
from workers.runtime.logs import SHOWN

log = logging.getLogger(__name__)

_PLAYED = "played"
"""What the other process tells after the world, when that has played a turn."""
_SECONDS = 300.0
_SLOW_SECONDS = 5.0
"""After which it is said where a world is that is still being made, and again after twice as long."""
_TURN_SECONDS = 3.0
"""In which a world that was described may play its first turn, of which a run does not wait for more."""
_CLOSE_SECONDS = 3.0
"""In which a world that was described may close itself."""


def described(
    run: Run, role: str, lock: int | None = None, prepare: Callable[[Run, dict[str, PolicyPlan]], None] | None = None
) -> tuple[World, LayoutFields, list[Role]]:
    """The world of `run`, in which all its scripts can act, the fields of its policies' layouts, and in whose processes
    its hooks are called. To be asked before threads are begun. `lock`: the descriptor that holds the
    run's folder, which what a world may leave behind must not hold. `prepare` is called there with the run and the
    plans of its policies.

    Where it cannot be made, a script cannot act, or its first turn contradicts its API or its spaces, the other process
    says so as `role` does, and this one ends with its exit code. EnvironmentFault where it ended, or hung, before it
    could say anything. How its first turn ends otherwise, and how it is closed, keeps nobody, and is logged.
    """
    world = run.environment.id
    other = Forked(lambda tell: _describe(run, role, tell, prepare), () if lock is None else (lock,))
    try:
        told = _heard(other, world, role)
        if not told:
            raise EnvironmentFault("world_not_described", environment=world, reason=other.fate)
        if told[0].isdecimal():
            sys.exit(int(told[0]))
        played = told[1:] or other.lines(_TURN_SECONDS)
        if played and played[0].isdecimal():
            sys.exit(int(played[0]))
        if played:
            other.lines(_CLOSE_SECONDS)
        if not other.over or other.crashed:
            event = "close_failed" if played else "first_turn_failed"
            log.warning('event=%s environment=%s reason="%s"', event, world, other.fate)
            other.close(0.0)
    finally:
        other.close()
    found = json.loads(told[0])
    return parse_world(found["world"]), found["fields"], found["hooked"]


def _heard(other: Forked, world: str, role: str) -> list[str]:
    """What the other process tells; empty where that is nothing. As long as it does not, it is said where it is."""
    began, told = time.monotonic(), other.lines(_SLOW_SECONDS)
    while not told and not other.over and (past := time.monotonic() - began) < _SECONDS:
        at = other.at()
        log.warning("event=making_world environment=%s seconds=%.0f at=%r", world, past, at, extra=SHOWN)
        said = f"{role}: {world} is still being made after {past:.0f} s,{at or ' at an unknown place'}"
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - whoever waits for it reads this
        told = other.lines(min(past, _SECONDS - past))
    return told


def _describe(
    run: Run, role: str, tell: Tell, prepare: Callable[[Run, dict[str, PolicyPlan]], None] | None = None
) -> int:
    """In the forked process: tells the world, and that it has played a turn, before it is closed; or the exit code of
    what it has said instead."""
    run = run.anchored()
    with ExitStack() as closing:
        try:
            environment = single_copy(run.environment, run.lockstep_checkpoints)
            closing.callback(environment.close)
            check_fixed(run, environment.world)
            hooked = sorted(hooked_roles(run))
            plans = plan_policies(run, environment.world)  # which imports code of the user, as cores and algorithms
            if prepare is not None:
                prepare(run, plans)
            fields = {name: plan.layout.describe()["fields"] for name, plan in plans.items()}
            tell(json.dumps({"world": environment.world.model_dump_json(), "fields": fields, "hooked": hooked}))
            if run.environment.id != EXTERNAL:  # whose turns are simulators'
                try:
                    play_turn(environment)
                except EnvironmentFault as fault:  # what it raises is told by who plays: it may be well again
                    if fault.kind != "environment_raised":
                        raise
            tell(_PLAYED)
        except Exception as fault:
            if not isinstance(fault.__cause__, Ended):  # in the world's code
                tell(str(tell_failure(role, fault)[1]))
    return 0


def play_turn(environment: Environment) -> None:
    """EnvironmentFault if it raises, or returns what it should not."""
    turn = environment.reset(0)
    acted = [environment.world.places[one.agent].acted for one in turn.present]
    masked = zip(acted, turn.present, strict=True)
    environment.step([first_legal(rows, len(one.reward), one.action_mask) for rows, one in masked])
