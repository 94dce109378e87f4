"""Compressed fields: the same bytes at the other end, and never more of them than the layout says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import zmq
import zstandard

from protocol.errors import ConfigurationError, WireError
from protocol.experience.connections import ConnectionPool
from protocol.experience.sender import ExperienceSender
from protocol.messages import compression
from protocol.messages.compression import check_fields, check_package, compress, decompress
from tests.faults import raises
from tests.protocol.parts import LAYOUT, POLICY, Actor, Learner, closing, identity
from tests.tools import ROOT
from tests.waiting import until


@pytest.mark.parametrize("nbytes", [0, 1, 1_000, 1_000_000])
def test_what_was_compressed_comes_back(nbytes: int) -> None:
    data = np.random.default_rng(0).integers(0, 3, nbytes).astype(np.uint8)
    packed = compress(data.data)
    assert bytes(decompress(packed, nbytes)) == data.tobytes()
    assert nbytes < 1_000 or len(packed) < nbytes / 2


WRONG_SIZE, NO_FIELD = "compressed_size_wrong", "compressed_field_damaged"
DAMAGED = {
    "a byte less than announced": (lambda z: z, 9_999, WRONG_SIZE),
    "a byte more than announced": (lambda z: z, 10_001, WRONG_SIZE),
    "cut off": (lambda z: z[:-4], 10_000, NO_FIELD),
    "something behind it": (lambda z: z + b"x", 10_000, NO_FIELD),
    "two of them": (lambda z: z + z, 10_000, NO_FIELD),
    "nothing": (lambda z: b"", 10_000, NO_FIELD),
    "garbage": (lambda z: b"garbage garbage", 10_000, NO_FIELD),
    "no length": (
        lambda z: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(10_000)),
        10_000,
        WRONG_SIZE,
    ),
    "a bomb": (lambda z: compress(bytes(50_000_000)), 10_000, WRONG_SIZE),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_what_is_not_exactly_as_long_as_the_layout_says_is_refused_before_it_is_unpacked(case: str) -> None:
    damage, expected, kind = DAMAGED[case]
    with raises(WireError, kind):
        decompress(damage(compress(bytes(10_000))), expected)


def test_fields_that_do_not_exist_are_refused_by_name() -> None:
    check_fields(["observation", "reward"], LAYOUT)
    names = [field.name for field in LAYOUT.fields]
    with raises(ConfigurationError, "compress_field_unknown", field="smell", choices=names, key="policy.compress"):
        check_fields(["smell"], LAYOUT)


def test_without_the_package_the_key_is_refused_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "zstandard", None)
    check_package([])
    with raises(ConfigurationError, "zstandard_missing", key="policy.compress"):
        check_package(["observation"])
    with raises(WireError, "zstandard_missing_for_field", key="policy.compress"):
        decompress(b"x", 1)


def test_nothing_else_needs_the_package() -> None:
    """Both ends are imported and made where it is not installed."""
    code = "import sys; sys.modules['zstandard'] = None; from tests.protocol.parts import Actor, Learner; "
    code += "from protocol.messages import compression; print(compression.zstandard); "
    code += "Actor(None).close(); Learner().close()"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200, check=False
    )
    assert (result.returncode, result.stdout.strip()) == (0, "None"), result.stderr


def test_chosen_fields_travel_compressed_and_arrive_identical(memory_dir: Path) -> None:
    """The observation, not the rest; and a message whose compressed field lies about itself is refused."""
    actor, learner = Actor(None), Learner()
    with closing(actor, learner):
        actor.sender._compress.append("observation")
        actor.sender.route(learner.route, inline=True)
        actor.write()
        pull = learner.ports.sockets[1]
        assert pull.poll(60_000)
        frames = pull.recv_multipart()
        expected = actor.ring.columns["observation"][:2].tobytes()
        assert decompress(frames[2], len(expected)) == expected
        assert frames[3] == actor.ring.columns["action"][:2].tobytes()
        push = actor.context.socket(zmq.PUSH)
        push.connect(learner.route.experience)
        push.send_multipart([*frames[:2], compress(expected[:-1]), *frames[3:]])
        until(lambda: learner.listen() or learner.counters["quarantined_messages"] == 1)
        push.send_multipart(frames)
        until(lambda: learner.uses(2))
        assert learner.wrong == 0
        push.close(linger=0)
    assert actor.counters[f"produced.{POLICY}"] == 2


def test_a_sender_refuses_what_it_cannot_compress(memory_dir: Path) -> None:
    actor = Actor(None)
    with closing(actor), raises(ConfigurationError, "compress_field_unknown", field="smell"):
        ExperienceSender(
            ConnectionPool(actor.context),
            identity(),
            POLICY,
            actor.ring,
            actor.sender._credit,
            actor.counters,
            ["smell"],
        )
