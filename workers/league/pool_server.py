"""What the coordinator answers an actor that asks for a part of a library's file. Without torch.

In flows: the request of a member, what the library holds. Out flow: the answer and its frames. Files never change, so
that parts asked for one after another are of one file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from protocol.control.server import refusal
from protocol.errors import Refused
from protocol.messages.core import Refusal
from protocol.messages.file_fetch import PART_BYTES, Fetch, Part
from workers.league import policy_pool


def serve_chunk(folder: Path, members: Mapping[str, str], wanted: Fetch) -> tuple[Refusal] | tuple[Part, bytes]:
    """`members`: name -> checksum of all of the library in the run's `folder`."""
    if members.get(wanted.member) != wanted.checksum:
        facts = {"member": wanted.member, "checksum": wanted.checksum, "choices": [*members] or ["none yet"]}
        missing = Refused("library_member_missing", **facts)
        return (refusal(missing, retry=not members),)  # a coordinator that has just come back looks within a second
    policy, _, number = wanted.member.partition("/")
    path = policy_pool.PoolEntry(policy, int(number), wanted.checksum).path(folder)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(min(wanted.offset, size))
            frame = file.read(PART_BYTES)
    except OSError as fault:
        return (refusal(Refused("library_file_unreadable", file=path, reason=fault.strerror)),)
    return Part(member=wanted.member, checksum=wanted.checksum, offset=wanted.offset, size=size), frame
