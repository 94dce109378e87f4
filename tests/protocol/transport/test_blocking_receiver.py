"""Messages are taken in whole and in order, and waited for no longer than was said."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import zmq

from protocol.transport.sockets import BlockingReceiver, pending

Sockets = tuple["zmq.Socket[bytes]", "zmq.Socket[bytes]"]


@pytest.fixture
def pair() -> Iterator[Sockets]:
    """Who listens, who speaks."""
    with zmq.Context() as context:
        ear, mouth = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
        ear.bind("inproc://ear")
        mouth.connect("inproc://ear")
        yield ear, mouth
        ear.close(0)
        mouth.close(0)


def test_messages_of_any_number_of_frames_are_taken_in_whole_and_in_order(pair: Sockets) -> None:
    ear, mouth = pair
    said = [[b"one"], [b"", b"two", b""], [b"x" * 100_000, b"y"], [b""]]
    for frames in said:
        mouth.send_multipart(frames)
    assert [pending(ear) for _ in said] == said
    assert pending(ear) is None


def test_a_wait_ends_by_itself_and_the_next_one_may_be_shorter(pair: Sockets) -> None:
    ear, mouth = BlockingReceiver(pair[0]), pair[1]
    begin = time.monotonic()
    assert ear.receive(30) is None
    assert time.monotonic() - begin >= 0.025
    assert ear.receive(1) is None
    assert ear.receive(0) is None
    mouth.send(b"there")
    assert ear.receive(60_000) == [b"there"]
    assert ear.receive(0) is None
