"""One agent of ours as programs see it that speak Gymnasium's or PettingZoo's language.

In flows: rows of its place; actions as those programs nest them. Out flows: a value of the observation space (a Dict
with `observation` and `action_mask` or `common`, where there are such); actions, rows of its place.

Legend: `E` copies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.experience.layout import common_of
from protocol.spaces import Place, RowFormat, World, flatten, space_of, unflatten
from protocol.spaces.drawing import first_legal
from workers.environments.adapters.space_conversion import batch_of, column_of
from workers.environments.checks.row_checks import ActionRows


class AgentView:
    """The agent at `place`, or one of those that stand there."""

    def __init__(self, world: World, place: Place) -> None:
        self.place = place
        self._seen, self._done = space_of(place.agent.observation), space_of(place.agent.action)
        common = common_of(world)
        self._common = None if common is None else (tuple(common.shape), common.dtype)
        self._acted = ActionRows(place)
        self._wrapped = place.masked is not None or common is not None

    def value(self, row: NDArray[Any], mask: NDArray[Any] | None, common: NDArray[Any] | None) -> Any:
        """Of one row each, in arrays of its own; without `mask` nothing is legal, as when it is not to act."""
        own = unflatten(self._seen, _leaves(self.place.observed, row), "observation")
        if not self._wrapped:
            return own
        told = {"observation": own}
        if self.place.masked is not None:
            told["action_mask"] = self._mask(self.place.masked.zeros(1)[0] if mask is None else mask)
        if self._common is not None:
            told["common"] = np.zeros(*self._common) if common is None else common.copy()
        return told

    def empty(self) -> Any:
        """Before it has seen anything."""
        return self.value(first_legal(self.place.observed, 1)[0, ...], None, None)

    def batch(self, rows: NDArray[Any], masks: NDArray[Any] | None, common: NDArray[Any] | None) -> Any:
        """Of all copies at once, [E, ...], in arrays of their own."""
        columns = {leaf.name: column.copy() for leaf, column in self.place.observed.parts(rows)}
        own = batch_of(self._seen, columns, "observation")
        if not self._wrapped:
            return own
        told = {"observation": own}
        if masks is not None:
            told["action_mask"] = self._mask(masks)
        if common is not None:
            told["common"] = common.copy()
        return told

    def row(self, action: Any, where: str, mask: NDArray[Any] | None) -> NDArray[Any]:
        """[1]; EnvironmentFault (it begins with `where`) for what is not in the action space, or illegal by `mask`, one
        row."""
        rows = self.place.acted.zeros(1)
        arrays = flatten(self._done, action, "action", where)
        for leaf, part in self.place.acted.parts(rows):
            part[0] = arrays[leaf.name]
        return self._checked(rows, where, None if mask is None else mask[None])

    def rows(self, actions: Any, copies: int, where: str, masks: NDArray[Any] | None) -> NDArray[Any]:
        """[E] of a batched value; EnvironmentFault as for one."""
        rows = self.place.acted.zeros(copies)
        for leaf, part in self.place.acted.parts(rows):
            part[...] = column_of(leaf, actions, copies, where)
        return self._checked(rows, where, masks)

    def _checked(self, rows: NDArray[Any], where: str, masks: NDArray[Any] | None) -> NDArray[Any]:
        flaw = self._acted.flaw("action", rows, len(rows), masks)
        if flaw is not None:
            raise EnvironmentFault(
                "played_action_invalid", where=where, field=flaw.field, expected=flaw.expected, value=flaw.got
            )
        return rows

    def _mask(self, mask: NDArray[Any]) -> Any:
        """As PettingZoo has it: of numbers 0 and 1; of nested choices, by their dotted names."""
        if mask.dtype.names is None:
            return mask.astype(np.int8)
        return {name: mask[name].astype(np.int8) for name in mask.dtype.names}


def _leaves(record: RowFormat, row: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """leaf name -> a copy of its part of one row."""
    whole = np.asarray(row)
    return {leaf.name: np.array(part) for leaf, part in record.parts(whole)}
