"""A hand-written player of spread, which sees what a policy sees.

In flow: observations of one agent in many copies. Out flow: moves.

Legend: `n` copies, `A` agents and as many landmarks; the last axis is x, y.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import AgentTimeStep


class SpreadPlayer:
    """Landmarks fall to agents pair by pair, the nearest pair first, which all agents see alike. It goes to its own,
    one axis a turn, as far as it would not slide there by itself: a velocity slides on for `slide` times itself, and a
    push adds `push` to it."""

    def __init__(self, agents: int, push: float, slide: float) -> None:
        self._agents, self._slide = agents, slide
        self._worth = push * slide / 2
        """A push that is worth less than half of what it moves is left."""

    def __call__(self, present: AgentTimeStep) -> NDArray[np.int64]:
        """[n]: the moves."""
        seen, count = present.observation, self._agents
        ways = seen[:, 4 : 4 + 2 * count].reshape(len(seen), count, 2)
        others = seen[:, 4 + 2 * count : 2 + 4 * count].reshape(len(seen), count - 1, 2)
        agents = np.concatenate([np.zeros_like(ways[:, :1]), others], 1)
        rows = np.arange(len(seen))
        left = ways[rows, self._own(agents, ways)] - self._slide * seen[:, :2]
        axis = np.abs(left).argmax(axis=1)
        along = left[rows, axis]
        move: NDArray[np.int64] = np.where(np.abs(along) > self._worth, 1 + 2 * axis + (along > 0), 0)
        return move

    def _own(self, agents: NDArray[np.float32], landmarks: NDArray[np.float32]) -> NDArray[np.int64]:
        """[n]: the landmark that falls to the first of `agents`."""
        rows, count = np.arange(len(agents)), self._agents
        away = np.linalg.norm(agents[:, :, None] - landmarks[:, None], axis=-1)
        own: NDArray[np.int64] = np.zeros(len(agents), np.int64)
        for _ in range(count):
            agent, landmark = np.divmod(away.reshape(len(agents), -1).argmin(axis=1), count)
            own = np.where(agent == 0, landmark, own)
            away[rows, agent] = np.inf
            away[rows, :, landmark] = np.inf
        return own
