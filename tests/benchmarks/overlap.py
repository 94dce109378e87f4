"""How much of stepping and inference happens at once.

Out flow: figures by key. `async.speedup`: turns of all copies a second, `async_factor` 2 over 1.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import EnvironmentConfig
from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Environment, Turn
from workers.environments.registry import make

__all__ = ["Sleeper", "overlap"]

_COPIES, _PROCESSES = 64, 2
_SLEEP = 2e-3
"""Seconds that a step of all copies takes, and as long the choice of their actions; half the copies, half of it."""
_TURNS, _ROUNDS = 10, 20


class Sleeper(Environment):
    """A world of one agent, which sleeps `seconds` for each of its copies."""

    def __init__(self, copies: int, seconds: float) -> None:
        observation = Box(shape=(8,))
        self.world = World(id="sleeper", agents=(Agent(name="one", observation=observation, action=Discrete(n=2)),))
        self.copies = copies
        self._seconds = seconds * copies
        none = np.zeros(copies, np.bool_)
        present = AgentTimeStep(0, np.zeros((copies, 8), np.float32), np.zeros(copies, np.float32), none, none)
        self._turn = Turn((present,), env_steps=copies)

    def reset(self, seed: int) -> Turn:
        """Nothing is drawn."""
        return self._turn

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Sleeps."""
        time.sleep(self._seconds)
        return self._turn


def overlap() -> dict[str, float]:
    """`async.speedup`: the same copies in 2 processes, in 2 groups against 1.

    A step of all copies sleeps 2 ms in each process, and so does the choice of all actions; half the copies 1 ms. The
    two take turns, and the fastest round of each counts, as with `timeit`: neighbours on the machine can only delay.
    """
    seconds = _SLEEP * _PROCESSES / _COPIES
    one, two = (
        make(
            EnvironmentConfig(
                id=f"{__name__}:Sleeper",
                copies=_COPIES,
                processes=_PROCESSES,
                async_factor=groups,
                settings={"seconds": seconds},
            )
        )
        for groups in (1, 2)
    )
    try:
        rounds = [(_all_turns(one), _all_turns(two)) for _ in range(_ROUNDS)]
        slow, fast = (min(seconds) for seconds in zip(*rounds, strict=True))
        return {"async.speedup": slow / fast}
    finally:
        one.close()
        two.close()


def _all_turns(environment: Environment) -> float:
    """Seconds for `_TURNS` turns of all copies."""
    turn = environment.reset(0)
    actions = [np.zeros(len(present.observation), np.int64) for present in turn.present]
    started = time.perf_counter()
    for _ in range(_TURNS * environment.groups):
        time.sleep(_SLEEP / environment.groups)
        environment.step(actions)
    return time.perf_counter() - started
