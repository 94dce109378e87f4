"""For how many runs (workers/policies/networks/recurrent.py) a recurrent policy's minibatches have room, where shapes
must not change.

In flows: the segments of the minibatches of an update, and how many episodes end in each. Out flow: runs of a segment
that there is room for. It is chosen by the first batch, with room to spare, and only ever grows, by what this one
policy was given, in whatever company: so its graphs are recorded anew a few times at most, and a branch computes as the
policy alone does.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import isqrt

from torch import Tensor

log = logging.getLogger(__name__)

_SIZES = (1.25, 1.5, 2, 3, 4, 6, 8)
"""With more than 8, less than an eighth of what is computed would be for anything."""
_SPARE = 8
"""Ends that a minibatch may have beside those of the first and four times their square root, by which random counts
vary."""


class RunCapacity:
    """Of one policy."""

    def __init__(self) -> None:
        self.size: float | None = None
        """Runs of a segment, on average over a minibatch; 0: there are too many, and memories are unrolled row by
        row from now on; None: nothing is known yet."""

    def ensure(self, ends: Tensor, parts: Sequence[Tensor]) -> bool:
        """Whether it had to change for minibatches of segments `parts` [b] each, of which each has `ends` [B]; all in
        host memory."""
        if self.size == 0:
            return False
        found = [(len(part), int(ends[part].sum())) for part in parts]
        if self.size is not None and _fit(found, self.size):
            return False
        ample = [(segments, count + 4 * isqrt(count) + _SPARE) for segments, count in found]
        most = _SIZES[-1]
        self.size = next((size for size in _SIZES if _fit(ample, size)), most) if _fit(found, most) else 0
        worst = max(count / segments for segments, count in found)
        way = "in_runs" if self.size else "row_by_row"
        log.info("event=memory_unrolled way=%s room=%g ends_a_segment=%.1f", way, self.size, worst)
        return True

    def runs(self, segments: int) -> int:
        """Of a minibatch; 0: row by row."""
        return int((self.size or 0) * segments)


def _fit(parts: Sequence[tuple[int, int]], size: float) -> bool:
    """Whether `size` runs of a segment are enough for so many segments with so many ends."""
    return all(segments + ends <= size * segments for segments, ends in parts)
