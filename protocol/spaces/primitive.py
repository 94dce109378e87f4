"""The spaces of fixed size that become one column each: numbers, choices, bits and bounded text.

In flow: a value as Gymnasium's space of the same name would hold it. Out flow: an array of the space's `shape` and
`dtype`, and back.
"""

from __future__ import annotations

import math
import string
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces.arrays import array_of, holds, limits, within
from protocol.spaces.model import ELEMENTS, Node

MOST = 65_536
"""Numbers that are given one by one."""
Integer = Literal["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
Word = Annotated[int, Field(ge=-(2**63), lt=2**63)]
Choices = Annotated[int, Field(ge=1, lt=2**63)]
Shape = Annotated[tuple[Annotated[int, Field(ge=0, le=ELEMENTS)], ...], Field(max_length=32)]
Bound = int | float | None
_FORM = Discriminator(lambda given: "each" if isinstance(given, list | tuple) else "all")
Bounds = Annotated[
    Annotated[Bound, Tag("all")] | Annotated[tuple[Bound, ...], Field(max_length=MOST), Tag("each")], _FORM
]
"""One for all elements, or one for each in C order."""
Starts = Annotated[
    Annotated[Word, Tag("all")] | Annotated[tuple[Word, ...], Field(max_length=MOST), Tag("each")], _FORM
]


class Box(Node):
    """An array of numbers; `low` and `high` bound all elements, or each (C order); None: unbounded.

    Once made, whole numbers are always bounded, by their dtype if by nothing else.
    """

    kind: Literal["box"] = "box"
    shape: Shape
    # fmt: off
    dtype: Literal["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
                   "float16", "float32", "float64", "bool"] = "float32"
    # fmt: on
    low: Bounds = None
    high: Bounds = None

    @model_validator(mode="after")
    def _canonical(self) -> Self:
        _few(self.shape)
        least, most = limits(self.dtype)
        low = [self._bound(bound, least) for bound in _each(self.low, self.size, "low")]
        high = [self._bound(bound, most) for bound in _each(self.high, self.size, "high")]
        if not self.size:
            low, high = [self._bound(None, least)], [self._bound(None, most)]
        for i in range(max(len(low), len(high))):
            below, above = low[i % len(low)], high[i % len(high)]
            if below is not None and above is not None and below > above:
                raise ConfigurationError("box_bounds_crossed", low=below, high=above)
        object.__setattr__(self, "low", _simplest(low))
        object.__setattr__(self, "high", _simplest(high))
        return self

    def _bound(self, bound: Bound, limit: float) -> Bound:
        """As the kind of number that the dtype holds."""
        exact = not self.dtype.startswith("float")
        if bound is None:
            return int(limit) if exact else None
        if exact and bound != int(bound):
            raise ConfigurationError("box_bound_not_whole", dtype=self.dtype, value=bound)
        least, most = limits(self.dtype)
        if not least <= bound <= most:
            raise ConfigurationError("box_bound_beyond_dtype", value=bound, dtype=self.dtype)
        return int(bound) if exact else float(bound) + 0.0  # -0.0 is 0.0: the same box must have the same text

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def span(self) -> tuple[Any, Any]:
        """The least and the greatest of each element, or one for all; (None, None) of numbers that nothing bounds."""
        if self.low is None and self.high is None:
            return None, None
        return self._ends(self.low, -np.inf), self._ends(self.high, np.inf)

    def _ends(self, bound: Any, infinite: float) -> Any:
        if isinstance(bound, tuple):
            return _array(tuple(infinite if one is None else one for one in bound), self.dtype, self.shape)
        return infinite if bound is None else bound

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """`value` as an array of `shape` and `dtype`; EnvironmentFault (it names `where`) if that would change it.

        Bounds are not looked at: many environments leave theirs by a rounding error.
        """
        return array_of(value, self.shape, self.dtype, where)

    def decode(self, array: NDArray[Any]) -> NDArray[Any]:
        """The value that was encoded."""
        return array


class _Whole(Node):
    """Whole numbers, each within the `span`."""

    def encode(self: Any, value: Any, where: str) -> NDArray[Any]:
        """`value` as an array of `shape`; EnvironmentFault (it names `where`) if an element is beyond the span."""
        array = array_of(value, self.shape, self.dtype, where)
        least, most = self.span
        within(array, least, most, where)
        return array

    def decode(self, array: NDArray[Any]) -> Any:
        """The value that was encoded."""
        return array


class Discrete(_Whole):
    """One of `n` choices, numbered from `start`."""

    kind: Literal["discrete"] = "discrete"
    n: Choices
    start: Word = 0
    dtype: Integer = "int64"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        holds(self.dtype, self.start, self.start + self.n - 1)
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one value: ()."""
        return ()

    @property
    def choices(self) -> int:
        """Entries of a mask of legal actions: n."""
        return self.n

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each choice has."""
        return (self.n,)

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last choice."""
        return self.start, self.start + self.n - 1

    def decode(self, array: NDArray[Any]) -> Any:
        """The value that was encoded."""
        return array[()]


class MultiDiscrete(_Whole):
    """Several choices at once: element i is one of `nvec[i]`, numbered from `start` (for all, or for each; C order)."""

    kind: Literal["multi_discrete"] = "multi_discrete"
    nvec: Annotated[tuple[Choices, ...], Field(min_length=1, max_length=MOST)]
    shape: Shape = ()
    """Of one value; not given: a vector."""
    start: Starts = 0
    dtype: Integer = "int64"

    @model_validator(mode="after")
    def _canonical(self) -> Self:
        shape = self.shape or (len(self.nvec),)
        if math.prod(shape) != len(self.nvec):
            raise ConfigurationError("choices_do_not_fill_shape", count=len(self.nvec), shape=list(shape))
        start = _each(self.start, len(self.nvec), "start")
        for i, n in enumerate(self.nvec):
            first = start[i % len(start)]
            holds(self.dtype, first, first + n - 1)
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "start", _simplest(start))
        return self

    @property
    def choices(self) -> int:
        """Entries of a mask of legal actions: those of all elements, one after another."""
        return sum(self.nvec)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each choice has."""
        return self.nvec

    @property
    def span(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """The first and the last choice of each element."""
        start = self.start if isinstance(self.start, tuple) else (self.start,) * len(self.nvec)
        last = tuple(first + n - 1 for first, n in zip(start, self.nvec, strict=True))
        return _array(start, self.dtype, self.shape), _array(last, self.dtype, self.shape)


class MultiBinary(_Whole):
    """An array of bits, each 0 or 1."""

    kind: Literal["multi_binary"] = "multi_binary"
    shape: Annotated[tuple[Annotated[int, Field(ge=1, le=ELEMENTS)], ...], Field(min_length=1, max_length=32)]
    dtype: ClassVar[Literal["int8"]] = "int8"
    """As Gymnasium samples it."""
    span: ClassVar[tuple[int, int]] = (0, 1)

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        _few(self.shape)
        return self


class Text(Node):
    """Text of `min_length` to `max_length` characters out of `charset`.

    As an array: the place of each character in `charset`, from 1; 0 after the last.
    """

    kind: Literal["text"] = "text"
    max_length: int = Field(ge=0, le=65_536)
    min_length: int = Field(default=1, ge=0)
    charset: Annotated[str, Field(min_length=1, max_length=65_536)] = string.ascii_letters + string.digits
    dtype: ClassVar[Literal["int32"]] = "int32"
    """Of the array."""

    @model_validator(mode="after")
    def _canonical(self) -> Self:
        if self.min_length > self.max_length:
            raise ConfigurationError("text_lengths_crossed", low=self.min_length, high=self.max_length)
        object.__setattr__(self, "charset", "".join(sorted(set(self.charset))))
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return (self.max_length,)

    @property
    def span(self) -> tuple[int, int]:
        """Of the places in the array."""
        return 0, len(self.charset)

    def encode(self, value: Any, where: str) -> NDArray[Any]:
        """[max_length] int32; EnvironmentFault (it names `where`) for text that is not in the space."""
        if not isinstance(value, str) or not self.min_length <= len(value) <= self.max_length:
            got = f"{len(value)} of them" if isinstance(value, str) else type(value).__name__
            raise EnvironmentFault(
                "text_length_wrong", field=where, low=self.min_length, high=self.max_length, value=got
            )
        places = [self.charset.find(character) + 1 for character in value]
        if 0 in places:
            strange = value[places.index(0)]
            raise EnvironmentFault("text_character_unknown", field=where, value=strange)
        array = np.zeros(self.max_length, np.int32)
        array[: len(places)] = places
        return array

    def decode(self, array: NDArray[Any]) -> str:
        """The text that was encoded."""
        return "".join(self.charset[place - 1] for place in array[array > 0].tolist())


def dtype_of(space: Box | Discrete | MultiDiscrete | MultiBinary | Text) -> np.dtype[Any]:
    """Of its arrays. The name is one of many literals, and a type checker would try numpy's overloads for each."""
    return np.dtype(str(space.dtype))


@lru_cache(64)
def _array(values: tuple[Any, ...], dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """Of what is given for each element; it is read only, as all who ask have the same."""
    array = np.array(values, dtype).reshape(shape)
    array.flags.writeable = False
    return array


def _few(shape: tuple[int, ...]) -> None:
    if math.prod(shape) > ELEMENTS:
        raise ConfigurationError("space_too_large", shape=list(shape), limit=ELEMENTS)


def _each(given: Any, size: int, name: str) -> list[Any]:
    """What is given for each element, or [the one for all]."""
    if not isinstance(given, tuple):
        return [given]
    if len(given) != size:
        raise ConfigurationError("space_values_miscounted", field=name, count=len(given), expected=size)
    return list(given) or [None]


def _simplest(values: list[Any]) -> Any:
    """One value where all are alike, so that equal spaces have equal JSON."""
    return values[0] if all(value == values[0] for value in values) else tuple(values)
