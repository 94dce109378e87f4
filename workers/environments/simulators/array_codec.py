"""The arrays of one place in frames: little-endian, in C order, one behind another without gaps.

In flow: a frame. Out flow: a row of observations and of its masks, or a GuestFault; and actions as bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Action, Box, Dict, Leaf, Place, RowFormat, Text, dtype_of
from protocol.spaces.row_format import nbytes
from workers.environments.checks.row_checks import MaskRows
from workers.environments.simulators.session import GuestFault

_MOST_SAID = 8
"""Numbers of which a fault tells."""
Check = Callable[[NDArray[Any]], bool]


class RowCodec:
    """Of `place`. `size`: bytes of one observation; `whole`: with its masks."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._seen, self._mask = _wire(place.observed), None if place.masked is None else _wire(place.masked)
        self._shape = place.observed.shape
        self._items = math.prod(self._shape)
        self._flat = self._shape == (self._items,)
        self.size = self._seen.itemsize * self._items
        self.whole = self.size + (0 if self._mask is None else nbytes(place.masked))
        self._checks = [
            (leaf, leaf.name.partition(".")[2] if place.observed.nested else "", check)
            for leaf in place.observed.leaves
            if (check := _check(leaf)) is not None
        ]
        self._plain = self._flat and self._seen.kind == "f" and self._mask is None
        self._legal = None if place.masked is None else MaskRows(place.masked, place.acted)
        self._divisible = isinstance(place.agent.action, Action) and not place.agent.action.atomic

    def fast_decode(self, frames: Sequence[bytes]) -> NDArray[Any] | None:
        """All that is told of one agent, where it is finite numbers in a row and nothing else; None: look closer."""
        if not self._plain or len(frames) != 1 or len(frames[0]) != self.size:
            return None
        row = np.frombuffer(frames[0], self._seen)
        return row if math.isfinite(row.dot(row)) else None

    def observation(self, frame: bytes, at: int) -> NDArray[Any]:
        """[*shape] from byte `at` on; a view. GuestFault for numbers that are not finite or beyond a choice."""
        row = np.frombuffer(frame, self._seen, self._items, at)
        if not self._flat:
            row = row.reshape(self._shape)
        for leaf, name, check in self._checks:
            part = row[name] if name else row
            if not check(part):
                raise self._wrong_value(leaf, part)
        return row

    def mask(self, frame: bytes, at: int) -> NDArray[np.bool_] | None:
        """[*shape] behind the observation that begins at `at`; None where there are no masks."""
        record = self._place.masked
        if self._mask is None or record is None or self._legal is None:
            return None
        at += self.size
        if np.frombuffer(frame, np.uint8, nbytes(record), at).max(initial=0) > 1:
            raise GuestFault("mask_byte_not_boolean", "value", agent=self._place.name)
        row = np.frombuffer(frame, self._mask, math.prod(record.shape), at).reshape(record.shape)
        if self._legal.flaw("action_mask", row[None], 1) is not None:
            raise GuestFault("mask_without_choice", "value", agent=self._place.name)
        return row

    def action(self, row: NDArray[Any], elements: list[str]) -> bytes:
        """What is done, as bytes; of an action that is not atomic the `elements` asked for, or all."""
        if not elements:
            return row.tobytes()
        wanted = set(elements)
        chosen = [leaf for leaf in self._place.acted.leaves if leaf.path[0] in wanted]
        return b"".join(row[leaf.name.partition(".")[2]].tobytes() for leaf in chosen)

    def check_elements(self, elements: list[str]) -> None:
        """GuestFault if these cannot be done by themselves."""
        action = self._place.agent.action
        if not self._divisible:
            raise GuestFault("action_is_atomic", "element", agent=self._place.name)
        assert isinstance(action.space, Dict)
        unknown = [name for name in elements if name not in action.space.spaces]
        if unknown:
            known = ", ".join(action.space.spaces)
            raise GuestFault(
                "simulator_element_unknown", "element", agent=self._place.name, field=unknown[0], choices=known
            )

    def _wrong_value(self, leaf: Leaf, part: NDArray[Any]) -> GuestFault:
        where = f"{leaf.name} of agent {self._place.name!r}"
        if isinstance(leaf.space, Box):
            if leaf.space.dtype == "bool":
                return GuestFault("observed_byte_not_boolean", "value", where=where)
            return GuestFault("observed_number_not_finite", "value", where=where)
        low, high = leaf.space.span
        least, most = np.min(low), np.max(high)
        wrong = part if isinstance(leaf.space, Text) else part[(part < low) | (part > high)]
        said = ", ".join(str(one) for one in wrong.reshape(-1)[:_MOST_SAID].tolist())
        return GuestFault("observed_value_out_of_range", "value", where=where, low=least, high=most, value=said)


def _wire(record: RowFormat) -> np.dtype[Any]:
    return record.dtype.newbyteorder("<")


def _check(leaf: Leaf) -> Check | None:
    """Whether an array of a leaf is in its space; None where anything is."""
    space = leaf.space
    if isinstance(space, Box):
        if space.dtype == "bool":
            return lambda part: bool((np.ascontiguousarray(part).view(np.uint8) <= 1).all())
        # one NaN or infinity makes the product NaN or infinite; one that merely overflowed is looked at in full
        if dtype_of(space).kind == "f":
            return lambda part: math.isfinite(np.vdot(part, part)) or bool(np.isfinite(part).all())
        return None
    low, high = space.span
    if isinstance(space, Text):
        return lambda part: bool(
            ((part >= low) & (part <= high)).all() and (part > 0).sum() == np.count_nonzero(np.cumprod(part > 0))
        )
    return lambda part: bool(((part >= low) & (part <= high)).all())
