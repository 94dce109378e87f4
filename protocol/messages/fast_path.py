"""The headers that come with every step of a simulator, read and checked in one pass, and written as fast.

In flow: a header. Out flow: its fields; None for whatever is not plainly one of these and right in all its parts:
codec.py then reads it at length, and says what is wrong if anything is. The other way: fields in, a header out.

The fields and their limits are those of simulator.py once more, for msgspec; a test compares the two. Of the
messages there none is made: that takes longer than to read and check them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from protocol import OLDEST_SCHEMA, SCHEMA
from protocol.messages.core import Message
from protocol.messages.simulator import Act, Observe

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


class ObserveHeader(msgspec.Struct, tag_field="type", tag=Observe.type, forbid_unknown_fields=True):
    """An `observe`, with its fields."""

    schema_number: _Number
    number: _Ordinal
    episode: _Ordinal
    agents: list[_Name]
    rewards: list[_Finite] = []
    elements: list[_Name] = []
    late: _Count = 0
    clock: _Finite = 0.0


class ActHeader(msgspec.Struct, tag_field="type", tag=Act.type, forbid_unknown_fields=True):
    """An `act`, with its fields."""

    schema_number: _Number
    answers: _Ordinal
    episode: _Ordinal
    waited: _Finite


def frequent(raw: bytes) -> ObserveHeader | ActHeader | None:
    """What `raw` says, if it is the header of one of these in golden form."""
    read = _READ.get(raw[_KIND])
    if read is None or len(raw) > LARGEST:
        return None
    try:
        return read(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def pack(said: ObserveHeader | ActHeader) -> bytes:
    """Its header: for who says so much that to make a message of it costs more than to send it. Nothing is checked."""
    return _ENCODE(said)


def _plain(value: Any) -> Any:
    """Of a name that is more than a text, and of a number of numpy, what Python has for it."""
    return str(value) if isinstance(value, str) else value.item()


_ENCODE = msgspec.msgpack.Encoder(enc_hook=_plain).encode


FORMS: dict[type[Message], type[ObserveHeader] | type[ActHeader]] = {Observe: ObserveHeader, Act: ActHeader}
_READ = {
    msgspec.msgpack.encode({"type": cls.type})[_KIND]: msgspec.msgpack.Decoder(form).decode
    for cls, form in FORMS.items()
}
