"""CartPole by Gymnasium's own vectorised physics, with episodes that restart in the step that ended them.

In flow: actions [E]. Out flow: the rows that E scalar CartPoles with the same seeds give, some twenty times faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Agent, World
from workers.environments.adapting import box, copy_seeds, discrete
from workers.environments.base import Environment, Present, Turn

__all__ = ["CartPole"]


class CartPole(Environment):
    """`vector` is a `CartPoleVectorEnv` of E copies.

    By itself that restarts a copy one step late, in a step that ignores the action. Here a copy's state is replaced as
    soon as its episode has ended, with random numbers of its own, drawn as the scalar CartPole draws them.
    """

    def __init__(self, id: str, vector: Any) -> None:
        self._vector = vector
        self._physics = vector.unwrapped
        self.copies = vector.num_envs
        observation = box(vector.single_observation_space, id)
        action, _ = discrete(vector.single_action_space, id)
        self.world = World(
            id=id,
            agents=(Agent(name="agent", observation=observation, action=action),),
            episode_steps=self._physics.max_episode_steps,
        )
        self._generators: list[np.random.Generator] = []

    def reset(self, seed: int) -> Turn:
        """Starts new episodes; each copy has a seed of its own, drawn from `seed`, and goes on from it afterwards."""
        from gymnasium.utils import seeding

        self._vector.reset(seed=seed)
        self._generators = [seeding.np_random(one)[0] for one in copy_seeds(seed, self.copies)]
        observation = np.empty((self.copies, 4), np.float32)
        self._restart(range(self.copies), observation)
        none = np.zeros(self.copies, np.bool_)
        return Turn((Present(0, observation, np.zeros(self.copies, np.float32), none, none.copy()),))

    def step(self, actions: Sequence[NDArray[np.int64]]) -> Turn:
        """Steps every copy; where an episode ended, the observation is already the next episode's first."""
        observation, reward, terminated, truncated, _ = self._vector.step(actions[0])
        truncated &= ~terminated
        present = Present(0, observation, reward, terminated, truncated)
        if self._physics.prev_done.any():
            final = np.flatnonzero(truncated)
            if final.size:
                present.final_index = final
                present.final_observation = observation[final]
            self._restart(np.flatnonzero(self._physics.prev_done), observation)
        return Turn((present,), env_steps=self.copies)

    def _restart(self, copies: Sequence[int] | NDArray[np.int64], observation: NDArray[np.float32]) -> None:
        """New episodes in `copies`; their first observations are written to `observation` [E, 4]."""
        physics = self._physics
        for i in copies:
            physics.state[:, i] = self._generators[i].uniform(physics.low, physics.high, size=4)
        physics.steps[copies] = 0
        physics.prev_done[copies] = False
        observation[copies] = physics.state.T[copies]

    def close(self) -> None:
        """Closes Gymnasium's environment."""
        self._vector.close()
