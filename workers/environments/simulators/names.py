"""What an actor remembers of identities that were let in: which copy was theirs, and how often they came.

In flow: names. Out flows: copies, incarnations.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

__all__ = ["Names"]

_MOST_NAMES = 10_000
"""Identities of which it is remembered how often they were let in."""


class Names:
    """Of a world in `copies` copies."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._incarnations: dict[str, int] = {}
        self._home: dict[str, int] = {}
        """The copy that an identity had last."""

    def incarnation_of(self, name: str) -> int:
        """How often it has been let in, this time included; the one that came longest ago is forgotten."""
        times = self._incarnations.pop(name, 0) + 1
        if len(self._incarnations) >= _MOST_NAMES:
            del self._incarnations[next(iter(self._incarnations))]
        self._incarnations[name] = times
        return times

    def copy_for(self, name: str, taken: AbstractSet[int]) -> int:
        """Where it was before, if nobody is there; else where nobody has been, or is. Not all are taken."""
        home = self._home.get(name)
        if home is None or home in taken:
            free = [copy for copy in range(self._copies) if copy not in taken]
            known = set(self._home.values())
            home = next((copy for copy in free if copy not in known), free[0])
            self._home = {other: copy for other, copy in self._home.items() if copy != home}
        self._home[name] = home
        return home
