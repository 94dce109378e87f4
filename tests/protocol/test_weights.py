"""Weights from learner to actors: the newest, whole, at once, and for nothing when there is nothing new."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import zmq

from protocol.codec import encode
from protocol.errors import SharedMemoryError, WireError
from protocol.mailbox import Mailbox
from protocol.memory import files, sweep
from protocol.messages import Refusal, Route, Weights
from protocol.sockets import Ports, connect
from protocol.version import Version
from protocol.weights import WeightPublisher, WeightSubscriber
from tests.protocol.parts import line, python, until

HASH, NBYTES, POLICY = "0123456789abcdef", 100_000, "gem"
MAILBOX = "rookery-run1-gem.weights"
Transport = Literal["auto", "memory", "tcp"]
PATHS = pytest.mark.parametrize("transport", ["memory", "tcp"])
MODES = pytest.mark.parametrize("mode", ["double_buffer", "snapshot"])
NOTHING = Version(0, 0)


class Publisher:
    """A learner's end; `path` None: no mailbox."""

    def __init__(
        self,
        path: Path | None,
        incarnation: int = 1,
        mode: Any = "snapshot",
        manifest: str = HASH,
        nbytes: int = NBYTES,
    ) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.address = self.ports.bind({2: zmq.XPUB})[2]
        self.sent = _Tap(self.ports.sockets[2])
        self.publisher = WeightPublisher(self.sent)  # type: ignore[arg-type]
        self.incarnation, self.nbytes = incarnation, nbytes
        self.last, self.found = self.publisher.add_policy(POLICY, nbytes, manifest, path, mode)

    @property
    def route(self) -> Route:
        return Route(
            policy=POLICY,
            learner="learner-gem",
            incarnation=self.incarnation,
            experience="tcp://127.0.0.1:1",
            weights=self.address,
            acknowledgements="tcp://127.0.0.1:1",
        )

    def publish(self, number: int) -> None:
        self.publisher.publish(POLICY, np.full(self.nbytes, number % 251, np.uint8), Version(self.incarnation, number))

    def serve(self) -> None:
        self.publisher.serve(time.monotonic())

    def kill(self) -> None:
        """As if its process were killed: sockets and locks go, files stay."""
        for entry in self.publisher._policies.values():
            if entry.mailbox is not None:
                entry.mailbox.close()
        self.ports.close()
        self.context.destroy(linger=0)

    def close(self) -> None:
        self.publisher.close()
        self.ports.close()
        self.context.destroy(linger=0)


class _Tap:
    """A socket whose sent frames are counted."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.frames: list[list[bytes]] = []

    def send_multipart(self, frames: list[bytes], flags: int = 0) -> None:
        self.frames.append(frames)
        self._socket.send_multipart(frames, flags)

    def recv(self, flags: int = 0) -> bytes:
        return self._socket.recv(flags)

    def weight_bytes(self) -> int:
        return sum(len(frames[2]) for frames in self.frames if frames[0].startswith(b"w/"))


class Subscriber:
    """An actor's end."""

    def __init__(self, transport: Transport = "auto", manifest: str = HASH, nbytes: int = NBYTES) -> None:
        self.context = zmq.Context(1)
        self.subscriber = WeightSubscriber(self.context, POLICY, manifest, nbytes, transport)
        self.out = np.zeros(nbytes, np.uint8)
        self.have = NOTHING

    def sync(self) -> bool:
        """Looks once; whether there was something new, which must be whole."""
        version = self.subscriber.adopt(self.out, self.have)
        if version is None:
            return False
        assert version > self.have
        assert (self.out == version.version % 251).all()
        self.have = version
        return True

    def get(self, publisher: Publisher, version: Version) -> None:
        """Looks until it has `version`."""

        def step() -> bool:
            publisher.serve()
            self.sync()
            return self.have == version

        until(step)

    def close(self) -> None:
        self.subscriber.close()
        self.context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[list[Publisher | Subscriber]]:
    """Whatever a test puts here is closed after it."""
    made: list[Publisher | Subscriber] = []
    yield made
    for end in sorted(made, key=lambda end: isinstance(end, Publisher)):  # actors end before their learners
        end.close()


def _pair(ends: list[Any], path: Path | None, transport: Transport) -> tuple[Publisher, Subscriber]:
    publisher, subscriber = Publisher(path), Subscriber(transport)
    ends += [publisher, subscriber]
    return publisher, subscriber


