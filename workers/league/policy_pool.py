"""The library of a league: a folder in the run's with an immutable file for each frozen policy. Without torch.

    library/POLICY/NUMBER-CHECKSUM.safetensors

In flow: the bytes of an exported policy. Out flows: files, each put in place whole and never written again; whoever
reads one checks that its bytes are those that its name tells (blake2b, 16 bytes in hex). Who does not see the run's
folder asks the coordinator for them part by part.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from protocol.control.server import refusal
from protocol.errors import ConfigurationError, Refused
from protocol.messages.core import PART_BYTES, Fetch, Part, Refusal

FOLDER = "library"
_NAME = re.compile(r"(\d{1,6})-([0-9a-f]{32})\.safetensors")


@dataclass(frozen=True, slots=True)
class PoolEntry:
    """One member."""

    policy: str
    number: int
    checksum: str

    @property
    def name(self) -> str:
        """As the league calls it."""
        return f"{self.policy}/{self.number}"

    def path(self, folder: Path) -> Path:
        """Where it lies below the run's `folder`."""
        return folder / FOLDER / self.policy / f"{self.number}-{self.checksum}.safetensors"


def checksum(data: bytes) -> str:
    """Of the whole file."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def add(folder: Path, policy: str, number: int, data: bytes) -> PoolEntry:
    """Puts a member in place, once it is on the disk."""
    entry = PoolEntry(policy, number, checksum(data))
    path = entry.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}")
    aside.unlink(missing_ok=True)  # of one who died: it is not for writing
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(aside, path)
    return entry


def entries(folder: Path, policy: str) -> list[PoolEntry]:
    """The members of `policy`, oldest first."""
    place = folder / FOLDER / policy
    if not place.is_dir():
        return []
    names = (_NAME.fullmatch(name) for name in os.listdir(place))
    found = {int(match[1]): match[2] for match in names if match is not None}
    return [PoolEntry(policy, number, found[number]) for number in sorted(found)]


def verify(entry: PoolEntry, data: bytes) -> bytes:
    """`data`, if it is the member's; ConfigurationError otherwise."""
    found = checksum(data)
    if found != entry.checksum:
        raise ConfigurationError("library_checksum_differs", peer=entry.name, expected=entry.checksum, value=found)
    return data


def serve_chunk(folder: Path, members: Mapping[str, str], wanted: Fetch) -> tuple[Refusal] | tuple[Part, bytes]:
    """`members`: name -> checksum of all of the library in the run's `folder`."""
    if members.get(wanted.member) != wanted.checksum:
        facts = {"member": wanted.member, "checksum": wanted.checksum, "choices": [*members] or ["none yet"]}
        missing = Refused("library_member_missing", **facts)
        return (refusal(missing, retry=not members),)  # a coordinator that has just come back looks within a second
    policy, _, number = wanted.member.partition("/")
    path = PoolEntry(policy, int(number), wanted.checksum).path(folder)
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(min(wanted.offset, size))
            frame = file.read(PART_BYTES)
    except OSError as fault:
        return (refusal(Refused("library_file_unreadable", file=path, reason=fault.strerror)),)
    return Part(member=wanted.member, checksum=wanted.checksum, offset=wanted.offset, size=size), frame
