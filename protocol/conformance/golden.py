"""The golden messages of a simulator's session, and other forms of the same values.

Out flow: frames.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from protocol.messages.core import Message

GOLDEN = Path(__file__).parent.parent / "golden"
"""The folder of golden vectors, one JSON file each."""


def golden(name: str) -> list[bytes]:
    """The frames of a golden message."""
    return [bytes.fromhex(frame) for frame in json.loads((GOLDEN / f"{name}.json").read_text())["frames"]]


def wide(message: Message, **more: str) -> bytes:
    """Frame 0 of `message`, and of fields that nobody knows, in the longest msgpack form of each value, `type` last."""
    return _wide({**message.model_dump(mode="json"), **more, "type": message.type})


def _wide(value: Any) -> bytes:
    match value:
        case bool():
            return b"\xc3" if value else b"\xc2"
        case int():
            return struct.pack(">Bq", 0xD3, value)
        case float():
            return struct.pack(">Bd", 0xCB, value)
        case str():
            return struct.pack(">BI", 0xDB, len(value.encode())) + value.encode()
        case list():
            return struct.pack(">BI", 0xDD, len(value)) + b"".join(map(_wide, value))
        case dict():
            pairs = b"".join(_wide(key) + _wide(one) for key, one in value.items())
            return struct.pack(">BI", 0xDF, len(value)) + pairs
    raise TypeError(f"no header holds a {type(value).__name__}")
