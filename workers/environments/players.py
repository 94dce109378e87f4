"""A player that needs no policy: one that chooses by chance.

In flow: who is present, and what is legal. Out flow: actions.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Place
from protocol.spaces.drawing import random_rows
from workers.environments.base import AgentTimeStep, Player


def random_player(place: Place, generator: np.random.Generator) -> Player:
    """Chooses every legal choice with equal probability; numbers as in `random_rows`."""

    def choose(present: AgentTimeStep) -> NDArray[Any]:
        return random_rows(place.acted, len(present.observation), generator, present.action_mask)

    return choose
