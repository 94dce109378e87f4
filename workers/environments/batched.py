"""What Gymnasium's vector environments say of all copies at once, as rows; actions for all of them.

In flows: observations and infos with a leading axis of E copies; actions [E]. Out flows: rows [E] of observations and
masks; a value of the batched action space.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import Leaf, Text
from workers.environments.translation import MASK, Translation

__all__ = ["Batched"]


class Batched:
    """The only agent of `copies` copies."""

    def __init__(self, agent: Translation, copies: int) -> None:
        self._agent, self._copies = agent, copies
        self._observed, self._masked = agent.place.observed, agent.place.masked

    def see(self, value: Any) -> NDArray[Any]:
        """[E, *shape]; the very array that came where it is one of the right dtype."""
        own = self._agent.own(value)
        if not self._observed.nested:
            return self._column(self._observed.leaves[0], own)
        rows = self._observed.zeros(self._copies)
        for leaf, column in self._observed.parts(rows):
            column[...] = self._column(leaf, own)
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

    def _column(self, leaf: Leaf, own: Any) -> NDArray[Any]:
        """[E, *leaf.space.shape] of its dtype."""
        for key in leaf.path:
            try:
                own = own[key]
            except (KeyError, IndexError, TypeError):
                raise self._fault(leaf.name, "there", f"missing, at {key!r}") from None
        if isinstance(leaf.space, Text):
            return np.stack([leaf.space.encode(text, f"{self._agent.where}: {leaf.name}") for text in own])
        array, dtype, shape = np.asarray(own), np.dtype(leaf.space.dtype), (self._copies, *leaf.space.shape)
        whole = array.dtype.kind in "iu" and dtype.kind in "iu"
        if array.shape != shape or not (whole or np.can_cast(array.dtype, dtype, "same_kind")):
            raise self._fault(leaf.name, f"{dtype}{list(shape)}", f"{array.dtype}{list(array.shape)}")
        return array.astype(dtype, copy=False)

    def _fault(self, field: str, expected: str, got: str) -> EnvironmentFault:
        return EnvironmentFault(
            f"{self._agent.where}: {field} should be {expected} but is {got}; correct the vector environment"
        )
