"""Turning what environments return into arrays of a declared shape and dtype, without changing it.

In flow: any value. Out flow: an array, or an EnvironmentFault that says what was expected and what came.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigurationError, EnvironmentFault


def limits(dtype: str) -> tuple[float, float]:
    """The least and the greatest finite number of a dtype (of type int for whole numbers)."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return 0, 1
    if kind.kind == "f":
        return float(np.finfo(kind).min), float(np.finfo(kind).max)
    return int(np.iinfo(kind).min), int(np.iinfo(kind).max)


def holds(dtype: str, least: int, most: int) -> None:
    """Raises ValueError if a dtype cannot hold the choices `least` to `most`."""
    low, high = limits(dtype)
    if least < low or most > high:
        raise ConfigurationError("choices_exceed_dtype", least=least, most=most, dtype=dtype)


def array_of(value: Any, shape: tuple[int, ...], dtype: str, where: str) -> NDArray[Any]:
    """`value` as an array; EnvironmentFault where numpy would have to broadcast, wrap or change the kind of number."""
    try:
        array = np.asarray(value)
    except ValueError:
        raise EnvironmentFault("array_is_ragged", field=where, expected=dtype, shape=list(shape)) from None
    wanted = np.dtype(dtype)
    if array.shape != shape:
        raise EnvironmentFault("array_shape_wrong", field=where, expected=list(shape), value=list(array.shape))
    if array.dtype == wanted:
        return array
    # Whole numbers may come in another size if they fit; anything else has to be of its kind.
    whole = array.dtype.kind in "iu" and wanted.kind in "iu"
    if not whole and not np.can_cast(array.dtype, wanted, "same_kind"):
        raise EnvironmentFault("array_type_wrong", field=where, expected=dtype, value=array.dtype)
    if whole:
        within(array, *limits(dtype), where)
    return array.astype(wanted)


def within(array: NDArray[Any], least: Any, most: Any, where: str) -> None:
    """Raises EnvironmentFault unless every element lies between the bounds (one for all, or one for each)."""
    outside = (array < least) | (array > most)
    if not np.any(outside):
        return
    at = tuple(int(i) for i in np.argwhere(outside)[0])
    low, high = (bound[at] if isinstance(bound, np.ndarray) else bound for bound in (least, most))
    place = f" at {list(at)}" if at else ""
    raise EnvironmentFault("element_outside_bounds", field=where, low=low, high=high, value=array[at], place=place)
