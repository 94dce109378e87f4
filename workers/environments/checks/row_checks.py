"""What an agent's rows must be: their form, their numbers, at least one legal choice, actions inside their space.

In flow: arrays that stand for observations, masks and actions. Out flow: nothing, or the first `Mismatch`.

Legend: `n` rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.spaces import Leaf, Place, RowFormat, Text, dtype_of


class Mismatch(NamedTuple):
    """What is wrong with a field, in the words of a sentence."""

    field: str
    expected: str
    got: str


class RowCheck:
    """Rows of one record."""

    def __init__(self, record: RowFormat) -> None:
        self._record = record
        self._shape, self._dtype = record.shape, record.dtype
        self._leaves = [(leaf.name.partition(".")[2], leaf) for leaf in record.leaves]
        self._floats = [name for name, leaf in self._leaves if dtype_of(leaf.space).kind == "f"]

    def flaw(self, field: str, got: Any, n: int) -> Mismatch | None:
        """Of rows that are called `field`: another form, or a number that is not finite."""
        if not isinstance(got, np.ndarray) or got.dtype != self._dtype:
            return self._flaw_of_form(field, got, n)
        if got.shape != (n, *self._shape):
            return flaw_of_shape(field, got, (n, *self._shape), self._dtype)
        if not self._record.nested:
            return flaw_of_numbers(field, got)
        flaws = (flaw_of_numbers(f"{field}.{name}", got[name]) for name in self._floats)
        return next((flaw for flaw in flaws if flaw is not None), None)

    def _flaw_of_form(self, field: str, got: Any, n: int) -> Mismatch | None:
        """Of the first leaf that is another one than it should be."""
        if not self._record.nested or not isinstance(got, np.ndarray):
            expected = self._dtype if not self._record.nested else f"rows of {self._names}"
            return flaw_of_shape(field, got, (n, *self._shape), expected)
        found = got.dtype.fields or {}
        if found:
            for name, leaf in self._leaves:
                kind, shape = dtype_of(leaf.space), list(leaf.space.shape)
                if name not in found:
                    return Mismatch(f"{field}.{name}", f"{kind}{shape} in each row", "missing")
                base, inner = found[name][0].base, list(found[name][0].shape)
                if (base, inner) != (kind, shape):
                    return Mismatch(f"{field}.{name}", f"{kind}{shape} in each row", f"{base}{inner}")
        said = f"rows of {', '.join(found)}" if found else f"{got.dtype}{list(got.shape)}"
        return Mismatch(field, f"rows of {self._names}, without gaps", said)

    @property
    def _names(self) -> str:
        return ", ".join(name for name, _ in self._leaves)


class MaskRows(RowCheck):
    """Masks of legal choices."""

    def __init__(self, record: RowFormat, actions: RowFormat) -> None:
        super().__init__(record)
        self._masks = record
        nvecs = {leaf.name.partition(".")[2]: getattr(leaf.space, "nvec", None) for leaf in actions.leaves}
        self._starts = [_offsets(nvecs[name]) for name, _ in self._leaves]

    def flaw(self, field: str, got: Any, n: int) -> Mismatch | None:
        """Also where a row leaves no choice."""
        flaw = super().flaw(field, got, n)
        if flaw is not None:
            return flaw
        for (leaf, mask), starts in zip(self._masks.parts(got), self._starts, strict=True):
            each = mask.any(axis=1) if starts is None else np.logical_or.reduceat(mask, starts, axis=1).all(axis=1)
            if not each.all():
                at = int(np.flatnonzero(~each)[0])
                return Mismatch(
                    leaf.name, "True for a choice of each element in every row", f"True for none in row {at}"
                )
        return None


class ActionRows(RowCheck):
    """Actions of one agent."""

    def __init__(self, place: Place) -> None:
        super().__init__(place.acted)
        self._ranges = [leaf.space.span for leaf in place.acted.leaves]
        masked = {} if place.masked is None else {leaf.name.partition(".")[2] for leaf in place.masked.leaves}
        self._masked = [name in masked for name, _ in self._leaves]
        self._offsets = [_offsets(getattr(leaf.space, "nvec", None)) for _, leaf in self._leaves]

    def flaw(self, field: str, got: Any, n: int, mask: NDArray[Any] | None = None) -> Mismatch | None:
        """Also where an action is outside its space, or not legal by `mask` (rows of `Place.masked`)."""
        flaw = super().flaw(field, got, n)
        if flaw is not None:
            return flaw
        for i, (leaf, chosen) in enumerate(self._record.parts(got)):
            low, high = self._ranges[i]
            if low is not None and high is not None:
                inside = (chosen >= low) & (chosen <= high)
                if not inside.all():
                    return _outside(leaf, chosen, inside, low, high)
            if isinstance(leaf.space, Text):
                flaw = _flaw_of_text(leaf, chosen)
            elif mask is not None and self._masked[i]:
                legal = mask[leaf.name.partition(".")[2]] if mask.dtype.names else mask
                flaw = _flaw_of_choice(leaf, chosen, low, self._offsets[i], legal)
            if flaw is not None:
                return flaw
        return None


def flaw_of_shape(field: str, got: Any, shape: tuple[int, ...], dtype: Any) -> Mismatch | None:
    """Of what should be an array of this shape and dtype."""
    if not isinstance(got, np.ndarray):
        return Mismatch(field, f"an array {dtype}{list(shape)}", type(got).__name__)
    if got.shape != shape or got.dtype != dtype:
        return Mismatch(field, f"{dtype}{list(shape)}", f"{got.dtype}{list(got.shape)}")
    return None


def flaw_of_numbers(field: str, got: NDArray[Any]) -> Mismatch | None:
    """Of an array with a NaN or an infinity."""
    if got.dtype.kind != "f":
        return None
    # One of either makes the sum NaN or infinite; a sum that merely overflowed is looked at in full.
    with np.errstate(invalid="ignore", over="ignore"):
        if np.isfinite(got.sum()) or np.isfinite(got).all():
            return None
    where = tuple(int(i) for i in np.argwhere(~np.isfinite(got))[0])
    return Mismatch(field, "finite numbers", f"{got[where]} at {list(where)}")


def _offsets(nvec: tuple[int, ...] | None) -> NDArray[np.int64] | None:
    """Where the choices of each element begin in a mask; None where there is one element."""
    return None if nvec is None else np.concatenate(([0], np.cumsum(nvec[:-1], dtype=np.int64)))


def _outside(leaf: Leaf, chosen: NDArray[Any], inside: NDArray[np.bool_], low: Any, high: Any) -> Mismatch:
    at = tuple(int(i) for i in np.argwhere(~inside)[0])
    least, most = (bound[at[1:]] if isinstance(bound, np.ndarray) else bound for bound in (low, high))
    return Mismatch(leaf.name, f"{least} to {most}", f"{chosen[at]} at {list(at)}")


def _flaw_of_text(leaf: Leaf, chosen: NDArray[Any]) -> Mismatch | None:
    """Of texts [n, max_length]: too short, or going on after their end."""
    there = chosen > 0
    short = there.sum(axis=1) < leaf.space.min_length if isinstance(leaf.space, Text) else np.zeros(0, np.bool_)
    broken = (there[:, 1:] & ~there[:, :-1]).any(axis=1)
    for rows, expected in ((short, "text of its least length"), (broken, "text without gaps")):
        if rows.any():
            row = int(np.flatnonzero(rows)[0])
            return Mismatch(leaf.name, expected, f"{chosen[row].tolist()} in row {row}")
    return None


def _flaw_of_choice(
    leaf: Leaf, chosen: NDArray[Any], start: Any, offsets: NDArray[np.int64] | None, legal: NDArray[np.bool_]
) -> Mismatch | None:
    """Of choices that are not legal."""
    choice = chosen if isinstance(start, int) and not start else chosen - start
    if offsets is None:
        allowed = legal[np.arange(len(chosen)), choice]
    else:
        every = np.arange(len(chosen))[:, None]
        allowed = legal[every, choice.reshape(len(chosen), -1) + offsets].reshape(chosen.shape)
    if allowed.all():
        return None
    at = tuple(int(i) for i in np.argwhere(~allowed)[0])
    return Mismatch(leaf.name, "a choice that action_mask allows", f"{chosen[at]} at {list(at)}")
