"""What a simulator does while an action is late: the same again, what a space has for nothing, or what a script says.

In flows: what agents see now, their masks, and the actions they were given before. Out flow: an action for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.messages.simulator import Admit, Fallback
from protocol.simulator.encoding import SpaceCodec, Values
from protocol.simulator.session import ObservedStep
from protocol.spaces import Box, Discrete, Leaf, MultiDiscrete, Text

Script = Callable[[str, Any], Any]
"""From an agent and what it sees to what it does."""
Masks = Mapping[str, NDArray[np.bool_]]


class Lateness:
    """What is agreed upon: a deadline and a fallback of the simulator's own, or else the run's."""

    def __init__(self, deadline: float | None, fallback: Fallback | None, script: Script | None) -> None:
        self._own, self._script = (deadline, fallback), script
        self.deadline = deadline
        """Seconds; None: it waits."""
        self._stopgap: Stopgap | None = None

    def agree(self, admit: Admit, cast: SpaceCodec) -> None:
        """Takes the run's where it has none of its own; ConfigurationError for `scripted` without a script."""
        deadline, kind = self._own
        if deadline is None and admit.deadline > 0:
            deadline, kind = admit.deadline, kind or admit.fallback
        self.deadline = deadline
        if deadline is not None and kind is not None:
            self._stopgap = Stopgap(kind, self._script, cast)

    def fill(self, acted: dict[str, Any] | None, shown: ObservedStep) -> dict[str, Any] | None:
        """What is done: actions that came, those of before being late; the fallback where there is one and they did
        not."""
        if self._stopgap is None:
            return acted
        if acted is None:
            return self._stopgap.actions(shown)
        self._stopgap.remember(acted, shown.elements)
        return acted


class Stopgap:
    """By `kind`, for the agents of `cast`."""

    def __init__(self, kind: Fallback, script: Script | None, cast: SpaceCodec) -> None:
        if kind == "scripted" and script is None:
            raise ConfigurationError("fallback_without_script", field="script")
        self._kind, self._script, self._cast = kind, script, cast
        self._done: dict[tuple[str, tuple[str, ...]], Any] = {}

    def remember(self, actions: Mapping[str, Any], elements: Sequence[str]) -> None:
        """These are done."""
        self._done.update({(name, tuple(elements)): action for name, action in actions.items()})

    def actions(self, shown: ObservedStep) -> dict[str, Any]:
        """What to do instead of what has not come."""
        seen, masks, elements, _ = shown
        chosen = {name: self._one(name, one, masks.get(name), elements) for name, one in seen.items()}
        self.remember(chosen, elements)
        return chosen

    def _one(self, name: str, seen: Any, mask: Any, elements: Sequence[str]) -> Any:
        if self._kind == "scripted" and self._script is not None:
            return self._script(name, seen)
        values, key = self._cast.of(name), (name, tuple(elements))
        masks = values.masks(mask, name)
        if self._kind == "last" and key in self._done:
            action = self._done[key]
            return action if not masks else _legal(values, action, masks, elements, name)
        return values.nest(
            {leaf.name: _default(leaf, masks.get(leaf.name)) for leaf in values.acted(elements)}, elements
        )


def _legal(values: Values, action: Any, masks: Masks, elements: Sequence[str], name: str) -> Any:
    """The action, with what is not legal now replaced by the first choice that is."""
    arrays = {}
    for leaf in values.acted(elements):
        value = action
        for key in leaf.path:
            value = value[key]
        array, mask = leaf.space.encode(value, name), masks.get(leaf.name)
        arrays[leaf.name] = array if mask is None else _among(leaf, array, mask)
    return values.nest(arrays, elements)


def _default(leaf: Leaf, mask: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Of a choice the first (legal) value; of numbers 0, or what is nearest to 0 within their bounds."""
    space, array = leaf.space, np.zeros(leaf.space.shape, leaf.space.dtype)
    if isinstance(space, Discrete | MultiDiscrete):
        array[...] = space.span[0]
        return array if mask is None else _among(leaf, array, mask)
    if isinstance(space, Box) and space.span[0] is not None:
        return np.clip(array, *space.span).astype(array.dtype)
    if isinstance(space, Text):
        array[: space.min_length] = 1
    return array


def _among(leaf: Leaf, array: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Choices that are legal: the given ones where they are, else the first; EnvironmentFault where none is."""
    space = leaf.space
    assert isinstance(space, Discrete | MultiDiscrete)
    starts = np.ravel(space.span[0])
    chosen, at = array.reshape(-1).copy(), 0
    for i, count in enumerate(space.sizes):
        legal = np.flatnonzero(mask[at : at + count])
        if not len(legal):
            raise EnvironmentFault("mask_leaves_no_choice", agent=leaf.owner)
        if chosen[i] - starts[i] not in legal:
            chosen[i] = starts[i] + legal[0]
        at += count
    return chosen.reshape(array.shape)
