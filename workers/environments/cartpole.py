"""CartPole by Gymnasium's own vectorised physics, with episodes that restart in the step that ended them.

In flow: actions [E]. Out flow: the rows that E scalar CartPoles with the same seeds give, some twenty times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces.gymnasium import world_from_gymnasium
from workers.environments.adapting import copy_seeds, picture_of
from workers.environments.base import Environment, Present, Turn
from workers.runtime.state_capture import State

__all__ = ["CartPole"]

_PHYSICS = ("state", "steps", "prev_done")
_AHEAD = 64
"""Beginnings of episodes that are drawn at once for a copy."""


class CartPole(Environment):
    """`vector` is a `CartPoleVectorEnv` of E copies.

    By itself that restarts a copy one step late, in a step that ignores the action. Here a copy's state is replaced as
    soon as its episode has ended, with random numbers of its own, drawn as the scalar CartPole draws them.
    """

    remembers = True

    def __init__(self, id: str, vector: Any) -> None:
        self._vector = vector
        self._physics = vector.unwrapped
        self._physics.action_space = _Trusted()
        self.copies = vector.num_envs
        spaces = vector.single_observation_space, vector.single_action_space
        self.world = world_from_gymnasium(id, *spaces, episode_steps=self._physics.max_episode_steps)
        self._generators: list[np.random.Generator] = []
        self._starts = np.zeros((self.copies, _AHEAD, 4))
        self._nowhere = np.zeros(self.copies, np.bool_)
        self._next: NDArray[np.int64] = np.zeros(self.copies, np.int64)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        from gymnasium.utils import seeding

        self._vector.reset(seed=seed)
        self._generators = [seeding.np_random(one)[0] for one in copy_seeds(seed, self.copies)]
        for i in range(self.copies):
            self._draw(i)
        observation = np.empty((self.copies, 4), np.float32)
        self._restart(np.arange(self.copies), observation)
        none = np.zeros(self.copies, np.bool_)
        return Turn((Present(0, observation, np.zeros(self.copies, np.float32), none, none.copy()),))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy; where an episode ended, the observation is already the next episode's first."""
        physics = self._physics
        observation, reward, terminated, truncated, _ = self._vector.step(actions[0])
        present = Present(0, observation, reward, terminated, truncated)
        ended = physics.prev_done.nonzero()[0]
        if ended.size:
            truncated &= ~terminated
            if physics.steps[ended].max() >= physics.max_episode_steps:
                present.final_index = truncated.nonzero()[0]
                if present.final_index.size:
                    present.final_observation = observation[present.final_index]
            self._restart(ended, observation)
        return Turn((present,), env_steps=self.copies)

    def get_state(self) -> State:
        """With that of Gymnasium's physics, of which nothing else changes."""
        physics = {name: getattr(self._physics, name).copy() for name in _PHYSICS}
        return {**super().get_state(), **physics}

    def set_state(self, state: State) -> None:
        """The inverse."""
        super().set_state(state)
        for name in _PHYSICS:
            setattr(self._physics, name, state[name].copy())

    def _restart(self, copies: NDArray[np.int64], observation: NDArray[np.float32]) -> None:
        """New episodes in `copies`, which are all that have ended; their first observations are written to
        `observation` [E, 4]."""
        physics = self._physics
        at = self._next[copies]
        if max(at.tolist()) == _AHEAD:
            for i in copies[at == _AHEAD]:
                self._draw(i)
            at = self._next[copies]
        states = self._starts[copies, at]
        self._next[copies] += 1
        physics.state[:, copies] = states.T
        physics.steps[copies] = 0
        physics.prev_done = self._nowhere
        observation[copies] = states

    def _draw(self, copy: int) -> None:
        """The states in which the next episodes of a copy begin: the numbers that drawing one by one would give."""
        physics = self._physics
        self._starts[copy] = self._generators[copy].uniform(physics.low, physics.high, size=(_AHEAD, 4))
        self._next[copy] = 0

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """What the environment renders, where it was made with `render_mode: rgb_array`."""
        return picture_of(self._vector.render, copy)

    def close(self) -> None:
        """Closes Gymnasium's environment."""
        self._vector.close()


class _Trusted:
    """In place of the action space, which takes a seventh of a step to look at actions that are known to be in it."""

    def contains(self, action: Any) -> bool:
        """They come from a policy that has no others."""
        return True
