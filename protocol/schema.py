"""Which schema two releases speak with each other: each names the range of numbers it speaks, the highest common one
is spoken. This is the one place that chooses.

`join`, `refusal` and `beacon` come before any agreement: they are understood whatever their number, and what is unknown
in them is ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import protocol

__all__ = ["SPOKEN", "Schemas", "agreed", "disagreement"]


class Schemas(NamedTuple):
    """The numbers `oldest` to `newest`."""

    oldest: int
    newest: int

    def __str__(self) -> str:
        return f"schema {self.newest}" if self.oldest == self.newest else f"schemas {self.oldest} to {self.newest}"


SPOKEN = Schemas(protocol.OLDEST_SCHEMA, protocol.SCHEMA)
"""What this release speaks."""


def agreed(theirs: Schemas) -> int | None:
    """The highest number that this release and a peer speak; None if there is none."""
    newest = min(theirs.newest, SPOKEN.newest)
    return newest if newest >= max(theirs.oldest, SPOKEN.oldest) else None


def disagreement(who: str, release: str, theirs: Schemas) -> str:
    """Why `who`, of `release`, cannot be spoken with, and what to do."""
    return (
        f"{who} is of release {release} and speaks {theirs}, this one is of release {protocol.RELEASE} and speaks "
        f"{SPOKEN}; install the same release, or the one before or after it, on both"
    )
