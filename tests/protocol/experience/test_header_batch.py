"""Headers that are remembered say what they would say if each were decoded; what waited together is taken as one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import WireError
from protocol.experience.policy_inbox import HeaderDecoder
from protocol.messages.codec import around, decode, encode, packed
from protocol.messages.core import Ack, Segments
from tests.faults import raises
from tests.protocol.experience.test_sender import Stranger
from tests.protocol.parts import BLOCK, LAYOUT, POLICY, RUN, Actor, Learner, closing, identity
from tests.waiting import until

NUMBERS = st.one_of(st.integers(0, 2**63 - 1), st.sampled_from([0, 1, 127, 128, 255, 256, 2**16, 2**32, 2**63 - 1]))
RING = "rookery-run1-actor-0.1-gem.ring"


def _header(after: int = 0, **changes: Any) -> Segments:
    fields: dict[str, Any] = {
        "run": RUN,
        "actor": "actor-0",
        "incarnation": 1,
        "proof": identity().proof,
        "policy": POLICY,
        "layout": LAYOUT.hash,
        "count": BLOCK,
        "inline": False,
        "ring": "/dev/shm/rookery-¥after",
        "nonce": "n" * 16,
    }
    return Segments(**{**fields, **changes}, after=after)


def _open(opener: HeaderDecoder, raw: bytes) -> Segments:
    header, after = opener.open([zmq.Frame(raw), zmq.Frame(b"")])
    return header.model_copy(update={"after": after})


@given(afters=st.lists(NUMBERS, min_size=2, max_size=6), resent=st.lists(st.booleans(), min_size=6, max_size=6))
@settings(max_examples=80, deadline=None)
def test_a_header_that_is_remembered_says_what_it_would_say_decoded(afters: list[int], resent: list[bool]) -> None:
    """Also where another text of it looks like the name of the number."""
    opener = HeaderDecoder()
    for i, (after, again) in enumerate(zip(afters, resent, strict=False)):
        ring = "/dev/shm/rookery-¥after" if i % 2 else "/dev/shm/rookery-plain"
        raw = encode(_header(after, resent=again, ring=ring))
        assert _open(opener, raw) == decode([raw])[0]


@given(afters=st.lists(NUMBERS, min_size=2, max_size=4), data=st.data())
@settings(max_examples=80, deadline=None)
def test_headers_of_others_are_remembered_too_in_whatever_order_and_width(
    afters: list[int], data: st.DataObject
) -> None:
    """As another language's MessagePack writes them; one that leaves the number out has it always the same."""
    plain = msgpack.unpackb(encode(_header(ring="/dev/shm/rookery-x")))
    names = data.draw(st.permutations([*plain]))
    opener = HeaderDecoder()
    for after in afters:
        raw = msgpack.packb({name: after if name == "after" else plain[name] for name in names})
        assert _open(opener, raw) == decode([raw])[0]
    assert len(opener._known) == 1
    del plain["after"]
    for _ in range(2):
        assert _open(opener, msgpack.packb(plain)).after == 0
    assert len(opener._known) == 2


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_what_is_spoilt_is_refused_as_if_nothing_were_remembered(data: st.DataObject) -> None:
    """Bytes changed, left out and put in, the more so around the number."""
    opener = HeaderDecoder()
    raw = bytearray(encode(_header(data.draw(NUMBERS), ring="/dev/shm/rookery-x")))
    _open(opener, bytes(raw))
    assert opener._known
    near = raw.find(b"\xa5after")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.one_of(st.integers(0, len(raw) - 1), st.integers(near, min(near + 24, len(raw) - 1))))
        new = data.draw(st.binary(max_size=9))
        raw[at : at + data.draw(st.integers(0, 9))] = new
    spoilt = bytes(raw)
    try:
        expected = decode([spoilt])[0]
    except WireError as fault:
        with raises(WireError, fault.kind, **fault.facts):
            _open(opener, spoilt)
        return
    if isinstance(expected, Segments):
        assert _open(opener, spoilt) == expected


