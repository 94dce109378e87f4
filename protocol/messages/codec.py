"""Message <-> frames: a strict msgpack header, then raw array frames. Nothing is ever unpickled or evaluated.

Wire form of frame 0: the map {"type": str, "schema_number": int, ...fields}. Sizes, lengths, depth and the number of
elements are checked before anything is looked at, so that a hostile header costs little more than its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import zmq
from pydantic import ValidationError

from protocol.errors import WireError
from protocol.messages import core, simulator, versioning
from protocol.messages.core import Message
from protocol.messages.fast_path import LARGEST

MAX_HEADER = 4 * 2**20
"""Largest header in bytes."""
MAX_TEXT = 2**21
"""Largest text in bytes."""
MAX_ELEMENTS = 2**16
"""Most elements of all lists and maps of a header together, keys not counted."""
MAX_DEPTH = 12
"""Deepest nesting of lists and maps, the header's own map being the first."""

FIRST = 5
"""Keys of a header that `first_keys` reads."""
_PREFIX = 2048
"""Bytes that these lie in: three names of 128 characters, and numbers."""
_QUOTED = 80
"""Characters of a stranger's text that an error repeats."""
_TOO_MANY = 100
"""Faults of a header that are not listed any more to name the first."""
_LIMITS: dict[str, Any] = {
    "max_str_len": MAX_TEXT,
    "max_bin_len": 0,
    "max_ext_len": 0,
    "max_array_len": MAX_ELEMENTS,
    "max_map_len": MAX_ELEMENTS // 4,
}
_NAMES = {
    "max_str_len": "bytes of one text",
    "max_bin_len": "bytes of binary data",
    "max_ext_len": "bytes of an extension type",
    "max_array_len": "elements",
    "max_map_len": "keys of one map",
}
_CONTAINERS = (dict, list)

_CLASSES: dict[str, tuple[type[Message], Callable[[Any], Any], frozenset[str] | None]] = {
    cls.type: (cls, cls.__pydantic_validator__.validate_python, frozenset(cls.model_fields) if cls.stable else None)
    for module in (core, simulator)
    for cls in vars(module).values()
    if isinstance(cls, type) and issubclass(cls, Message) and cls is not Message
}
"""type -> class, validator and, where what is unknown is ignored, the fields that are known."""

_OWN = threading.local()
Frame = bytes | memoryview | zmq.Frame


def encode(message: Message) -> bytes:
    """Frame 0 of `message`."""
    packer = getattr(_OWN, "packer", None)
    if packer is None:  # to make one takes longer than to use it, and each is one thread's
        packer = _OWN.packer = msgpack.Packer(default=vars)
    fields = vars(message)
    if message.omitted:
        fields = {name: value for name, value in fields.items() if value or name not in message.omitted}
    return bytes(packer.pack({"type": message.type, **fields}))


def packed(number: int) -> bytes:
    """A number as it stands in a header."""
    return bytes(msgpack.packb(number))


def around(message: Message, name: str) -> tuple[bytes, bytes]:
    """Frame 0 of `message` before and behind its number `name`: who says it often encodes that number alone."""
    zero, one = (encode(message.model_copy(update={name: number})) for number in (0, 1))
    at = next(i for i, (a, b) in enumerate(zip(zero, one, strict=True)) if a != b)
    return zero[:at], zero[at + 1 :]


def decode(frames: Sequence[Any]) -> tuple[Message, Sequence[Any]]:
    """The message in frame 0 and the raw frames after it; WireError, in one sentence, for anything else."""
    if not frames:
        raise WireError("message_empty")
    first = frames[0]
    fields = _unpack(first.buffer if isinstance(first, zmq.Frame) else first)
    kind = fields.pop("type", None)
    found = _CLASSES.get(kind) if kind.__class__ is str else None
    if found is None:
        _check_number(fields)
        raise WireError("message_type_unknown")
    cls, validate, known = found
    if known is None:
        _check_number(fields)
    elif not fields.keys() <= known:
        fields = {key: value for key, value in fields.items() if key in known}
    try:
        message = validate(fields)
    except ValidationError as fault:
        raise WireError("message_field_invalid", message=cls.type, **_complaint(fault)) from None
    if not cls.arrays and len(frames) > 1:
        raise WireError("message_frames_unexpected", message=cls.type, count=len(frames) - 1)
    return message, frames[1:]


