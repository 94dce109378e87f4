"""What peers may have waiting at a bound socket has a bound in bytes; those who keep to their credit never meet it."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import zmq

from protocol.control.server import BYTES, ControlServer
from protocol.memory.shared_file import Counters
from protocol.messages.codec import encode
from protocol.messages.core import Join
from protocol.transport import byte_guard
from protocol.transport.byte_guard import ByteGuard, experience_limits
from protocol.transport.sockets import Ports, poll
from protocol.weights.publisher import WeightPublisher
from tests.chaos.attacks import Peer
from tests.protocol.parts import LAYOUT, RUN, SECRET, Learner, line, python
from tests.waiting import until
from workers.relaying.segment_relay import SegmentRelay

LEARNER = """
from protocol.transport.sockets import poll
from tests.protocol.parts import Learner
learner = Learner()
print(learner.addresses[1], learner.addresses[3], flush=True)
while True:
    learner.use()
    poll(learner.receiver.sockets, 10)
"""
UNFINISHED, TOPICS = 300 * 2**20, 200_000
PART = bytes(2**16)


def resident(process: psutil.Process) -> float:
    """MiB."""
    return float(process.memory_info().rss / 2**20)


def subscriptions(first: int, count: int) -> bytes:
    """To topics of their own, as ZMTP frames."""
    events = [b"\1a/gem/actor-%d/1/" % number for number in range(first, first + count)]
    return b"".join(b"\0" + bytes([len(event)]) + event for event in events)


def test_neither_unfinished_messages_nor_ever_new_topics_fill_memory() -> None:
    with python(LEARNER) as process:
        experience, acks = line(process).split()
        learner = psutil.Process(process.pid)
        before = resident(learner)
        with closing(Peer(experience, "PUSH", patience=60)) as one, closing(Peer(acks, "SUB", patience=60)) as other:
            for _ in range(UNFINISHED // len(PART)):
                one.send(PART, more=True)
            for first in range(0, TOPICS, 1000):
                other.raw(subscriptions(first, 1000))
            until(lambda: resident(learner) < before + 100, what="memory is given back")


def test_what_waited_is_given_back_when_its_connections_end() -> None:
    """Though it was never too much, and what waits of somebody who stays lies in between."""
    with python(LEARNER) as process, closing(ExitStack()) as ends:
        experience, _ = line(process).split()
        learner = psutil.Process(process.pid)
        before = resident(learner)
        peers = [ends.enter_context(closing(Peer(experience, "PUSH", patience=60))) for _ in range(10)]
        stays = Peer(experience, "PUSH", patience=60)
        for at in range(1400):
            for peer in peers:
                peer.send(bytes(1024), more=True)
            stays.send(bytes(at % 50), more=True)
        until(lambda: resident(learner) > before + 12, what="it waits")
        ends.close()
        until(lambda: resident(learner) < before + 5, what="memory is given back")
        stays.close()


def test_long_topics_of_which_none_is_like_another_never_take_much_memory() -> None:
    """Each letter of them is a node of ZeroMQ's tree: a megabyte on the wire would be sixty."""
    with python(LEARNER) as process:
        _, acks = line(process).split()
        learner, peak = psutil.Process(process.pid), 0.0
        before = resident(learner)
        with closing(Peer(acks, "SUB", patience=60)) as peer:
            for _ in range(200):
                topics = (b"\1%s%s" % (secrets.token_hex(8).encode(), bytes(100)) for _ in range(200))
                peer.raw(b"".join(b"\0" + bytes([len(topic)]) + topic for topic in topics))
                peak = max(peak, resident(learner))
            until(lambda: resident(learner) < before + 30, what="memory is given back")
        assert peak < before + 100


