"""Values of many copies at once, in the manner of Gymnasium's vector environments, from rows and as rows.

In flows: observations and infos, or actions, with a leading axis of E copies. Out flows: rows [E] of observations and
masks; a value of a batched space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Leaf, Space, Text, elements, nest
from workers.environments.translation import MASK, Translation

__all__ = ["Batched", "batch_of", "column_of"]


class Batched:
    """The only agent of `copies` copies of a foreign environment."""

    def __init__(self, agent: Translation, copies: int) -> None:
        self._agent, self._copies = agent, copies
        self._observed, self._masked = agent.place.observed, agent.place.masked

    def see(self, value: Any) -> NDArray[Any]:
        """[E, *shape]; the very array that came where it is one of the right dtype."""
        own = self._agent.own(value)
        if not self._observed.nested:
            return column_of(self._observed.leaves[0], own, self._copies, self._agent.where)
        rows = self._observed.zeros(self._copies)
        for leaf, column in self._observed.parts(rows):
            column[...] = column_of(leaf, own, self._copies, self._agent.where)
        return rows

    def allow(self, value: Any, info: Mapping[str, Any], before: NDArray[Any] | None = None) -> NDArray[Any] | None:
        """[E, *shape] of masks, None for an agent without: what came, else what was `before`, else all."""
        if self._masked is None:
            return None
        masks = self._masked.zeros(self._copies) if before is None else before
        told = value if self._agent.beside else info
        given = told.get(MASK) if isinstance(told, Mapping) else None
        everywhere = np.ones(self._copies, np.bool_)
        there = everywhere if self._agent.beside else told.get(f"_{MASK}", everywhere)
        for leaf, target in self._masked.parts(masks):
            name = leaf.name.partition(".")[2]
            if before is None:
                target[:] = True
            if given is not None:
                part = self._agent.part_of_mask(given, name)
                target[there] = self._agent.mask(part, target.shape, name)[there]
        return masks

    def act(self, actions: NDArray[Any]) -> Any:
        """The batched value of the foreign action space, of actions [E]."""
        return batch_of(self._agent.done, {name: column for name, _, column in self._agent.columns(actions)}, "action")


def column_of(leaf: Leaf, value: Any, copies: int, where: str) -> NDArray[Any]:
    """[E, *leaf.space.shape] of its dtype, out of the batched value of its space; EnvironmentFault (it begins with
    `where`) if it is not that."""
    for key in leaf.path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise EnvironmentFault("dict_entry_missing", where=where, field=leaf.name, entry=key) from None
    if isinstance(leaf.space, Text):
        return np.stack([leaf.space.encode(text, f"{where}: {leaf.name}") for text in value])
    array, dtype, shape = np.asarray(value), np.dtype(leaf.space.dtype), (copies, *leaf.space.shape)
    whole = array.dtype.kind in "iu" and dtype.kind in "iu"
    if array.shape != shape or not (whole or np.can_cast(array.dtype, dtype, "same_kind")):
        raise EnvironmentFault(
            "array_form_mismatch",
            where=where,
            field=leaf.name,
            dtype=dtype,
            shape=list(shape),
            got_dtype=array.dtype,
            got_shape=list(array.shape),
        )
    return array.astype(dtype, copy=False)


def batch_of(space: Space, columns: Mapping[str, NDArray[Any]], name: str) -> Any:
    """The batched value of `space` out of its leaves' columns [E, *shape]; text in a tuple."""
    parts: dict[str, Any] = {}
    for leaf in elements(space, name):
        column = columns[leaf.name]
        parts[leaf.name] = tuple(leaf.space.decode(row) for row in column) if isinstance(leaf.space, Text) else column
    return nest(space, parts, name)
