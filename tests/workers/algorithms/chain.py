"""Six places in a row: action 1 walks right, 0 back to the start, and only the last place pays."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from protocol.spaces import Agent, Box, Discrete
from tests.trial import Trial
from workers.algorithms.common.batches import TransitionBatch

__all__ = ["AGENT", "GAMMA", "PLACES", "VALUES", "judge", "steps"]

GAMMA = 0.9
AGENT = Agent(name="a", observation=Box(shape=(6,)), action=Discrete(n=2))
PLACES = torch.eye(6)[:, None]
"""[6, 1, 6]: what is seen at each place."""
VALUES = GAMMA ** np.arange(5, -1, -1)
"""[6] of walking right at each place."""


def steps(rng: np.random.Generator, rows: int = 64) -> TransitionBatch:
    """Of a walker who may be anywhere and does anything."""
    place, action = rng.integers(0, 6, rows), rng.integers(0, 2, rows)
    won = (place == 5) & (action == 1)
    following = np.where(action == 1, np.minimum(place + 1, 5), 0)
    return TransitionBatch(
        PLACES[torch.from_numpy(place)],
        torch.from_numpy(action),
        torch.from_numpy(won.astype(np.float32)),
        torch.from_numpy(np.where(won, 0.0, GAMMA).astype(np.float32)),
        PLACES[torch.from_numpy(following)],
    )


def judge(trial: Trial, values: NDArray[np.float32]) -> None:
    """Whether `values` [6, 2] prefer to walk right everywhere, and know what that is worth."""
    trial.errs_less(np.abs(values[:, 1] - VALUES).max(), 0.1, "error")
    trial.reaches((values[:, 1] - values[:, 0]).min(), 0, "preference")