def first_keys(raw: bytes | memoryview) -> dict[str, Any]:
    """What a header says first: texts and whole numbers of its first `FIRST` keys, as far as they lie in its first
    2 KiB. Nothing behind these is looked at; what is no msgpack has none."""
    unpacker = msgpack.Unpacker(max_buffer_size=_PREFIX, max_bin_len=0, max_ext_len=0)
    unpacker.feed(raw[:_PREFIX])
    found: dict[str, Any] = {}
    try:
        for _ in range(min(FIRST, unpacker.read_map_header())):
            key = unpacker.unpack()
            value = unpacker.unpack()
            if key.__class__ is str and value.__class__ in (str, int):
                found[key] = value
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError):
        pass  # whoever reads all of it says what is wrong
    return found


def _check_number(fields: dict[str, Any]) -> None:
    number, (oldest, newest) = fields.get("schema_number"), versioning.SPOKEN
    if number.__class__ is not int or not oldest <= number <= newest:
        raise WireError("message_schema_unknown", value=repr(number)[:_QUOTED], choices=str(versioning.SPOKEN))


def _unpack(raw: bytes | memoryview) -> dict[str, Any]:
    """The header's map; WireError where it breaks a limit."""
    if len(raw) > MAX_HEADER:
        raise WireError("header_too_large", count=len(raw), limit=MAX_HEADER)
    try:
        if len(raw) <= LARGEST:
            fields = msgpack.unpackb(raw, max_bin_len=0, max_ext_len=0)
        else:
            count = _counter()
            fields = msgpack.unpackb(raw, object_hook=count, list_hook=count, **_LIMITS)
    except (ValueError, msgpack.exceptions.UnpackException, RecursionError) as fault:
        beyond = next((limit for limit in _LIMITS if limit in str(fault)), None)
        if beyond is not None:
            raise WireError("header_beyond_limit", what=_NAMES[beyond], limit=_LIMITS[beyond]) from None
        raise WireError("header_not_msgpack", reason=type(fault).__name__) from None
    if not isinstance(fields, dict):
        raise WireError("header_not_map")
    level = [value for value in fields.values() if value.__class__ in _CONTAINERS]
    depth = 1
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise WireError("header_too_deep", limit=MAX_DEPTH)
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if inner.__class__ in _CONTAINERS
        ]
    return fields


def _counter() -> Callable[[Any], Any]:
    """A hook for each finished list or map that ends the unpacking when there are too many elements."""
    seen = 0

    def count(container: Any) -> Any:
        nonlocal seen
        seen += len(container) + 1
        if seen > MAX_ELEMENTS:
            raise WireError("header_beyond_limit", what="elements", limit=MAX_ELEMENTS)
        return container

    return count


def _complaint(fault: ValidationError) -> dict[str, str]:
    """Which field is wrong and what is wrong with it, in the words of the first fault; what is there, and what may be.
    Listing very many would take longer than finding them."""
    if fault.error_count() > _TOO_MANY:
        return {"field": "", "reason": f"with {fault.error_count()} faults; see its fields in protocol/README.md"}
    first = fault.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))[:_QUOTED]
    reason = f"whose {place} is wrong: {first['msg']}; see its fields in protocol/README.md"
    value = str(first["input"])[:_QUOTED] if isinstance(first["input"], str | int | float) else ""
    limit = ", ".join(f"{name} {bound}" for name, bound in first.get("ctx", {}).items())
    return {"field": place, "reason": reason, "value": value, "limit": limit}
