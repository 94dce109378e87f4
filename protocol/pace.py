"""The pace of an actor in replay whose flow is `drop_oldest`: pure, with time passed in.

The governor of a learner paces its actors by settling late, and as long as the learner is heard of they keep to it: who
has finished a segment and no credit waits. A learner that is stopped or dead says nothing, which nobody else can
tell from one that is busy; so the actor goes on without it, at the pace at which its segments were settled until then,
writing over the oldest. It neither stands still nor runs away with the steps of the run, and a learner that comes back
finds about as many new rows as if it had never been away.

In flows: acknowledgements. Out flow: seconds to wait.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

__all__ = ["Pace"]

_FIRST = 5.0
"""Seconds of silence that are waited for before anything was ever settled."""
_LEAST, _MOST = 0.25, 1.5
"""Seconds of silence that mean nothing on a machine with much to do, and that are too long for an actor to stand still
whatever they mean: at its own pace it does no harm to a learner whose steps take longer. The latter are more than a
beacon takes, by which a learner that seldom settles is heard of."""
_SAMPLES = 64


class Pace:
    """One actor's, of one policy. The unit is a block, as of credit."""

    def __init__(self, now: float) -> None:
        self._heard = self._due = now
        self._settled = 0
        self._course: deque[tuple[float, int]] = deque(maxlen=_SAMPLES)
        """(time, blocks settled until then) of the newest acknowledgements that settled any."""

    def heard(self, now: float, blocks: int) -> None:
        """The learner acknowledged so many more; none where it repeated itself."""
        self._heard = now
        if blocks:
            self._settled += blocks
            self._course.append((now, self._settled))

    def wait(self, now: float) -> float:
        """Seconds to wait for credit before asking again; 0: go on without it."""
        patience = self._patience
        if now - self._heard <= patience:
            return patience
        return max(0.0, self._due - now)

    def went_on(self, now: float) -> None:
        """A block was taken without credit. What was waited in vain is caught up with."""
        self._due = max(self._due + self._interval, now - self._patience)

    @property
    def _interval(self) -> float:
        """Seconds from one block to the next."""
        if len(self._course) < 2:
            return 0.0
        (first, before), (last, settled) = self._course[0], self._course[-1]
        return (last - first) / (settled - before)

    @property
    def _patience(self) -> float:
        """Seconds of silence that have to be expected: twice the longest of late, within bounds."""
        if len(self._course) < 2:
            return _FIRST
        times = [time for time, _ in self._course]
        return min(_MOST, max(_LEAST, 2 * max(later - earlier for earlier, later in pairwise(times))))
