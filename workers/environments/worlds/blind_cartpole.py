"""CartPole of which only the positions are seen: how fast cart and pole move must be remembered.

In flow: actions [E]. Out flow: the rows of CartPole without its velocities, [E, 2]. Without memory the pole falls soon
(Wierstra et al. 2007, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from protocol.spaces import Agent, Box, World
from workers.environments.adapters.gymnasium_adapter import from_id
from workers.environments.base import Turn, WrappedEnvironment

_SEEN = [0, 2]
"""Where the cart is, and the pole's angle."""


class BlindCartPole(WrappedEnvironment):
    """`copies` of Gymnasium's CartPole-v1; `settings` are Gymnasium's."""

    def __init__(self, copies: int, **settings: Any) -> None:
        super().__init__(from_id("gymnasium:CartPole-v1", copies, settings))
        world = self._inner.world
        (agent,) = world.agents
        seen = Agent(name=agent.name, observation=Box(shape=(2,)), action=agent.action)
        self.world = World(id="blind_cartpole", agents=(seen,), episode_steps=world.episode_steps)

    def reset(self, seed: int) -> Turn:
        """Starts new episodes."""
        return _blind(self._inner.reset(seed))

    def step(self, actions: Sequence[NDArray]) -> Turn:
        """Steps every copy."""
        return _blind(self._inner.step(actions))


def _blind(turn: Turn) -> Turn:
    (present,) = turn.present
    present.observation = present.observation[:, _SEEN]
    if present.final_observation is not None:
        present.final_observation = present.final_observation[:, _SEEN]
    return turn