def test_a_request_that_never_ends_costs_its_connection() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    address = ports.bind({0: zmq.ROUTER}, bytes_waiting={0: BYTES})[0]
    server = ControlServer(ports.sockets[0], ports.guard)
    with (
        closing(Peer(address, "DEALER", patience=60)) as honest,
        closing(Peer(address, "DEALER", patience=60)) as endless,
    ):
        for _ in range(2 * BYTES[0] // len(PART)):
            honest.send(PART)
            list(server.requests(10))
        assert not ports.guard.cut
        endless.unfinished(2**26)
    until(lambda: server.refusals.counters().get("refusals.connection_cut.bytes_waiting"))
    ports.close()
    context.destroy(linger=0)


def test_who_does_not_wait_for_the_end_of_the_handshake_is_told_apart_from_who_speaks_something_else() -> None:
    with closing(Learner()) as learner:
        refusals = learner.ports.guard.refusals
        with suppress(ConnectionError):
            while not refusals.counters().get("refusals.handshake_refused.too_early"):
                with closing(Peer(learner.addresses[1], "PUSH", patience=0)) as hasty:
                    hasty.send(PART)  # sometimes the answer is faster
        assert "refusals.handshake_refused.malformed" not in refusals.counters()


def control(ports: Ports, _: ExitStack) -> Callable[[], object]:
    server = ControlServer(ports.sockets[1], ports.guard)
    return lambda: list(server.requests(0))


def weights(ports: Ports, stack: ExitStack) -> Callable[[], object]:
    publisher = WeightPublisher(ports.sockets[1], Counters(None, WeightPublisher.COUNTERS), ports.guard)
    stack.callback(publisher.close)
    return publisher.check


def relay(ports: Ports, _: ExitStack) -> Callable[[], object]:
    path, counters = Path("none"), Counters(None, ["quarantined_messages"])
    return SegmentRelay(
        ports.sockets[1].context, ports.sockets[1], RUN, SECRET, lambda _: path, None, counters, ports.guard
    ).turn


JOIN = encode(Join(role="actor", name="", token="0" * 16, release="0", host="here", pid=1))


@pytest.mark.parametrize(
    ("bound", "connected", "serve", "word"),
    [
        (zmq.ROUTER, "DEALER", control, b"rubbish!"),
        (zmq.ROUTER, "DEALER", control, JOIN),
        (zmq.XPUB, "SUB", weights, b"\1nothing"),
        (zmq.PULL, "PUSH", relay, b"rubbish!"),
    ],
)
def test_at_no_door_is_heard_who_sends_what_is_of_no_use_again_and_again(
    bound: int, connected: str, serve: Callable[[Ports, ExitStack], Callable[[], object]], word: bytes
) -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    ports = Ports(context, "127.0.0.1", 0)
    address = ports.bind({1: bound}, bytes_waiting={1: BYTES})[1]
    with ExitStack() as stack:
        stack.callback(context.destroy, linger=0)
        stack.callback(ports.close)
        turn, told = serve(ports, stack), ports.guard.refusals.counters
        peer = stack.enter_context(closing(Peer(address, connected, patience=60)))

        def muted() -> bool:
            for _ in range(100):
                peer.socket.sendall(bytes([0, len(word)]) + word)
            turn()
            return "refusals.connection_muted.in_vain" in told()

        until(muted)


def test_who_is_not_heard_keeps_nobody_else_from_being_heard() -> None:
    with closing(Learner()) as learner, closing(Peer(learner.addresses[1], "PUSH", patience=60)) as honest:
        muted = learner.ports.guard.refusals.counters
        with (
            closing(Peer(learner.addresses[1], "PUSH", patience=60)) as useless,
            closing(Peer(learner.addresses[3], "SUB", patience=60)) as strange,
        ):
            for number, (peer, word) in enumerate([(useless, b"rubbish!"), (strange, b"\1nothing")]):
                for _ in range(5_000):
                    if muted().get("refusals.connection_muted.in_vain", 0) > number:
                        break
                    peer.socket.sendall(bytes([0, 8]) + word)
                    learner.use()
            assert muted()["refusals.connection_muted.in_vain"] == 2
            until(lambda: not learner.receiver.receive() and not poll([learner.ports.sockets[1]], 100))
            before = learner.counters["quarantined_messages"]
            for _ in range(50):
                honest.send(b"rubbish!")  # a few are forgiven
                with suppress(ConnectionError):  # its end, on a slow machine
                    useless.socket.sendall(bytes([0, 8]) + b"rubbish!")
            until(lambda: learner.receiver.receive() or learner.counters["quarantined_messages"] >= before + 50)
            assert not poll([learner.ports.sockets[1]], 500)
            assert learner.counters["quarantined_messages"] == before + 50


def test_fewer_topics_than_messages_are_forgiven() -> None:
    guard, port = ByteGuard(), byte_guard._Port(None, "weights", 2**20, 2**20)  # type: ignore[arg-type]
    frame: Any = SimpleNamespace(get=lambda _: -1)
    for topics, forgiven in (([], 200), ([b"nothing"], 20)):
        one = guard._connections[-1] = byte_guard._Connection(port, -1, 0, "127.0.0.1", 0.0, 0, 0)
        for topic in topics:
            one.topics.add(topic)
        for _ in range(forgiven):
            guard.in_vain(frame)
        assert not one.muted
        for _ in range(10):  # a few more on a slow machine
            guard.in_vain(frame)
        assert one.muted


def test_of_many_who_are_not_heard_the_first_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a descriptor for as long as the kernel believes in it."""
    monkeypatch.setattr(byte_guard, "_MUTED", 1)
    with closing(Learner()) as learner, ExitStack() as stack:
        told = learner.ports.guard.refusals.counters
        for number in (1, 2):
            peer = stack.enter_context(closing(Peer(learner.addresses[1], "PUSH", patience=60)))
            for _ in range(300):
                peer.socket.sendall(bytes([0, 8]) + b"rubbish!")
            until(lambda: learner.listen() or told().get("refusals.connection_muted.in_vain") == number)  # noqa: B023
        assert learner.ports.guard.cut == 1


def test_who_was_quiet_for_long_has_no_credit_for_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does the count run away, however long it is looked at."""
    came = 0
    monkeypatch.setattr(byte_guard, "_received", lambda descriptor, cookie: came)
    guard, port = ByteGuard(), byte_guard._Port(None, "experience", 2**20, 2**20)  # type: ignore[arg-type]
    one = port.connections[-1] = byte_guard._Connection(port, -1, 0, "127.0.0.1", 0.0, 0, 0)
    for look in range(20_000):
        guard._look(port, look / 10)
    assert not guard.cut
    came = 2**21
    guard._look(port, 2_000.0)
    assert one.cut


def test_whole_messages_that_are_read_are_never_counted_however_many_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(byte_guard, "_IN_VAIN", 10**9)
    with closing(Learner()) as learner, closing(Peer(learner.addresses[1], "PUSH", patience=60)) as peer:
        sent = 0
        _, limit = experience_limits(LAYOUT.offsets(12)[1])
        while sent < 3 * limit:
            for size in (0, 1, 255, 256, 2**16):
                peer.send(PART[:size], PART[:size])
                sent += 2 * size
            learner.receiver.receive()
        until(lambda: learner.receiver.receive() or not poll([learner.ports.sockets[1]], 1000))
        peer.send(PART, more=True)
        peer.send(b"")
        refused = learner.counters["quarantined_messages"]
        until(lambda: learner.receiver.receive() or learner.counters["quarantined_messages"] > refused)
        assert not learner.ports.guard.cut
