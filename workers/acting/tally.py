"""Returns of episodes as they end.

In flows: rewards and ends of streams. Out flow: how many episodes ended, and the sum of their returns.
Legend: `E` streams.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workers.acting.block import Index

__all__ = ["Tally"]


class Tally:
    """Of `streams` streams."""

    def __init__(self, streams: int) -> None:
        self._returns = np.zeros(streams)
        self._everyone: NDArray[np.int64] = np.arange(streams)
        self._episodes, self._sum = 0, 0.0
        self.ended: NDArray[np.uint32] = np.zeros(streams, np.uint32)
        """[E]: episodes of each stream that have ended so far."""

    def add(self, streams: Index, reward: NDArray[np.float32], done: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Enters rewards; the streams whose episode ended with them."""
        self._returns[streams] += reward
        if not np.count_nonzero(done):  # a tenth of what `any` takes
            return self._everyone[:0]
        ended = self._everyone[streams][done]
        self._episodes += len(ended)
        self.ended[ended] += np.uint32(1)
        self._sum += float(self._returns[ended].sum())
        self._returns[ended] = 0.0
        return ended

    def take(self) -> tuple[int, float]:
        """(episodes, sum of their returns) since the last call."""
        taken = (self._episodes, self._sum)
        self._episodes, self._sum = 0, 0.0
        return taken
