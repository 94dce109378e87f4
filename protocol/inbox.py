"""Headers of segments as they wait in a socket: opened, and those of one way put together.

In flow: the frames of messages. Out flow: headers, and piles of messages that may be checked and taken as one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgpack
import zmq

from protocol.codec import around, decode, packed
from protocol.errors import WireError
from protocol.messages import Segments
from protocol.ring import RECORD

__all__ = ["Opener", "Pile"]

_AFTER = b"\xa5after"
_MOST_KNOWN = 4096
"""Headers that are remembered: more than actors that one learner has."""
_LARGEST = 4096
"""Bytes of a header that is worth remembering."""


class Opener:
    """Decodes headers. From one message of an actor to its next only `after` differs: of a header that is, byte for
    byte, one that was decoded and checked before but for that number, the number alone is decoded."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Segments, bytes]] = {}
        """What comes before the number -> the header and what comes behind it."""

    def open(self, frames: list[zmq.Frame]) -> tuple[Segments, int]:
        """The header and its own `after`: that in a remembered header is another message's. WireError for anything
        else."""
        raw = frames[0].bytes
        cut = raw.find(_AFTER) + len(_AFTER)
        known = self._known.get(raw[:cut])
        if known is not None and raw.endswith(known[1]):
            after = _count(raw[cut : len(raw) - len(known[1])])
            if after is not None:
                return known[0], after
        header, _ = decode(frames)
        if not isinstance(header, Segments):
            raise WireError("message_not_segments", message=header.type)
        if len(raw) <= _LARGEST and (header.common is None or not header.inline):
            self._remember(raw, header)
        return header, header.after

    def _remember(self, raw: bytes, header: Segments) -> None:
        """If it is what this release sends: then the bytes around the number are the same in the actor's next one."""
        start, rest = around(header, "after")
        if raw != start + packed(header.after) + rest:
            return
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[start] = (header, rest)


@dataclass(slots=True)
class Pile:
    """Messages about one actor's ring that came one behind the other, of one header but for `after`."""

    header: Segments
    afters: list[int] = field(default_factory=list)
    messages: list[list[zmq.Frame]] = field(default_factory=list)

    def add(self, after: int, frames: list[zmq.Frame]) -> None:
        """One more, the newest."""
        self.afters.append(after)
        self.messages.append(frames)

    def records(self) -> Any:
        """The records of all of them, one behind the other; WireError unless each message has as many as it says."""
        frames = [records_frame(frames) for frames in self.messages]
        if len(frames) == 1:
            return frames[0]
        expected = self.header.count * RECORD.itemsize
        if any(len(frame) != expected for frame in frames):
            raise WireError("record_frames_wrong_size", expected=expected, size=RECORD.itemsize)
        return b"".join(frames)


def records_frame(frames: list[zmq.Frame]) -> Any:
    """The records, the one frame behind a header of segments in memory."""
    if len(frames) != 2:
        raise WireError("record_frames_miscounted", count=len(frames) - 1)
    return frames[1].buffer


def _count(packed: bytes) -> int | None:
    """The count that is all of `packed`, or None."""
    try:
        number = msgpack.unpackb(packed)
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    return number if number.__class__ is int and 0 <= number < 2**63 else None