@PATHS
def test_Z1_a_late_subscriber_gets_the_current_weights_at_once(
    ends: list[Any], memory_dir: Path, transport: Transport
) -> None:
    """Z1: also the second one to the same topic, long after the publication."""
    publisher = Publisher(memory_dir / MAILBOX if transport == "memory" else None)
    ends.append(publisher)
    for number in (1, 2, 3):
        publisher.publish(number)
    publisher.publisher._beacon_at = time.monotonic() + 100  # no beacon helps: the answer to the subscription does
    for _ in range(3):
        subscriber = Subscriber(transport)
        ends.append(subscriber)
        subscriber.subscriber.route(publisher.route)
        started = time.monotonic()
        subscriber.get(publisher, Version(1, 3))
        assert time.monotonic() - started < 5
        assert subscriber.subscriber.same_node is (transport == "memory")


@PATHS
def test_C8_C13_every_publication_is_adopted_in_order_and_whole(
    ends: list[Any], memory_dir: Path, transport: Transport
) -> None:
    """C8, C13: the first weights are waited for; each look then brings the newest, never an older one."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX if transport == "memory" else None, transport)
    subscriber.subscriber.route(publisher.route)
    assert subscriber.subscriber.same_node is None
    publisher.publish(1)
    version = subscriber.subscriber.wait(subscriber.out, 10, publisher.serve)
    assert version == Version(1, 1)
    assert (subscriber.out == 1).all()
    subscriber.have = version
    for number in range(2, 30):
        publisher.publish(number)
        subscriber.get(publisher, Version(1, number))
        assert subscriber.subscriber.newest == Version(1, number)
    for number in range(30, 60):  # several between two looks: only the newest counts
        publisher.publish(number)
    time.sleep(0.1)
    subscriber.get(publisher, Version(1, 59))
    assert subscriber.subscriber.torn == 0


def test_on_one_node_no_weights_cross_the_wire(ends: list[Any], memory_dir: Path) -> None:
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "auto")
    subscriber.subscriber.route(publisher.route)
    for number in range(1, 20):
        publisher.publish(number)
        subscriber.get(publisher, Version(1, number))
    assert subscriber.subscriber.same_node is True
    assert publisher.sent.weight_bytes() == 0


def test_transport_tcp_ignores_the_mailbox_that_it_could_see(ends: list[Any], memory_dir: Path) -> None:
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "tcp")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    assert subscriber.subscriber.same_node is False
    assert publisher.sent.weight_bytes() == NBYTES


def test_transport_memory_says_so_when_there_is_none(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    with pytest.raises(
        SharedMemoryError, match="start both on one node with the same ROOKERY_MEMORY, or set transport"
    ):
        subscriber.get(publisher, Version(1, 1))


def test_auto_falls_back_to_tcp_when_the_memory_is_another_machines(ends: list[Any], memory_dir: Path) -> None:
    """The path exists here too, but what lies there has another nonce."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "auto")
    elsewhere = memory_dir / "rookery-elsewhere"
    (memory_dir / MAILBOX).rename(elsewhere)
    here = Mailbox.create(memory_dir / MAILBOX, NBYTES, HASH, "snapshot")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    assert subscriber.subscriber.same_node is False
    here.remove()
    elsewhere.unlink()


