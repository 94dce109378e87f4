"""Environments for worker processes, each with the id `tests.workers.environments.vectorized.process_worlds:NAME`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn

__all__ = ["Diary", "Dying", "Nest", "Ragged", "Unlike"]

ACTIONS = 100


def agents(*names: str) -> tuple[Agent, ...]:
    return tuple(Agent(name=name, observation=Box(shape=(3,)), action=Discrete(n=ACTIONS)) for name in names)


class Diary(Environment):
    """One agent, always present. Observation (seed mod 1000, copy, t); the reward is the action; episodes of `length`
    steps, whose true last observation is (seed mod 1000, copy, -t)."""

    def __init__(self, copies: int, length: int = 1_000_000) -> None:
        self.world = World(id="diary", agents=agents("one"))
        self.copies = copies
        self._length = length
        self._t = self._seed = 0

    def reset(self, seed: int) -> Turn:
        self._seed, self._t = seed % 1000, 0
        return self._turn(np.zeros(self.copies, np.float32))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        self._t += 1
        return self._turn(actions[0].astype(np.float32))

    def _seen(self, t: float) -> NDArray[np.float32]:
        columns = (np.full(self.copies, self._seed), np.arange(self.copies), np.full(self.copies, t))
        return np.column_stack(columns).astype(np.float32)

    def _turn(self, reward: NDArray[np.float32]) -> Turn:
        ended = np.full(self.copies, self._t > 0 and self._t % self._length == 0)
        present = AgentTimeStep(0, self._seen(self._t), reward, np.zeros(self.copies, np.bool_), ended)
        if ended.any():
            present.final_index = np.arange(self.copies)
            present.final_observation = self._seen(-self._t)
        return Turn((present,), env_steps=self.copies if self._t else 0)


class Ragged(Environment):
    """Two agents that come and go by chance, with rewards and ends between their turns; the action shows in the reward
    for it."""

    def __init__(self, copies: int) -> None:
        self.world = World(id="ragged", agents=agents("left", "right"))
        self.copies = copies

    def reset(self, seed: int) -> Turn:
        self._chance = np.random.default_rng(seed)
        self._worth = np.zeros((2, self.copies), np.float32)
        self._open = np.zeros((2, self.copies), np.bool_)
        return self._turn()

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        for (agent, copies), action in zip(self._acting, actions, strict=True):
            self._worth[agent, copies] = action
            self._open[agent, copies] = True
        return self._turn()

    def _turn(self) -> Turn:
        present, outcomes = [], []
        self._acting: list[tuple[int, NDArray[np.int64]]] = []
        for agent in self._chance.permutation(2).tolist():
            here = self._chance.random(self.copies) < self._chance.choice([0.0, 0.5, 1.0])
            told = ~here & self._open[agent] & (self._chance.random(self.copies) < 0.5)
            if told.any():
                copies = np.flatnonzero(told)
                outcomes.append(AgentOutcome(agent, copies, *self._brought(agent, copies)))
            if here.any():
                copies = np.flatnonzero(here)
                seen = self._chance.random((len(copies), 3), np.float32)
                everybody = None if here.all() else copies
                present.append(AgentTimeStep(agent, seen, *self._brought(agent, copies, everybody)))
                self._acting.append((agent, copies))
        return Turn(tuple(present), int(self._chance.integers(3)), tuple(outcomes))

    def _brought(self, agent: int, copies: NDArray[np.int64], *everybody: object) -> tuple:
        """Reward, ends and final observations for the last actions."""
        waits = self._open[agent, copies]
        reward = np.where(waits, self._worth[agent, copies] + self._chance.random(len(copies)), 0).astype(np.float32)
        end = self._chance.integers(4, size=len(copies))
        terminated, truncated = waits & (end == 0), waits & (end == 1)
        if everybody:
            self._open[agent, copies] = False
        else:
            self._open[agent, copies[terminated | truncated]] = False
            self._worth[agent, copies] = 0
        index = np.flatnonzero(truncated)
        final = self._chance.random((len(index), 3), np.float32) if len(index) else None
        return (reward, terminated, truncated, *everybody, index, final)


class Nest(Diary):
    """A diary with a process of its own, which it does not end."""

    def __init__(self, copies: int) -> None:
        super().__init__(copies)
        self._egg = subprocess.Popen(["sleep", "3600"])


class Unlike(Diary):
    """Its spaces depend on the process."""

    def __init__(self, copies: int) -> None:
        super().__init__(copies)
        self.world = World(id="unlike", agents=agents(f"p{os.getpid()}"))


class Interrupted(BaseException):
    """No Exception."""


class Dying(Diary):
    """A diary that dies in its second step: raise, interrupt, exit, silence (a library's exit), kill or spin."""

    def __init__(self, copies: int, how: str) -> None:
        super().__init__(copies)
        self._how = how

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        turn = super().step(actions)
        if self._t == 2:
            self._die()
        return turn

    def _die(self) -> None:
        if self._how == "raise":
            raise RuntimeError("the world\nbroke")
        if self._how == "interrupt":
            raise Interrupted("out of luck")
        if self._how == "exit":
            os._exit(7)
        if self._how == "silence":
            ctypes.CDLL(None)._exit(5)
        if self._how == "segfault":
            ctypes.string_at(0)
        if self._how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.setswitchinterval(1e6)  # spins without ever letting another thread run
        while True:
            pass
