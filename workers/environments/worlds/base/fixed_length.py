"""Worlds in which every agent acts once a turn and episodes have a fixed number of turns: the loop they share.

In flow: actions. Out flow: turns. A world adds what happens: how episodes begin, what changes by itself, what an
action does, what an agent sees, and what a turn is worth.

A turn is settled at its end: what an agent earned in the whole turn, by its own action and those of others, is told at
its next presence. No reward can thus slip into the episode that follows, nor be told twice, in either turn mode.

Legend: `E` copies, `A` agents, `n` some of the copies.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import World
from workers.environments.base import AgentOutcome, AgentTimeStep, Environment, Turn

TurnMode = Literal["sequential", "simultaneous"]

_NONE = np.empty(0, np.int64)


class FixedLengthWorld(Environment):
    """Sequential agents see what those before them did in this turn; simultaneous ones all see the turn's beginning,
    then act in their order. Observations are views of internal buffers, valid until the next `step`.

    `turns` an episode; at its end it is terminated (the task is over) or truncated (a mere time limit). With
    `desynchronize` the length of each copy's first episode is drawn from 1..turns.
    """

    has_state = True

    def __init__(
        self,
        world: World,
        copies: int,
        turn_mode: TurnMode,
        turns: int,
        *,
        terminates: bool = False,
        desynchronize: bool = False,
    ) -> None:
        self.world, self.copies, self.turn_mode = world, copies, turn_mode
        self._turns, self._terminates, self._desynchronize = turns, terminates, desynchronize
        agents = len(world.agents)
        self._generator = np.random.Generator(np.random.PCG64(0))
        self._left: NDArray[np.int64] = np.zeros(copies, np.int64)
        self._next = 0
        self._earned = np.zeros((agents, copies), np.float32)
        self._reward = np.zeros((agents, copies), np.float32)
        self._done = np.zeros(copies, np.bool_)
        self._never = np.zeros(copies, np.bool_)
        self._ended = _NONE
        self._observation = [place.observed.zeros(copies) for place in world.places]
        self._final_common: NDArray | None = None
        self._final = [] if terminates else [np.zeros_like(seen) for seen in self._observation]

    def reset(self, seed: int) -> Turn:
        """Starts new episodes in all copies, reproducibly from `seed`; the first agent (or all) is present."""
        self._generator = np.random.Generator(np.random.PCG64(seed))
        self._seeded()
        self._begin(np.arange(self.copies))
        self._left.fill(self._turns)
        if self._desynchronize:
            self._left[:] = self._generator.integers(1, self._turns + 1, self.copies)
        self._earned.fill(0)
        self._reward.fill(0)
        self._done.fill(False)
        self._ended = _NONE
        self._next = 0
        self._world_step()
        return self._turn()

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Acts for the agents of the last turn. `env_steps` is E with the step that completes a turn, else 0."""
        if self.turn_mode == "sequential":
            self._act(self._next, actions[0])
            self._next = (self._next + 1) % len(self.world.agents)
        else:
            for agent, action in enumerate(actions):
                self._act(agent, action)
        if self._next:
            return self._turn()
        self._end_turn()
        self._world_step()
        return self._turn(env_steps=self.copies)

    def flush_ends(self) -> tuple[AgentOutcome, ...]:
        """Of an episode that has just ended, what those are owed whose turn comes later."""
        if self.turn_mode == "simultaneous" or not self._ended.size:
            return ()
        ended, outcomes = self._ended, []
        done, not_done = np.ones(ended.size, np.bool_), np.zeros(ended.size, np.bool_)
        for agent in range(self._next + 1, len(self.world.agents)):
            told = AgentOutcome(agent, ended, self._reward[agent, ended], done, not_done)
            if not self._terminates:
                told.terminated, told.truncated = not_done, done
                told.final_index, told.final_observation = np.arange(ended.size), self._final[agent][: ended.size]
                told.final_common = self._final_common
            outcomes.append(told)
            self._reward[agent, ended] = 0
        self._done, self._ended = np.zeros_like(self._done), _NONE  # those that the last turn shows stay as they are
        return tuple(outcomes)

    def _end_turn(self) -> None:
        """Tells the turn's rewards; where it was the last, keeps what each agent sees and starts a new episode."""
        self._rewards()
        np.copyto(self._reward, self._earned)
        self._earned.fill(0)
        if self._ended.size:
            self._ended = _NONE
            self._done.fill(False)
        self._left -= 1
        if self._left.all():
            return
        ended = np.flatnonzero(self._left == 0)
        self._done[ended] = True
        self._ended = ended
        for agent, final in enumerate(self._final):
            self._observe(agent, ended, final)
        self._final_common = self._common(ended)
        self._left[ended] = self._turns
        self._begin(ended)

    def _turn(self, env_steps: int = 0) -> Turn:
        return Turn(self._present(), env_steps, common=self._common(slice(None)))

    def _present(self) -> tuple[AgentTimeStep, ...]:
        agents = range(len(self.world.agents)) if self.turn_mode == "simultaneous" else (self._next,)
        return tuple(self._present_agent(agent) for agent in agents)

    def _present_agent(self, agent: int) -> AgentTimeStep:
        self._observe(agent, None, self._observation[agent])
        cut = _NONE if self._terminates else self._ended
        return AgentTimeStep(
            agent=agent,
            observation=self._observation[agent],
            reward=self._reward[agent],
            terminated=self._done if self._terminates else self._never,
            truncated=self._never if self._terminates else self._done,
            final_index=cut,
            final_observation=self._final[agent][: cut.size] if cut.size else None,
            final_common=self._final_common if cut.size else None,
        )

    def _seeded(self) -> None:
        """A new generator is in place: makes anew what draws from it."""
        return

    def _world_step(self) -> None:
        """What happens by itself before the agents of a turn act."""
        return

    def _rewards(self) -> None:
        """Adds to `_earned` [A, E] what the turn as a whole is worth."""
        return

    def _common(self, copies: slice | NDArray[np.int64]) -> NDArray | None:
        """[n, *shape]: what all agents see in `copies`, where the world has something like that."""
        return None

    @abstractmethod
    def _begin(self, copies: NDArray[np.int64]) -> None:
        """New episodes in `copies` [n]."""

    @abstractmethod
    def _act(self, agent: int, action: NDArray[np.int64]) -> None:
        """Agent `agent` acts in all copies, action [E]; rewards are added to `_earned`."""

    @abstractmethod
    def _observe(self, agent: int, copies: NDArray[np.int64] | None, out: NDArray) -> None:
        """Writes what the agent sees in `copies` [n] (None: in all) to the first n rows of `out`."""
