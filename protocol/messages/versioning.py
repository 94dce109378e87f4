"""Which schema two releases speak with each other: each names the range of numbers it speaks, the highest common one
is spoken. This is the one place that chooses.

`join`, `refusal` and `beacon` come before any agreement: they are understood whatever their number, and what is unknown
in them is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import protocol
from protocol.errors import Refused
from protocol.messages.core import Route


class Schemas(NamedTuple):
    """The numbers `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"schema {self.newest}" if self.oldest == self.newest else f"schemas {self.oldest} to {self.newest}"


SPOKEN = Schemas(protocol.OLDEST_SCHEMA, protocol.SCHEMA)
"""What this release speaks."""

OF_TOPICS = 2
"""The schema of the topics: what is published under them goes to whoever listens, and is said in it."""


def agreed(theirs: Schemas) -> int | None:
    """The highest number that this release and a peer speak; None if there is none."""
    newest = min(theirs.newest, SPOKEN.newest)
    return newest if newest >= max(theirs.oldest, SPOKEN.oldest) else None


def disagreement(who: str, theirs: Schemas) -> Refused | None:
    """None if `who` can be spoken with, else why not, and what to do."""
    if agreed(theirs) is not None:
        return None
    return Refused("schemas_differ", peer=who, value=str(theirs), release=protocol.RELEASE, expected=str(SPOKEN))


def spoken_with(route: Route) -> int:
    """The number to send to the learner behind `route` in; Refused if there is none."""
    theirs = Schemas(route.oldest_schema, route.newest_schema)
    if (differs := disagreement(f"the learner {route.learner!r}", theirs)) is not None:
        raise differs
    return min(theirs.newest, SPOKEN.newest)
