"""The order of weights: (incarnation, version), packed into one unsigned 64-bit word that compares in that order.

`version` counts a policy's publications and goes on across incarnations; `incarnation` grows when its learner restarts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BITS = 40
_MASK = (1 << _BITS) - 1


class Version(NamedTuple):
    """Which weights; tuples compare in order of age."""

    incarnation: int
    version: int


NOTHING = Version(0, 0)
"""Before the first publication."""


def pack(version: Version) -> int:
    """One word: incarnation in the upper 24 bits, version in the lower 40; ValueError if one does not fit."""
    if not (0 <= version.incarnation < 1 << 24 and 0 <= version.version <= _MASK):
        raise ValueError(f"{version} does not fit into 24 + 40 bits")
    return version.incarnation << _BITS | version.version


def unpack(word: int) -> Version:
    """The inverse of `pack`."""
    return Version(word >> _BITS, word & _MASK)


def lag(now: Version, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Publications between each packed version in `words` and `now`, of the same shape as `words`."""
    return now.version - (words & np.uint64(_MASK)).astype(np.int64)