def test_no_more_headers_are_remembered_than_a_learner_has_actors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocol.experience.policy_inbox._MOST_KNOWN", 3)
    opener = HeaderDecoder()
    for i in range(10):
        raw = encode(_header(i, actor=f"actor-{i}"))
        assert _open(opener, raw) == decode([raw])[0]
        assert len(opener._known) <= 3


@given(settled=NUMBERS, announced=NUMBERS)
def test_a_message_around_its_number_is_the_message(settled: int, announced: int) -> None:
    ack = Ack(policy=POLICY, learner_incarnation=1, actor="a", incarnation=1, acknowledged=settled, announced=announced)
    for name in ("acknowledged", "announced"):
        before, behind = around(ack, name)
        assert before + packed(getattr(ack, name)) + behind == encode(ack)


def test_what_waited_together_is_one_arrival(memory_dir: Path) -> None:
    actor, learner = Actor(memory_dir / RING, blocks=12, credits=10), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        actor.write(10)
        until(lambda: learner.receiver.receive() >= 0 and len(_numbers(learner)) == 10 * BLOCK)
        assert len(learner.receiver.arrivals(POLICY)) == 1
        assert _numbers(learner) == list(range(1, 10 * BLOCK + 1))
        learner.use()
        assert learner.wrong == 0


SCENES: dict[str, list[tuple[int, int, dict[str, int]]]] = {
    "in turn": [(1, 0, {}), (3, 2, {}), (5, 4, {})],
    "settled meanwhile": [(1, 0, {}), (3, 0, {}), (5, 4, {})],
    "one twice": [(1, 0, {}), (3, 2, {}), (3, 2, {}), (5, 4, {})],
    "one is lost": [(1, 0, {}), (5, 4, {}), (7, 6, {})],
    "all follow what is lost": [(3, 2, {}), (5, 4, {})],
    "the first is lost, a later one follows nothing": [(3, 2, {}), (5, 0, {}), (7, 6, {})],
    "backwards": [(5, 0, {}), (3, 0, {}), (7, 6, {})],
    "one without rows": [(1, 0, {}), (3, 2, {"valid": 0}), (5, 4, {}), (7, 0, {})],
    "one half written": [(1, 0, {"sequence": 3}), (3, 0, {}), (5, 4, {})],
    "one beyond the ring": [(1, 0, {}), (3, 2, {}), (5, 4, {"slot": 9})],
}
"""Messages of two segments: the first number, `after`, and what is wrong with one of its records."""


@pytest.mark.parametrize("scene", SCENES.values(), ids=SCENES)
def test_what_waited_together_comes_to_the_same_as_one_by_one(
    memory_dir: Path, scene: list[tuple[int, int, dict[str, int]]]
) -> None:
    """The same segments are taken, the same are counted as repeated, out of turn or refused."""
    assert _outcome(memory_dir, scene, together=True) == _outcome(memory_dir, scene, together=False)


def _outcome(memory: Path, scene: list[tuple[int, int, dict[str, int]]], together: bool) -> object:
    """The numbers that wait for the learner, and its counters."""
    learner = Learner()
    stranger = Stranger(learner, memory)

    def batches_checked(segments: int) -> bool:
        learner.receiver.receive()
        return _seen(learner) == segments

    try:
        for i, (first, after, wrong) in enumerate(scene):
            records = stranger.records[:2]
            records["number"] = (first, first + 1)
            for name, value in wrong.items():
                records[name][1] = value
            stranger.send(encode(stranger.header(count=2, after=after)), records.tobytes())
            if not together:
                until(lambda: batches_checked(2 * i + 2))  # noqa: B023
        if together:
            time.sleep(0.1)  # so that they wait together
        until(lambda: batches_checked(2 * len(scene)))
        return _numbers(learner), learner.counters.snapshot()
    finally:
        stranger.close()
        learner.close()


def _numbers(learner: Learner) -> list[int]:
    return [n for arrival in learner.receiver.arrivals(POLICY) for n in arrival.records["number"].tolist()]


def _seen(learner: Learner) -> int:
    """Segments of all messages that were looked at."""
    counters = learner.counters
    refused = counters["repeated_headers"] + counters["out_of_order"] + 2 * counters["quarantined_messages"]
    return len(_numbers(learner)) + int(refused)
