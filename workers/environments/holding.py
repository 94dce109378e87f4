"""What is held as another dtype than a foreign environment uses: float64 as float32, as no policy needs the digits.

In flow: a world with an environment's own spaces; numbers that come back from float32. Out flow: the world as it is
held here; numbers within the environment's own bounds.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Agent, Box, Dict, Tuple, World, space_of
from protocol.spaces.arrays import limits
from protocol.spaces.gymnasium import world_of

__all__ = ["held", "within"]


def held(world: World, masked: Collection[str] = ()) -> World:
    """The same world with the dtypes that are held here, and with masks for the agents named."""
    agents = tuple(
        Agent(
            name=agent.name,
            observation=_narrow(space_of(agent.observation)),
            action=_narrow(space_of(agent.action)),
            action_mask=agent.name in masked,
        )
        for agent in world.agents
    )
    return world_of(world.id, agents, world.episode_steps)


def within(space: Box, column: NDArray[Any]) -> NDArray[Any]:
    """[n, *shape] in bounds: one that was rounded to float32 may lie outside by that much."""
    low, high = _each(space.low, -np.inf), _each(space.high, np.inf)
    if low is None and high is None:
        return column
    flat = column.reshape(len(column), -1)
    return np.clip(flat, low, high).astype(column.dtype).reshape(column.shape)


def _narrow(space: Any) -> Any:
    match space:
        case Dict():
            return Dict(spaces={key: _narrow(part) for key, part in space.spaces.items()})
        case Tuple():
            return Tuple(spaces=tuple(_narrow(part) for part in space.spaces))
        case Box(dtype="float64"):
            return Box(shape=space.shape, dtype="float32", low=_fitting(space.low), high=_fitting(space.high))
    return space


def _fitting(bound: Any) -> Any:
    """Bounds without those that float32 cannot hold."""
    if isinstance(bound, tuple):
        return tuple(_fitting(one) for one in bound)
    least, most = limits("float32")
    return bound if bound is not None and least <= bound <= most else None


def _each(bound: Any, infinite: float) -> Any:
    """One for all elements or one for each; None where there is none."""
    if isinstance(bound, tuple):
        return np.array([infinite if one is None else one for one in bound])
    return bound
