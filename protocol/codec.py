"""Message <-> frames: a strict msgpack header, then raw array frames. Nothing is ever unpickled or evaluated.

Wire form of frame 0: the map {"type": str, ...fields}. Sizes, depth and types are checked before anything is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgpack
import zmq
from pydantic import ValidationError

from protocol import SCHEMA, messages
from protocol.errors import WireError
from protocol.messages import Message

__all__ = ["MAX_HEADER", "decode", "encode"]

MAX_HEADER = 4 * 2**20
"""Largest header in bytes."""

_QUOTED = 80
"""Characters of a stranger's text that an error repeats."""

_CLASSES: dict[str, type[Message]] = {
    cls.type: cls
    for name in messages.__all__
    if isinstance(cls := getattr(messages, name), type) and hasattr(cls, "type")
}

Frame = bytes | memoryview | zmq.Frame


def encode(message: Message) -> bytes:
    """Frame 0 of `message`."""
    return bytes(msgpack.packb({"type": message.type, **message.model_dump()}, use_bin_type=True))


def decode(frames: Sequence[Any]) -> tuple[Message, Sequence[Any]]:
    """The message in frame 0 and the raw frames after it; WireError, in one sentence, for anything else."""
    if not frames:
        raise WireError("a message without frames; send a header first")
    raw = frames[0].buffer if isinstance(frames[0], zmq.Frame) else frames[0]
    if len(raw) > MAX_HEADER:
        raise WireError(f"a header of {len(raw)} bytes; at most {MAX_HEADER} are allowed")
    try:
        fields = msgpack.unpackb(raw, raw=False, strict_map_key=True, use_list=True)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as fault:
        raise WireError(f"a header that is no msgpack ({type(fault).__name__}); see protocol/README.md") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise WireError("a header that is no map with a type; see protocol/README.md")
    number = fields.get("schema_number")
    if number != SCHEMA:
        raise WireError(
            f"a message of schema {repr(number)[:_QUOTED]}, this release speaks {SCHEMA}; "
            "run the same release everywhere"
        )
    cls = _CLASSES.get(fields.pop("type"))
    if cls is None:
        raise WireError("a message of unknown type; run the same release everywhere")
    try:
        message = cls.model_validate(_tuples(fields))
    except ValidationError as fault:
        first = fault.errors()[0]
        place = ".".join(map(str, first["loc"]))[:_QUOTED]
        raise WireError(f"a {cls.type} message whose {place} is wrong: {first['msg']}") from None
    if not cls.arrays and len(frames) > 1:
        raise WireError(f"a {cls.type} message with {len(frames) - 1} frames too many")
    return message, frames[1:]


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """msgpack knows only lists; the strict models want tuples in these places."""
    for key in ("episodes", "actors"):
        if isinstance(fields.get(key), list):
            fields[key] = [tuple(entry) if isinstance(entry, list) else entry for entry in fields[key]]
    return fields
