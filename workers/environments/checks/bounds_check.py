"""Whether what agents see lies within the boxes that their spaces declare: the first time that it does not, of each
agent. Nobody is stopped by it: a policy learns from such numbers too, but whoever scales or clips by the bounds errs.

In flow: turns, of which the first are all looked at and later ones now and then. Out flow: `Excess`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.spaces import Box, Place, World, dtype_of
from workers.environments.base import Turn

_FIRST, _EVERY = 64, 1024
"""Turns at the start that are all looked at, and of how many later ones one is."""


@dataclass(frozen=True, slots=True)
class Excess:
    """A number that lies outside, in this step of its copy (of the turns since the actor began)."""

    agent: int
    name: str
    field: str
    value: float
    low: float
    high: float
    step: int


class BoundsCheck:
    """Of all agents of `world`."""

    def __init__(self, world: World) -> None:
        self._bounded = {index: leaves for index, place in enumerate(world.places) if (leaves := _bounded(place))}
        self._places = world.places
        self._turns, self._next = 0, 1

    @property
    def agents(self) -> list[int]:
        """Those whose observations have bounds."""
        return [*self._bounded]

    def look(self, turn: Turn) -> list[Excess]:
        """What lies outside of agents of which nothing was found so far."""
        self._turns += 1
        if self._turns < self._next or not self._bounded:
            return []
        self._next += 1 if self._turns < _FIRST else _EVERY
        found = [self._excess(one.agent, one.observation) for one in turn.present if one.agent in self._bounded]
        excesses = [one for one in found if one is not None]
        for one in excesses:
            del self._bounded[one.agent]
        return excesses

    def _excess(self, agent: int, rows: Any) -> Excess | None:
        for field, low, high in self._bounded[agent]:
            numbers = rows[field] if field else rows
            outside = (numbers < low) | (numbers > high)
            if outside.any():
                at = tuple(np.argwhere(outside)[0])
                least, most = (np.broadcast_to(bound, numbers.shape[1:])[at[1:]] for bound in (low, high))
                name, told = self._places[agent].name, (float(numbers[at]), float(least), float(most))
                return Excess(agent, name, field, *told, self._turns - 1)
        return None


def _bounded(place: Place) -> list[tuple[str, Any, Any]]:
    """(name, low, high) of the boxes that leave something outside of what their dtype can hold."""
    found: list[tuple[str, Any, Any]] = []
    for leaf in place.observed.leaves:
        low, high = leaf.space.span if isinstance(leaf.space, Box) else (None, None)
        if low is None or high is None:
            continue
        dtype = dtype_of(leaf.space)
        info = np.iinfo(dtype) if dtype.kind in "iu" else None
        if info is None or not (np.all(low <= info.min) and np.all(high >= info.max)):
            least, most = (np.asarray(one, dtype if info is None else None) for one in (low, high))
            found.append((leaf.name.partition(".")[2], least, most))
    return found