@PATHS
def test_J3_a_look_without_news_moves_no_bytes(ends: list[Any], memory_dir: Path, transport: Transport) -> None:
    """J3: nothing is copied and nothing is asked for; the actor's weights stay what they are."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX if transport == "memory" else None, transport)
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    time.sleep(0.1)
    publisher.serve()
    subscriber.sync()
    sent = publisher.sent.weight_bytes()
    subscriber.out.fill(0)
    started = time.monotonic()
    for _ in range(5_000):
        assert subscriber.subscriber.adopt(subscriber.out, subscriber.have) is None
    assert time.monotonic() - started < 2
    publisher.serve()
    assert publisher.sent.weight_bytes() == sent
    assert not subscriber.out.any()


def test_weights_are_sent_only_while_somebody_wants_them(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "auto")
    publisher.publish(1)
    assert publisher.sent.weight_bytes() == 0
    subscriber.subscriber.route(publisher.route)
    subscriber.get(publisher, Version(1, 1))
    publisher.publish(2)
    assert publisher.sent.weight_bytes() == 2 * NBYTES
    subscriber.subscriber.close()

    def gone() -> bool:
        publisher.serve()
        return publisher.publisher._policies[POLICY].remote == 0

    until(gone)
    publisher.publish(3)
    assert publisher.sent.weight_bytes() == 2 * NBYTES


REMOTE = """
import sys, time
import numpy as np, zmq
from protocol.messages import Route
from protocol.weights import WeightSubscriber
context = zmq.Context(1)
subscriber = WeightSubscriber(context, "gem", "0123456789abcdef", 100_000, "tcp")
subscriber.route(Route.model_validate_json(sys.argv[1]))
print(subscriber.wait(np.zeros(100_000, np.uint8), 20, lambda: None), flush=True)
sys.stdin.readline()
"""


def test_a_killed_subscriber_is_not_sent_to_any_longer(ends: list[Any]) -> None:
    publisher = Publisher(None)
    ends.append(publisher)
    publisher.publish(1)

    def remote(count: int) -> bool:
        publisher.serve()
        return publisher.publisher._policies[POLICY].remote == count

    with python(REMOTE, publisher.route.model_dump_json()) as process:
        until(lambda: remote(1), 20)
        assert line(process) == "Version(incarnation=1, version=1)"
        process.kill()
        process.wait(5)
    until(lambda: remote(0))


@PATHS
@pytest.mark.parametrize(("manifest", "nbytes"), [("f" * 16, NBYTES), (HASH, NBYTES - 1)])
def test_another_networks_weights_are_refused(
    ends: list[Any], memory_dir: Path, transport: Transport, manifest: str, nbytes: int
) -> None:
    publisher = Publisher(memory_dir / MAILBOX)
    subscriber = Subscriber(transport, manifest, nbytes)
    ends += [publisher, subscriber]
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    with pytest.raises(WireError, match="has another network than this actor; use the same configuration and release"):
        subscriber.get(publisher, Version(1, 1))
    assert not subscriber.out.any()


@MODES
def test_G1_a_learner_that_returns_adopts_its_mailbox_and_goes_on(ends: list[Any], memory_dir: Path, mode: str) -> None:
    """G1: version and last published weights are found; the actor follows without a gap."""
    first, subscriber = Publisher(memory_dir / MAILBOX, mode=mode), Subscriber("memory")
    ends.append(subscriber)
    assert (first.last, first.found) == (NOTHING, None)
    subscriber.subscriber.route(first.route)
    for number in (1, 2, 3):
        first.publish(number)
    subscriber.get(first, Version(1, 3))
    first.kill()
    assert sweep() == []  # the actor holds it
    second = Publisher(memory_dir / MAILBOX, incarnation=2, mode=mode)
    ends.append(second)
    assert second.last == Version(1, 3)
    assert second.found is not None
    assert (second.found == 3).all()
    with pytest.raises(ValueError, match="not newer"):
        second.publisher.publish(POLICY, second.found, Version(1, 3))
    second.publish(4)
    assert subscriber.sync()  # even before it is told the new address
    assert subscriber.have == Version(2, 4)
    subscriber.subscriber.route(second.route)
    second.publish(5)
    subscriber.get(second, Version(2, 5))


def test_a_returning_learner_sends_remote_actors_the_weights_it_found(ends: list[Any], memory_dir: Path) -> None:
    """And never a buffer it has not filled."""
    first = Publisher(memory_dir / MAILBOX)
    first.publish(7)
    first.kill()
    second, subscriber = Publisher(memory_dir / MAILBOX, incarnation=2), Subscriber("tcp")
    ends += [second, subscriber]
    subscriber.subscriber.route(second.route)
    subscriber.get(second, Version(1, 7))


def test_a_learner_whose_mailbox_was_left_half_written_waits_for_its_own_first_publication(
    ends: list[Any], memory_dir: Path
) -> None:
    first = Publisher(memory_dir / MAILBOX)
    first.publish(7)
    first.publisher._policies[POLICY].mailbox._words[0][0] |= np.uint64(1)  # type: ignore[union-attr]
    first.kill()
    second, subscriber = Publisher(memory_dir / MAILBOX, incarnation=2), Subscriber("tcp")
    ends += [second, subscriber]
    assert (second.last, second.found) == (Version(1, 7), None)
    subscriber.subscriber.route(second.route)
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        second.serve()
        assert not subscriber.sync()
    second.publish(8)
    subscriber.get(second, Version(2, 8))


def test_the_mailbox_of_another_network_stops_a_learner(ends: list[Any], memory_dir: Path) -> None:
    ends.append(Publisher(memory_dir / MAILBOX))
    for manifest, nbytes in (("f" * 16, NBYTES), (HASH, 5)):
        other = Publisher(None)
        ends.append(other)
        with pytest.raises(SharedMemoryError, match="weights of another network"):
            other.publisher.add_policy("bone", nbytes, manifest, memory_dir / MAILBOX, "snapshot")


def test_damaged_weights_are_counted_and_never_adopted(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "tcp")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    data = bytes(NBYTES)
    header = Weights(policy=POLICY, incarnation=1, version=9, manifest=HASH, crc=zlib.crc32(data) ^ 1)
    topic = f"w/{POLICY}/".encode()
    for frames in ([topic], [topic, b"\xc1"], [topic, encode(Refusal(reason="no"))], [topic, encode(header), data]):
        publisher.sent.send_multipart(frames)
    until(lambda: subscriber.sync() or subscriber.subscriber.torn)
    assert subscriber.have == Version(1, 1)
    publisher.publish(2)
    subscriber.get(publisher, Version(1, 2))


def test_Z2_an_older_snapshot_never_replaces_a_newer_one(ends: list[Any]) -> None:
    """Z2: the newest wins, whatever order they come in."""
    publisher, subscriber = _pair(ends, None, "tcp")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    for number in (5, 4, 3):
        data = bytes([number]) * NBYTES
        header = Weights(policy=POLICY, incarnation=1, version=number, manifest=HASH, crc=zlib.crc32(data))
        publisher.sent.send_multipart([f"w/{POLICY}/".encode(), encode(header), data])
    time.sleep(0.2)  # all three are there
    assert subscriber.sync()
    assert subscriber.have == Version(1, 5)
    assert not subscriber.sync()


def test_strange_subscriptions_confuse_nobody(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "tcp")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    raw = connect(subscriber.context, zmq.XSUB, publisher.address)
    topics = (b"w", b"w/", b"w/none/", b"w/gem/x/", b"b/\xff/", b"//", b"\xff" * 300)
    for event in (b"", b"hello", b"\x02w/gem/", b"xw/gem/", *(b"\x01" + topic for topic in topics)):
        raw.send(event)
    time.sleep(0.2)
    publisher.serve()
    assert publisher.publisher._policies[POLICY].remote == 1
    publisher.publish(2)
    subscriber.get(publisher, Version(1, 2))


def test_waiting_for_weights_that_never_come_ends_at_its_deadline(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "tcp")
    looks: list[float] = []
    started = time.monotonic()
    assert subscriber.subscriber.wait(subscriber.out, 0.3, lambda: looks.append(1)) is None  # no route yet
    subscriber.subscriber.route(publisher.route)
    assert subscriber.subscriber.wait(subscriber.out, 0.3, publisher.serve) is None  # nothing published yet
    assert 0.5 < time.monotonic() - started < 3
    assert len(looks) > 2


def test_a_beacon_a_second_tells_the_version_to_who_missed_it(ends: list[Any], memory_dir: Path) -> None:
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "memory")
    publisher.publish(1)
    subscriber.subscriber.route(publisher.route)
    subscriber.get(publisher, Version(1, 1))
    publisher.sent.frames.clear()
    start = time.monotonic() + 10
    for now in np.arange(start, start + 2.99, 0.01):
        publisher.publisher.serve(float(now))
    assert len(publisher.sent.frames) == 3


def test_news_through_memory_does_not_let_the_socket_fill_up(ends: list[Any], memory_dir: Path) -> None:
    """An actor whose every look finds news in memory still empties its queue of beacons."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    for number in range(2, 200):
        publisher.publish(number)
        assert subscriber.sync()
    time.sleep(0.2)
    publisher.publish(200)
    assert subscriber.sync()
    socket = subscriber.subscriber._socket
    assert socket is not None
    waiting = 0
    while socket.poll(0):
        socket.recv_multipart()
        waiting += 1
    assert waiting <= 2


def test_closing_removes_the_mailbox_once_nobody_holds_it(memory_dir: Path) -> None:
    publisher, subscriber = Publisher(memory_dir / MAILBOX), Subscriber("memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    publisher.close()
    assert [path.name for path in files()] == [MAILBOX]
    subscriber.close()
    assert sweep() == [memory_dir / MAILBOX]
