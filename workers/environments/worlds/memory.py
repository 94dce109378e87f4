"""Memory: a cue at first, then nothing of use, then the time to act on the cue; many copies at once in numpy.

No player without a memory of its own can earn more than chance: what it sees when it must act says nothing of the cue.
In flow: one action an agent. Out flow: cue, delay, or the sign to act.

Legend: `E` copies, `A` agents, `K` cues, `n` some of the copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from protocol.spaces import Agent, Box, Discrete, World
from workers.environments.base import AgentTimeStep, Player, WorldSettings, parse_settings
from workers.environments.worlds.base.fixed_length import FixedLengthWorld, TurnMode


class MemoryTaskSettings(WorldSettings):
    """What may be set under `environment.settings`."""

    cues: int = Field(default=4, ge=2, le=1_000)
    """Different cues, and as many actions."""
    delay: int = Field(default=8, ge=0, le=100_000)
    """Steps between the cue and the sign to act."""
    agents: int = Field(default=1, ge=1, le=100)
    """Each has cues of its own."""
    distract: bool = False
    """Show another random cue in every step of the delay, instead of none."""


class MemoryTask(FixedLengthWorld):
    """`copies` tasks of delay + 2 steps, which end as terminated; ConfigurationError for settings that cannot work.

    Observation [K + 2] float32: a cue one-hot (or nothing), 1 if it is the one to remember, 1 if it is time to act. The
    last action brings 1 if it is the number of the cue, every other action nothing. With memory the best return is 1,
    without 1 / K.
    """

    def __init__(self, copies: int = 64, turn_mode: TurnMode | None = None, **settings: Any) -> None:
        s = self.settings = parse_settings("memory", MemoryTaskSettings, settings)
        box = Box(shape=(s.cues + 2,), dtype="float32", low=0, high=1)
        agents = tuple(Agent(name=f"agent_{i}", observation=box, action=Discrete(n=s.cues)) for i in range(s.agents))
        world = World(id="memory", agents=agents, episode_steps=s.delay + 2)
        super().__init__(world, copies, turn_mode or "simultaneous", s.delay + 2, terminates=True)
        self._every = np.arange(copies)
        self._cue: NDArray[np.int64] = np.zeros((s.agents, copies), np.int64)
        self._shown = np.zeros((s.agents, copies, s.cues + 2), np.float32)

    def _begin(self, copies: NDArray[np.int64]) -> None:
        self._cue[:, copies] = self._generator.integers(self.settings.cues, size=(self.settings.agents, copies.size))

    def _world_step(self) -> None:
        """What is shown in this turn; all copies are in the same one."""
        s, left = self.settings, self._left[0]
        self._shown.fill(0)
        agents = np.arange(s.agents)[:, None]
        if left == s.delay + 2:
            self._shown[agents, self._every, self._cue] = 1
            self._shown[..., s.cues] = 1
        elif left == 1:
            self._shown[..., s.cues + 1] = 1
        elif s.distract:
            other = self._generator.integers(s.cues, size=self._cue.shape)
            self._shown[agents, self._every, other] = 1

    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        if self._left[0] == 1:
            self._earned[agent] += action == self._cue[agent]

    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        seen = self._shown[agent] if copies is None else self._shown[agent, copies]
        out[: len(seen)] = seen

    def scripted(self) -> Player:
        """Remembers the cue: the best player there is."""
        cues = self.settings.cues
        remembered = np.zeros_like(self._cue)

        def choose(present: AgentTimeStep) -> NDArray[np.int64]:
            seen = present.observation
            known = remembered[present.agent]
            np.copyto(known, seen[:, :cues].argmax(axis=1), where=seen[:, cues] > 0)
            return known.copy()

        return choose

    def render(self, copy: int = 0) -> str:
        """What each agent of one copy is shown, as text: `cue 2`, `see 1`, `wait` or `act`, agents in their order."""
        cues = self.settings.cues
        words = []
        for seen in self._shown[:, copy]:
            shown = int(seen[:cues].argmax()) if seen[:cues].any() else None
            blank = "act" if seen[cues + 1] else "wait"
            words.append(blank if shown is None else f"{'cue' if seen[cues] else 'see'} {shown}")
        return ", ".join(words)
