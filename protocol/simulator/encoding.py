"""What an agent sees and does, as a simulator holds it, from and to the arrays in frames.

In flow: values of the spaces of a world, as Gymnasium's spaces of the same names would hold them. Out flow: bytes, and
back.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Agent, Box, Dict, Discrete, Leaf, Place, World, dtype_of, nest, space_of


class Values:
    """Of the agents at one place; EnvironmentFault, naming agent and field, for what is not in their spaces."""

    def __init__(self, place: Place) -> None:
        self._place, self._agent = place, place.agent
        self._action = space_of(place.agent.action)
        self._single = None if place.observed.nested else place.observed.leaves[0]
        self._float32 = _float32_of(self._single)
        self._choice = _choice_of(place)

    def observation(self, value: Any, name: str) -> bytes:
        """The arrays of an observation, one behind another."""
        if self._single is not None:
            plain = type(value) is np.ndarray and value.dtype is self._float32
            # as is usual: a product that overflows, or of what is not finite, is looked at in full
            if plain and value.shape == self._single.space.shape and math.isfinite(np.vdot(value, value)):
                return bytes(value.tobytes())
            return _bytes(self._single, self._single.space.encode(value, f"{name}: observation"))
        arrays = Agent.see(self._agent, value, name)
        return b"".join(_bytes(leaf, arrays[leaf.name]) for leaf in self._place.observed.leaves)

    def mask(self, value: Any, name: str) -> bytes:
        """The masks of legal actions: an array, or for a nested action one for each leaf by its dotted name."""
        if value is None and self._place.masked is None:  # as is usual
            return b""
        return b"".join(array.tobytes() for array in self.masks(value, name).values())

    def masks(self, value: Any, name: str) -> dict[str, NDArray[np.bool_]]:
        """The same as arrays, by the names of the leaves of the action; empty where there are none."""
        record = self._place.masked
        if record is None:
            if value is not None:
                raise EnvironmentFault("action_mask_unexpected", agent=name)
            return {}
        if value is None:
            raise EnvironmentFault("action_mask_missing", agent=name)
        arrays = {}
        for leaf in record.leaves:
            given = value if not record.nested else value[leaf.name.partition(".")[2]]
            array = leaf.space.encode(np.asarray(given, np.bool_), f"{name}: {leaf.name}")
            arrays[leaf.name.replace("action_mask", "action", 1)] = array
        return arrays

    def action(self, frame: bytes | memoryview, at: int, elements: Sequence[str]) -> tuple[Any, int]:
        """The action that begins at byte `at`, and where it ends; of `elements` only, if any are named."""
        if self._choice is not None:
            return np.frombuffer(frame, self._choice, 1, at)[0], at + self._choice.itemsize
        arrays = {}
        for leaf in self.acted(elements):
            dtype, count = dtype_of(leaf.space).newbyteorder("<"), math.prod(leaf.space.shape)
            arrays[leaf.name] = np.frombuffer(frame, dtype, count, at).reshape(leaf.space.shape).copy()
            at += dtype.itemsize * count
        return self.nest(arrays, elements), at

    def acted(self, elements: Sequence[str]) -> list[Leaf]:
        """The leaves of an action; of `elements` only, if any are named."""
        leaves = self._place.acted.leaves
        return [leaf for leaf in leaves if not elements or leaf.path[0] in elements]

    def nest(self, arrays: Mapping[str, NDArray[Any]], elements: Sequence[str]) -> Any:
        """The action of which these are the leaves."""
        space = self._action
        if elements:
            space = Dict(spaces={key: inner for key, inner in space.spaces.items() if key in elements})
        values = {leaf.name: leaf.space.decode(arrays[leaf.name]) for leaf in self.acted(elements)}
        return nest(space, values, "action")


class SpaceCodec:
    """All agents of a world by name."""

    def __init__(self, world: World) -> None:
        self._values = {slot: values for place in world.places for values in (Values(place),) for slot in place.slots}
        self.names = tuple(self._values)

    def of(self, name: str) -> Values:
        """The agent `name`; EnvironmentFault if there is none."""
        found = self._values.get(name)
        if found is None:
            some = ", ".join(self.names[:8])
            raise EnvironmentFault("world_lacks_agent", agent=name, choices=some)
        return found


def _float32_of(leaf: Leaf | None) -> np.dtype[Any] | None:
    """What an observation of one box of float32 is made of, where that is as it goes over the wire."""
    plain = leaf is not None and isinstance(leaf.space, Box) and leaf.space.dtype == "float32"
    return np.dtype(np.float32) if plain and sys.byteorder == "little" else None


def _choice_of(place: Place) -> np.dtype[Any] | None:
    """What an action that is one choice is made of."""
    space = space_of(place.agent.action)
    return dtype_of(space).newbyteorder("<") if isinstance(space, Discrete) else None


def _bytes(leaf: Leaf, array: Any) -> bytes:
    if isinstance(leaf.space, Box) and array.dtype.kind == "f" and not np.isfinite(array).all():
        raise EnvironmentFault("simulator_value_not_finite", agent=leaf.owner, field=leaf.name)
    return np.ascontiguousarray(array, dtype_of(leaf.space).newbyteorder("<")).tobytes()
