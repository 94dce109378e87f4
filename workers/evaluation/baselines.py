"""What a run's returns are compared with, by policy; never a reason for a run to end late or without its summary."""

from __future__ import annotations

import logging
import threading
from typing import Any

from protocol.config import Run
from protocol.spaces import World
from workers.environments.baselines import baselines
from workers.environments.simulators import EXTERNAL

__all__ = ["yardsticks"]

log = logging.getLogger(__name__)

_EPISODES = 200
_PATIENCE, _HURRY = 60.0, 3.0
"""Seconds for a run that reached its end, and for one that was stopped."""


def yardsticks(run: Run, world: World, complete: bool) -> dict[str, dict[str, float]]:
    """policy -> baselines of the first agent it plays; empty, as the log tells, where the world raises or is slow."""
    found: dict[str, dict[str, float]] = {}
    if run.environment.id == EXTERNAL:  # nobody else can play it
        return {policy: {} for policy in run.policy_of(world).values()}

    def measure() -> None:
        try:
            found.update(baselines(run.environment, _EPISODES, run.seed))
        except (Exception, SystemExit) as fault:
            log.warning("event=no_baselines reason=%s: %s", type(fault).__name__, fault)

    thread = threading.Thread(target=measure, name="baselines", daemon=True)
    thread.start()
    thread.join(_PATIENCE if complete else _HURRY)
    if thread.is_alive():
        log.warning("event=no_baselines reason=%d episodes take too long; shorten them with a time limit", _EPISODES)
    by_policy: dict[str, Any] = {}
    for agent, policy in run.policy_of(world).items():
        by_policy.setdefault(policy, dict(found.get(agent, {})))
    return by_policy
