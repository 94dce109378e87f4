"""What is read in one pass is what reading at length makes of it, and nothing else is."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import asdict

from protocol import SCHEMA
from protocol.errors import WireError
from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.messages.fast_path import FORMS, ObserveHeader, frequent, pack
from protocol.messages.simulator import Act, Observe
from tests.protocol.strategies import message

EXAMPLES: list[Message] = [
    Observe(number=1, episode=2**40, agents=["gem", "walker"], rewards=[0.5, -1.0], elements=["grip"], clock=2.5),
    Act(answers=3, episode=1, waited=0.001),
]
_ODD: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        1,
        2**63,
        2**64 - 1,
        1.0,
        math.nan,
        math.inf,
        "",
        "x" * 129,
        b"x",
        [],
        [1],
        [True],
        [""],
        {},
        "gem",
    ]
)
"""What is right in some fields and wrong in others."""


def _packed(fields: dict[str, Any]) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def _at_length(raw: bytes) -> Message | None:
    """What is made of a header that is not read in one pass; None where it is refused."""
    try:
        return decode([zmq.Frame(raw)])[0]
    except WireError:
        return None


@given(st.one_of(message(Observe), message(Act)))
@settings(max_examples=60, deadline=None)
def test_whatever_is_right_comes_out_as_it_went_in(said: Message) -> None:
    raw = encode(said)
    heard = frequent(raw)
    assert heard is not None
    assert asdict(heard) == vars(said)
    assert _at_length(raw) == said
    assert pack(heard) == raw


@given(st.sampled_from(EXAMPLES), st.data())
@settings(max_examples=150, deadline=None)
def test_what_is_taken_in_is_never_what_reading_at_length_would_refuse(said: Message, data: st.DataObject) -> None:
    fields: dict[str, Any] = msgpack.unpackb(encode(said))
    names = st.sampled_from([*fields, "strange"])
    fields |= data.draw(st.dictionaries(names.filter(lambda name: name != "type"), _ODD, max_size=2))
    for name in data.draw(st.lists(names, max_size=2)):
        fields.pop(name, None)
    raw = _packed(fields) + data.draw(st.sampled_from([b"", b"", b"\xc0"]))
    heard = frequent(raw)
    if heard is not None:
        read = _at_length(raw)
        assert read is not None
        assert asdict(heard) == vars(read)


@pytest.mark.parametrize("said", EXAMPLES, ids=lambda said: said.type)
def test_whatever_is_wrong_or_in_another_form_is_left_to_reading_at_length(said: Message) -> None:
    fields: dict[str, Any] = msgpack.unpackb(encode(said))
    backwards = dict(reversed(fields.items()))
    numbers = [{**fields, "schema_number": number} for number in (0, SCHEMA + 1, 1.0, True)]
    strange = {**fields, "strange": 1}
    endless = [
        {**fields, name: [value] if isinstance(fields[name], list) else value}
        for name in ("rewards", "clock", "waited")
        for value in (math.nan, math.inf, -math.inf)
        if name in fields
    ]
    raws = [encode(said)[:-1], encode(said) + b"\x00", *map(_packed, (backwards, strange, *numbers, *endless))]
    assert [frequent(raw) for raw in raws] == [None] * len(raws)
    assert decode([_packed(backwards)])[0] == said


@pytest.mark.parametrize("cls", FORMS, ids=lambda cls: cls.type)
def test_both_ways_know_the_same_fields_and_defaults(cls: type[Message]) -> None:
    known = {field.name: field for field in msgspec.structs.fields(FORMS[cls])}
    assert list(known) == list(cls.model_fields)
    for name, field in cls.model_fields.items():
        optional = not field.is_required() and name != "schema_number"
        assert known[name].required == (not optional)
        if optional:
            default = known[name].default_factory() if known[name].default is msgspec.NODEFAULT else known[name].default
            assert default == field.get_default(call_default_factory=True)


class Agent(str):
    """A name that is more than a text."""


def test_names_and_numbers_of_numpy_are_said_as_pythons() -> None:
    names: list[str] = [np.str_("gem"), Agent("walker")]
    rewards: Any = [np.float64(0.5), np.float32(2.0)]
    late: Any = np.int64(300)
    said = msgpack.unpackb(pack(ObserveHeader(SCHEMA, 1, 1, names, rewards, [], late)))
    assert (said["agents"], said["rewards"], said["late"]) == (["gem", "walker"], [0.5, 2.0], 300)
