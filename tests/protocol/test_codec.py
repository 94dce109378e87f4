"""Messages survive the wire, and whatever else comes over it is refused with a WireError and nothing worse."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import msgpack
import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol import SCHEMA, messages
from protocol.codec import MAX_HEADER, decode, encode
from protocol.errors import WireError
from protocol.messages import (
    Ack,
    Beacon,
    Beat,
    Error,
    Join,
    Leave,
    Message,
    Pulse,
    Refusal,
    Route,
    Segments,
    Weights,
    Welcome,
)

COUNT = st.integers(0, 2**63 - 1)
NAME = st.text(min_size=1, max_size=128).filter(lambda text: text.isprintable())
LABEL = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
TEXT = st.text(max_size=300)
FLOAT = st.floats(allow_nan=False)
NUMBERS = st.dictionaries(NAME, FLOAT, max_size=4)
EPISODES = st.lists(st.tuples(NAME, COUNT, COUNT, FLOAT), max_size=4)
ROUTES = st.lists(
    st.builds(
        Route,
        policy=LABEL,
        learner=LABEL,
        incarnation=COUNT,
        experience=NAME,
        weights=NAME,
        acknowledgements=NAME,
    ),
    max_size=3,
)
VIEW = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | FLOAT | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
IDENTITY = {"name": NAME, "token": NAME, "incarnation": COUNT}
LAST = {"counters": NUMBERS, "metrics": NUMBERS, "episodes": EPISODES}
ROLE = st.sampled_from(["actor", "learner", "supervisor", "observer"])
MESSAGES: dict[type[Message], dict[str, st.SearchStrategy[Any]]] = {
    Segments: {
        "run": NAME,
        "actor": LABEL,
        "incarnation": st.integers(1, 2**63 - 1),
        "policy": LABEL,
        "layout": NAME,
        "count": st.integers(1, 2**32 - 1),
        "inline": st.booleans(),
        "ring": TEXT,
        "nonce": st.text(max_size=64),
        "resent": st.booleans(),
    },
    Ack: {
        "policy": LABEL,
        "learner_incarnation": COUNT,
        "actor": LABEL,
        "incarnation": COUNT,
        "settled": COUNT,
        "announced": COUNT,
    },
    Beacon: {
        "policy": LABEL,
        "incarnation": COUNT,
        "version": COUNT,
        "manifest": NAME,
        "nbytes": COUNT,
        "mailbox": TEXT,
        "nonce": COUNT,
    },
    Weights: {"policy": LABEL, "incarnation": COUNT, "version": COUNT, "manifest": NAME, "crc": COUNT},
    Join: {
        "role": ROLE,
        "name": st.just("") | LABEL,
        "token": NAME,
        "release": NAME,
        "host": NAME,
        "pid": COUNT,
        "incarnation": COUNT,
        "world": TEXT,
        "routes": ROUTES,
    },
    Welcome: {
        "run": NAME,
        "name": LABEL,
        "incarnation": COUNT,
        "config": TEXT,
        "world": TEXT,
        "run_dir": TEXT,
        "policies": st.lists(LABEL, max_size=3),
        "index": COUNT,
        "quota": COUNT,
        "lease": FLOAT,
        "beat": FLOAT,
        "learners": COUNT,
        "actors": COUNT,
    },
    Refusal: {"reason": TEXT, "retry": st.booleans()},
    Beat: {**IDENTITY, "state": NAME, "routes": ROUTES, **LAST},
    Pulse: {
        "command": st.sampled_from(["go", "drain", "stop", "rejoin"]),
        "routes": ROUTES,
        "actors": st.lists(st.tuples(NAME, COUNT), max_size=3),
        "quota": COUNT,
        "view": st.dictionaries(TEXT, VIEW, max_size=3),
    },
    Leave: {**IDENTITY, **LAST, "error": TEXT},
    Error: {**IDENTITY, "message": TEXT},
}
"""Every message class and what its fields may hold."""

_EXAMPLES: dict[type[Message], dict[str, Any]] = {
    Segments: {"run": "r", "actor": "a", "incarnation": 1, "policy": "p", "layout": "l", "count": 2, "inline": True},
    Join: {"role": "actor", "token": "t", "release": "0", "host": "h", "pid": 1},
    Beat: {
        "name": "a",
        "token": "t",
        "incarnation": 1,
        "state": "acting",
        "metrics": {"m": 1.5},
        "episodes": [("p", 1, 1, 2.0)],
    },
    Pulse: {"command": "go", "actors": [("a", 1)], "view": {"deep": [{"x": None}]}},
}
EXAMPLES = [cls(**fields) for cls, fields in _EXAMPLES.items()]


def _any_message() -> st.SearchStrategy[Message]:
    return st.one_of(*(st.builds(cls, **fields) for cls, fields in MESSAGES.items()))


def _packed(fields: object) -> bytes:
    return bytes(msgpack.packb(fields, use_bin_type=True))


def _fields(message: Message, **changes: object) -> dict[str, Any]:
    fields: dict[str, Any] = msgpack.unpackb(encode(message))
    fields.update(changes)
    return {key: value for key, value in fields.items() if value != "gone"}


def test_every_message_class_is_tried() -> None:
    classes = {getattr(messages, name) for name in messages.__all__} - {Message, Route}
    assert set(MESSAGES) == classes
    for cls, fields in MESSAGES.items():
        assert set(fields) == set(cls.model_fields) - {"schema_number"}


@given(_any_message())
@settings(max_examples=300, deadline=None)
def test_Z4_a_message_comes_out_as_it_went_in(message: Message) -> None:
    """Z4: a header, and for some raw buffers after it, which are handed on untouched."""
    raw = encode(message)
    assert decode([raw]) == (message, [])
    frame = zmq.Frame(raw)
    assert decode([frame])[0] == message
    if message.arrays:
        body = np.arange(5).tobytes()
        again, rest = decode([raw, body])
        assert again == message
        assert rest[0] is body
    else:
        with pytest.raises(WireError, match="1 frames too many"):
            decode([raw, b""])


HOSTILE: dict[str, list[bytes]] = {
    "nothing": [],
    "empty header": [b""],
    "garbage": [b"\xc1\xff\x00garbage"],
    "pickle": [b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00."],
    "a number": [b"\x05"],
    "nil": [b"\xc0"],
    "a list": [_packed([1, 2])],
    "map without type": [_packed({"schema_number": SCHEMA})],
    "type is a number": [_packed({"type": 5, "schema_number": SCHEMA})],
    "type is a list": [_packed({"type": [], "schema_number": SCHEMA})],
    "unknown type": [_packed({"type": "hello", "schema_number": SCHEMA})],
    "type of a base class": [_packed({"type": "Message", "schema_number": SCHEMA})],
    "trailing bytes": [encode(EXAMPLES[1]) + b"\x00"],
    "deep nesting": [b"\x91" * 100_000 + b"\x01"],
    "deep maps": [b"\x81\xa1a" * 100_000 + b"\x01"],
    "deep within a view": [_packed({**_fields(EXAMPLES[3]), "view": {}})[:-1] + b"\x81\xa1a" * 2000 + b"\x01"],
    "a list that claims to be huge": [b"\xdd\xff\xff\xff\xff"],
    "a map that claims to be huge": [b"\xdf\xff\xff\xff\xff"],
    "a text that claims to be huge": [b"\xdb\xff\xff\xff\xff"],
    "huge header": [bytes(MAX_HEADER + 1)],
    "invalid utf-8": [b"\x81\xa2\xff\xfe\x01"],
    "numeric keys": [b"\x81\x01\x02"],
    "bytes as keys": [_packed({b"type": "join", "type": "join", "schema_number": SCHEMA})],
    "extension type": [_packed(msgpack.ExtType(5, b"x"))],
    "bad timestamp": [_packed({"type": "join", "schema_number": SCHEMA}) + b"\xc7\x0c\xff" + b"\xff" * 12],
    "frames too many": [encode(EXAMPLES[1]), b"x", b"y"],
}


@pytest.mark.parametrize("frames", HOSTILE.values(), ids=HOSTILE.keys())
def test_Z4_what_is_no_message_is_refused_in_a_sentence(frames: list[bytes]) -> None:
    """Z4: bad headers are rejected."""
    with pytest.raises(WireError) as caught:
        decode(frames)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("number", ["gone", 0, SCHEMA + 1, -1, 1.0, True, "1", None, [1], 2**64 - 1, "x" * 100_000])
def test_Z4_another_schema_is_refused_by_number(number: object) -> None:
    """Z4: and at a bounded length, for the refusal travels back in a message."""
    with pytest.raises(WireError) as caught:
        decode([_packed(_fields(EXAMPLES[1], schema_number=number))])
    assert len(str(caught.value)) < 400
    Refusal(reason=str(caught.value))


WRONG: list[tuple[Message, Mapping[str, object], str]] = [
    (EXAMPLES[0], {"count": "2"}, "count"),
    (EXAMPLES[0], {"count": 2.0}, "count"),
    (EXAMPLES[0], {"count": 0}, "count"),
    (EXAMPLES[0], {"count": -1}, "count"),
    (EXAMPLES[0], {"count": 2**64 - 1}, "count"),
    (EXAMPLES[0], {"inline": 1}, "inline"),
    (EXAMPLES[0], {"incarnation": 0}, "incarnation"),
    (EXAMPLES[0], {"incarnation": 2**63}, "incarnation"),
    (EXAMPLES[0], {"actor": ""}, "actor"),
    (EXAMPLES[0], {"actor": "a/b"}, "actor"),
    (EXAMPLES[0], {"actor": "ä" * 100}, "actor"),
    (EXAMPLES[0], {"actor": "a\0"}, "actor"),
    (EXAMPLES[0], {"policy": ".."}, "policy"),
    (EXAMPLES[0], {"policy": "x" * 129}, "policy"),
    (EXAMPLES[0], {"ring": "x" * 5000}, "ring"),
    (EXAMPLES[0], {"run": "gone"}, "run"),
    (EXAMPLES[0], {"secret": 1}, "secret"),
    (EXAMPLES[1], {"role": "king"}, "role"),
    (EXAMPLES[1], {"name": "../x"}, "name"),
    (EXAMPLES[1], {"routes": [{"policy": "p"}]}, "routes.0"),
    (EXAMPLES[1], {"routes": {"a": 1}}, "routes"),
    (EXAMPLES[2], {"metrics": {"m": "x"}}, "metrics.m"),
    (EXAMPLES[2], {"metrics": {"x" * 100_000: 1.0}}, "metrics"),
    (EXAMPLES[2], {"episodes": [["p", 1, 1]]}, "episodes.0"),
    (EXAMPLES[2], {"episodes": [5]}, "episodes.0"),
    (EXAMPLES[2], {"episodes": [["p", -1, 1, 0.5]]}, "episodes.0.1"),
    (EXAMPLES[3], {"actors": [["a", "b"]]}, "actors.0.1"),
    (EXAMPLES[3], {"command": "fly"}, "command"),
    (EXAMPLES[3], {"view": [1]}, "view"),
]


@pytest.mark.parametrize(("message", "changes", "place"), WRONG, ids=[f"{i}-{w[2]}" for i, w in enumerate(WRONG)])
def test_a_field_of_the_wrong_type_or_size_is_named(message: Message, changes: dict[str, Any], place: str) -> None:
    with pytest.raises(WireError) as caught:
        decode([_packed(_fields(message, **changes))])
    assert f"a {message.type} message whose {place}" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_twenty_thousand_mutilated_messages_raise_wire_errors_only() -> None:
    rng = random.Random(7)
    seeds = [encode(message) for message in EXAMPLES]
    refused = 0
    for _ in range(20_000):
        raw = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(raw) or 1)
            match rng.randrange(5):
                case 0:
                    raw[at : at + 1] = bytes([rng.randrange(256)])
                case 1:
                    del raw[at : at + rng.randint(1, 8)]
                case 2:
                    raw[at:at] = rng.randbytes(rng.randint(1, 8))
                case 3:
                    raw[at : at + 1] = bytes([raw[at] ^ 1 << rng.randrange(8)]) if raw else b""
                case _:
                    other = rng.choice(seeds)
                    raw[at:] = other[rng.randrange(len(other)) :]
        try:
            message, _ = decode([bytes(raw)])
        except WireError:
            refused += 1
        else:
            assert decode([encode(message)])[0] == message or "nan" in repr(message)
    assert 10_000 < refused < 20_000
