"""The messages by which members of a league's library reach actors that do not see the run's folder.

The tables of protocol/README.md say the same for those who do not read Python; a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from protocol.messages.core import Count, Incarnation, Label, Message, Name

PART_BYTES = 2**20
"""Most bytes of a part."""
Checksum = Annotated[str, Field(max_length=32, pattern=r"^[0-9a-f]{32}$")]
"""blake2b of a whole file, 16 bytes in hex."""


class Fetch(Message):
    """actor or learner -> coordinator, over a connection of its own: the bytes of a member from `offset` on."""

    type: ClassVar[str] = "fetch"
    name: Label
    """Of the worker, as in its heartbeats; so `token` and `incarnation`."""
    token: Name
    incarnation: Incarnation
    member: Name
    checksum: Checksum
    offset: Count


class Part(Message):
    """coordinator -> actor or learner, answering a `fetch`. Frame 1: bytes of the member's file from `offset` on."""

    type: ClassVar[str] = "part"
    arrays: ClassVar[bool] = True
    member: Name
    checksum: Checksum
    offset: Count
    size: Count
    """Of the whole file."""
