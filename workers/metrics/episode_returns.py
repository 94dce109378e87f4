"""The returns of one policy over a run: episodes in, means over parts of the run, and of the newest, out."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

__all__ = ["PARTS", "RecentReturns", "ReturnsCurve"]

PARTS = 200
"""Equal parts of a run for which returns are told apart."""
_WINDOW = PARTS // 20
"""5 % of the run."""
_NEWEST, _LEAST = 100, 20
"""Episodes that the newest mean is over, and from how many on there is one."""


class ReturnsCurve:
    """The run's `steps` agent steps in 200 equal parts, each with its episodes."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._parts: dict[int, list[float]] = {}
        """part -> [episodes, sum of returns], where any ended."""

    def add(self, at: int, count: int, total_return: float) -> None:
        """`count` episodes ended when the run had made about `at` agent steps."""
        entry = self._parts.setdefault(min(PARTS - 1, at * PARTS // self._steps), [0, 0.0])
        entry[0] += count
        entry[1] += total_return

    @property
    def history(self) -> list[float]:
        """Mean returns in order, of the parts in which episodes ended."""
        return [self._parts[part][1] / self._parts[part][0] for part in sorted(self._parts)]

    def summary(self) -> dict[str, float | None]:
        """Mean return over the first, the last and the best 5 % of the run (of its parts in which episodes ended)."""
        if not self._parts:
            return {"first": None, "last": None, "best": None}
        first, last = min(self._parts), max(self._parts)
        windows = [self._mean(start) for start in range(first, max(first, last - _WINDOW + 1) + 1)]
        return {
            "first": self._mean(first),
            "last": self._mean(last - _WINDOW + 1),
            "best": max(mean for mean in windows if mean is not None),
        }

    def whole(self) -> dict[str, float | None]:
        """`episodes` of the whole run and their `return_mean`."""
        episodes, returns = (sum(entry[k] for entry in self._parts.values()) for k in (0, 1))
        return {"episodes": episodes, "return_mean": returns / episodes if episodes else None}

    def to_plain(self) -> dict[str, list[float]]:
        """For a file."""
        return {str(part): entry for part, entry in self._parts.items()}

    def restore(self, plain: Mapping[str, list[float]]) -> None:
        """Begins with what `to_plain` said."""
        self._parts.update({int(part): entry for part, entry in plain.items()})

    def _mean(self, start: int) -> float | None:
        """Over the window that begins with part `start`; None if no episode ended there."""
        entries = [self._parts[part] for part in range(start, start + _WINDOW) if part in self._parts]
        count = sum(entry[0] for entry in entries)
        return sum(entry[1] for entry in entries) / count if count else None


class RecentReturns:
    """The newest hundred episodes, or as few more as they were told of at once."""

    def __init__(self) -> None:
        self._told: deque[tuple[int, float]] = deque()
        self._count = 0

    def add(self, count: int, total_return: float) -> None:
        """`count` more episodes ended."""
        self._told.append((count, total_return))
        self._count += count
        while self._count - self._told[0][0] >= _NEWEST:
            self._count -= self._told.popleft()[0]

    @property
    def mean(self) -> float | None:
        """None while there are too few."""
        return sum(total for _, total in self._told) / self._count if self._count >= _LEAST else None
