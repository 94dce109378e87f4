"""A hand-written player of rendezvous, which sees what a policy sees.

In flow: observations of one agent in many copies. Out flow: thrusts.

Legend: `n` copies, `O` other agents; the last axis is x, y.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep

_EASE = 0.7
"""How much of the way that is left it wants to go in a turn: braking takes room."""
_SPACE = 1.6
"""How near others may come, in units of what touches, before it gives way."""


class RendezvousPlayer:
    """Goes straight to its place as fast as it can still brake, and turns away from who is about to touch it."""

    def __init__(self, drag: float, thrust: float, reach: float) -> None:
        self._drag, self._thrust, self._reach = drag, thrust, reach
        self._top = thrust / (1 - drag)

    def __call__(self, present: AgentTimeStep) -> NDArray[np.float32]:
        """[n, 2]: the thrusts."""
        seen = present.observation
        velocity, way = seen[:, :2] * self._top, seen[:, 2:4]
        others = seen[:, 4:].reshape(len(seen), -1, 4)
        wanted = np.clip(_EASE * way, -self._top, self._top) + self._away(velocity, others)
        thrust = (wanted - self._drag * velocity) / self._thrust
        return np.clip(thrust, -1, 1).astype(np.float32)

    def _away(self, velocity: NDArray[np.floating], others: NDArray[np.float32]) -> NDArray[np.floating]:
        """[n, 2]: what to add to the velocity so as to pass who comes too near within the next turn, each on its own
        left."""
        there = others[..., :2] + others[..., 2:] * self._top - velocity[:, None]
        distance = np.maximum(np.linalg.norm(there, axis=-1, keepdims=True), 1e-6)
        near = np.clip(1 - distance / (_SPACE * self._reach), 0, 1)
        back = -there / distance
        left = np.stack([back[..., 1], -back[..., 0]], -1)
        push: NDArray[np.floating] = (near * (back + left)).sum(axis=1) * self._top
        return push
