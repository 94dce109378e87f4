"""Who is not listened to for a while: identities that broke the rules too often, and connections that are nobody's.

In flows: faults. Out flow: whether to listen.
"""

from __future__ import annotations

from collections.abc import Callable

STRIKES = 20
"""Faults in a row after which one is quarantined."""
SECONDS = 60.0
PATIENT = 0.5
"""Seconds between two requests to be let in that are none too many: a simulator asks every second."""
_STRANGERS = 1000
"""Connections without a guest whose faults are remembered."""


class Quarantine:
    """Until when, by name and by connection."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._barred: dict[str, float] = {}
        self._strangers: dict[bytes, tuple[int, float]] = {}
        """Connection -> faults, and when the last one was."""

    def block(self, name: str) -> None:
        """This identity is not let in for a while."""
        self._barred = {other: until for other, until in self._barred.items() if until > self._clock()}
        self._barred[name] = self._clock() + SECONDS

    def is_blocked(self, name: str) -> bool:
        """Whether this identity is not let in."""
        return self._barred.get(name, 0.0) > self._clock()

    def strike(self, route: bytes, again: bool = False) -> bool:
        """A fault of a connection that is nobody's; whether it was the last one to be heard. `again`: it may ask again,
        and does nothing wrong if it waits a moment before."""
        now, (faults, last) = self._clock(), self._strangers.get(route, (0, 0.0))
        if len(self._strangers) >= _STRANGERS and route not in self._strangers:
            del self._strangers[next(iter(self._strangers))]  # the one known longest
        counts = not again or now - last < PATIENT
        self._strangers[route] = (faults + counts, now)
        return counts and faults + 1 == STRIKES

    def ignores(self, route: bytes) -> bool:
        """Whether a connection is not listened to."""
        faults, last = self._strangers.get(route, (0, 0.0))
        if faults < STRIKES:
            return False
        if self._clock() < last + SECONDS:
            return True
        del self._strangers[route]
        return False

    def reset(self, route: bytes) -> None:
        """This connection is somebody's now."""
        self._strangers.pop(route, None)
