"""The headers that come with every step of a simulator, read and checked in one pass, and written as fast.

In flow: a header. Out flow: its message; None for whatever is not plainly one of these and right in all its parts:
codec.py then reads it at length, and says what is wrong if anything is. The other way: fields in, a header out.

The fields and their limits are those of simulator_messages.py once more, for msgspec; a test compares the two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from msgspec.structs import asdict

from protocol import OLDEST_SCHEMA, SCHEMA
from protocol.messages import Message
from protocol.simulator_messages import Act, Observe

__all__ = ["FORMS", "LARGEST", "frequent", "pack"]

LARGEST = 4096
"""Bytes of a header that is read here: it cannot hold more elements than are allowed."""
_KIND = slice(1, 10)
"""Where a header in golden form says of what type it is; two of these types differ there."""
_MOST = sys.float_info.max

_Number = Annotated[int, Meta(ge=OLDEST_SCHEMA, le=SCHEMA)]
_Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_Ordinal = Annotated[int, Meta(ge=1, le=2**63 - 1)]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Finite = Annotated[float, Meta(ge=-_MOST, le=_MOST)]


class _Observe(msgspec.Struct, tag_field="type", tag=Observe.type, forbid_unknown_fields=True):
    schema_number: _Number
    number: _Ordinal
    episode: _Ordinal
    agents: list[_Name]
    rewards: list[_Finite] = []
    elements: list[_Name] = []
    late: _Count = 0
    clock: _Finite = 0.0


class _Act(msgspec.Struct, tag_field="type", tag=Act.type, forbid_unknown_fields=True):
    schema_number: _Number
    answers: _Ordinal
    episode: _Ordinal
    waited: _Finite


def frequent(raw: bytes) -> Message | None:
    """The message that `raw` is the header of, if it is one of these in golden form."""
    read = _READ.get(raw[_KIND])
    return None if read is None or len(raw) > LARGEST else read(raw)


def pack(header: Mapping[str, Any]) -> bytes:
    """Frame 0 of a message of these fields, `type` the first: for who says so much that to make a message of it costs
    more than to send it. Nothing is checked."""
    return _ENCODE(header)


def _plain(value: Any) -> Any:
    """Of a name that is more than a text, and of a number of numpy, what Python has for it."""
    return str(value) if isinstance(value, str) else value.item()


_ENCODE = msgspec.msgpack.Encoder(enc_hook=_plain).encode


def _reader(cls: type[Message], form: type[msgspec.Struct]) -> Callable[[bytes], Message | None]:
    decode, every = msgspec.msgpack.Decoder(form).decode, set(cls.model_fields)
    new, put = cls.__new__, object.__setattr__

    def read(raw: bytes) -> Message | None:
        try:
            fields: dict[str, Any] = asdict(decode(raw))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        message = new(cls)  # as pydantic's `model_construct` makes it, which takes longer than to check it
        put(message, "__dict__", fields)
        put(message, "__pydantic_fields_set__", every)
        put(message, "__pydantic_extra__", None)
        put(message, "__pydantic_private__", None)
        return message

    return read


FORMS: dict[type[Message], type[msgspec.Struct]] = {Observe: _Observe, Act: _Act}
_READ = {msgspec.msgpack.encode({"type": cls.type})[_KIND]: _reader(cls, form) for cls, form in FORMS.items()}
