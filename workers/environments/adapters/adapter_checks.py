"""What the adapters of foreign environments share: spaces that stay the same, limits of steps, seeds.

In flow: what an environment declares. Out flow: nothing, or the sentence that says what is wrong with it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault

__all__ = ["check_same", "copy_seeds", "max_steps", "picture_of", "step_before_reset"]


def check_same(expected: Any, got: Any, where: str, field: str) -> None:
    """EnvironmentFault if a space is not the one that was declared at first."""
    if got is not expected and got != expected:
        raise EnvironmentFault("space_changed", where=where, field=field, expected=expected, value=got)


def max_steps(value: Any) -> int | None:
    """A limit of steps as an environment declares it; None where that is no such number."""
    return int(value) if isinstance(value, int | np.integer) and value > 0 else None


def step_before_reset(where: str) -> EnvironmentFault:
    """What to raise when actions come for an environment that has no episode yet."""
    return EnvironmentFault("step_before_reset", environment=where)


def picture_of(env: Any, copy: int | None = None) -> NDArray[np.uint8] | None:
    """What an environment (or, of a vector of them, its `copy`) renders, if that is a picture [height, width, 3]; None
    for anything else, or where it renders nothing."""
    if not hasattr(env, "render"):
        return None
    try:
        given = env.render()
    except NotImplementedError:
        return None
    if copy is not None and isinstance(given, tuple | list) and copy < len(given):
        given = given[copy]
    if isinstance(given, np.ndarray) and given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3:
        return given
    return None


def copy_seeds(seed: int, copies: int) -> list[int]:
    """[E] distinct seeds below 2**31 (some environments take no larger ones), one for each copy, drawn from `seed`."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # An odd stride visits every number once before it repeats one, and keeps neighbours apart.
    every = start + np.arange(copies, dtype=np.uint64) * np.uint64(0x9E3779B1)
    return [int(one) for one in every % np.uint64(2**31)]
