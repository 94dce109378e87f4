"""Weights from learner to actors: the newest, whole, at once, and for nothing when there is nothing new."""

from __future__ import annotations

import re
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pytest
import zmq
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError, Timeout, WireError
from protocol.memory import futex
from protocol.memory.shared_file import Counters, files, sweep
from protocol.messages.codec import decode, encode
from protocol.messages.core import Beacon, Refusal, Route, Weights
from protocol.transport.sockets import Ports, connect
from protocol.weights import publisher as publishing
from protocol.weights import publisher_thread, subscription
from protocol.weights.manifest import NOTHING, Entry, Manifest, Version, Wire
from protocol.weights.publisher import WeightPublisher, WeightSubscriber
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.faults import raises
from tests.protocol.parts import POLICY, a_route, line, python
from tests.waiting import until

NBYTES = 100_032
MANIFEST = Manifest([Entry("table", "|u1", (NBYTES,), 0)])
MAILBOX = "rookery-run1-gem.weights"
Transport = Literal["auto", "memory", "tcp"]
PATHS = pytest.mark.parametrize("transport", ["memory", "tcp"])
MODES = pytest.mark.parametrize("mode", ["double_buffer", "snapshot"])


class Publisher:
    """A learner's end; `path` None: no mailbox that others see."""

    def __init__(
        self,
        path: Path | None,
        incarnation: int = 1,
        mode: Any = "snapshot",
        manifest: Manifest = MANIFEST,
        wire: Wire = "float32",
    ) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.address = self.ports.bind({2: zmq.XPUB})[2]
        self.counters = Counters(None, WeightPublisher.COUNTERS)
        self.publisher = WeightPublisher(self.ports.sockets[2], self.counters)
        self.incarnation, self.nbytes = incarnation, manifest.nbytes
        self.last, self.found = self.publisher.add_policy(POLICY, manifest, path, mode, wire)

    @property
    def route(self) -> Route:
        return a_route(incarnation=self.incarnation, weights=self.address)

    def publish(self, number: int) -> None:
        self.publisher.publish(POLICY, np.full(self.nbytes, number % 251, np.uint8), Version(self.incarnation, number))

    def kill(self) -> None:
        """As if its process were killed: sockets and locks go, files stay."""
        for entry in self.publisher._policies.values():
            entry.mailbox.close()
        self.publisher._policies.clear()
        self.close()

    def close(self) -> None:
        self.publisher.close()
        self.ports.close()
        self.context.destroy(linger=0)


class Subscriber:
    """An actor's end."""

    def __init__(self, transport: Transport = "auto", manifest: Manifest = MANIFEST) -> None:
        self.context = zmq.Context(1)
        self.subscriber = WeightSubscriber(self.context, POLICY, manifest, transport)
        self.out = np.zeros(manifest.nbytes, np.uint8)
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
            publisher.publisher.check()
            self.sync()
            return self.have == version

        until(step)

    def close(self) -> None:
        self.subscriber.close()
        self.context.destroy(linger=0)


class Stranger:
    """A learner's end made by hand, of which all that it receives and sends is known."""

    def __init__(self) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.address = self.ports.bind({2: zmq.XPUB})[2]
        self.socket = self.ports.sockets[2]

    @property
    def route(self) -> Route:
        return a_route(weights=self.address)

    def subscribed(self) -> bytes:
        """The next topic that somebody subscribes to."""
        while self.socket.poll(60_000):
            event = self.socket.recv()
            if event[:1] == b"\x01":
                return event[1:]
        pytest.fail("nobody subscribes")

    def beacon(self, number: int) -> None:
        message = Beacon(policy=POLICY, incarnation=1, version=number, manifest=MANIFEST.hash, nbytes=NBYTES)
        self.socket.send_multipart([f"b/{POLICY}/".encode(), encode(message)])

    def weights(self, topic: bytes, number: int, damage: int = 0) -> None:
        data = bytes([number % 251]) * NBYTES
        header = Weights(
            policy=POLICY,
            incarnation=1,
            version=number,
            manifest=MANIFEST.hash,
            entries=MANIFEST.text,
            crc=zlib.crc32(data) ^ damage,
        )
        self.socket.send_multipart([topic, encode(header), data])

    def close(self) -> None:
        self.ports.close()
        self.context.destroy(linger=0)


@pytest.fixture
def ends() -> Iterator[list[Any]]:
    """Whatever a test puts here is closed after it."""
    made: list[Any] = []
    yield made
    for end in sorted(made, key=lambda end: not isinstance(end, Subscriber)):  # actors end before their learners
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
    publisher.publisher._publication._beacon_at = time.monotonic() + 1_000  # the answer to the subscription helps alone
    publisher.publisher._publication.wake()
    time.sleep(0.1)
    for _ in range(3):
        subscriber = Subscriber(transport)
        ends.append(subscriber)
        subscriber.subscriber.route(publisher.route)
        subscriber.get(publisher, Version(1, 3))
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
    version = subscriber.subscriber.wait(subscriber.out, 60, publisher.publisher.check)
    assert version == Version(1, 1)
    assert (subscriber.out == 1).all()
    subscriber.have = version
    for number in range(2, 10):
        publisher.publish(number)
        subscriber.get(publisher, Version(1, number))
        assert subscriber.subscriber.newest == Version(1, number)
    for number in range(10, 60):  # several between two looks: only the newest counts
        publisher.publish(number)
    time.sleep(0.1)
    subscriber.get(publisher, Version(1, 59))
    assert subscriber.subscriber.torn == 0


def test_transport_memory_says_so_when_there_is_none(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    with raises(SharedMemoryError, "learner_memory_unreachable", policy="gem", key="transport"):
        subscriber.get(publisher, Version(1, 1))


def test_auto_falls_back_to_tcp_when_the_memory_is_another_machines(ends: list[Any], memory_dir: Path) -> None:
    """The path exists here too, but what lies there has another nonce."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "auto")
    elsewhere = memory_dir / "rookery-elsewhere"
    (memory_dir / MAILBOX).rename(elsewhere)
    here = SharedSnapshot.create(memory_dir / MAILBOX, NBYTES, MANIFEST.hash, "snapshot")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    assert subscriber.subscriber.same_node is False
    here.remove()
    elsewhere.unlink()


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_J3_a_look_without_news_moves_no_bytes(ends: list[Any], memory_dir: Path, transport: Transport) -> None:
    """J3: nothing is copied and nothing is asked for; the actor's weights stay what they are. On one node none cross
    the wire at all."""
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX if transport == "auto" else None, transport)
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    time.sleep(0.1)
    subscriber.sync()
    sent = publisher.counters["weights_bytes"]
    assert sent == (0 if transport == "auto" else NBYTES)
    assert subscriber.subscriber.same_node is (transport == "auto")
    subscriber.out.fill(0)
    spent = time.process_time()
    for _ in range(5_000):
        assert subscriber.subscriber.adopt(subscriber.out, subscriber.have) is None
    assert time.process_time() - spent < 2
    assert publisher.counters["weights_bytes"] == sent
    assert not subscriber.out.any()


def test_weights_are_sent_once_to_each_that_asks_and_to_nobody_else(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "auto")
    publisher.publish(1)
    time.sleep(0.1)
    assert publisher.counters["weights_bytes"] == 0
    subscriber.subscriber.route(publisher.route)
    subscriber.get(publisher, Version(1, 1))
    for number in range(2, 50):  # nobody looks
        publisher.publish(number)
    time.sleep(0.2)
    assert publisher.counters["weights_bytes"] == NBYTES
    subscriber.get(publisher, Version(1, 49))
    assert publisher.counters["weights_answered"] == subscriber.subscriber.requests == 2
    assert publisher.counters["weights_bytes"] == 2 * NBYTES


def test_another_networks_weights_are_refused(ends: list[Any], memory_dir: Path) -> None:
    publisher = Publisher(memory_dir / MAILBOX)
    subscriber = Subscriber("auto", Manifest([Entry("other", "|u1", (NBYTES,), 0)]))
    ends += [publisher, subscriber]
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    with raises(WireError, "learner_of_another_network", policy="gem"):
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
    first.publisher._policies[POLICY].mailbox._words[0][0] |= np.uint64(1)
    first.kill()
    second, subscriber = Publisher(memory_dir / MAILBOX, incarnation=2), Subscriber("tcp")
    ends += [second, subscriber]
    assert (second.last, second.found) == (Version(1, 7), None)
    subscriber.subscriber.route(second.route)
    until(lambda: subscriber.sync() or second.counters["weights_deferred"])
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert not subscriber.sync()
    assert subscriber.have == NOTHING
    second.publish(8)
    subscriber.get(second, Version(2, 8))


def test_damaged_weights_are_counted_and_never_adopted(ends: list[Any]) -> None:
    stranger, subscriber = Stranger(), Subscriber("tcp")
    ends += [stranger, subscriber]
    subscriber.subscriber.route(stranger.route)
    beacons = stranger.subscribed()
    stranger.beacon(9)
    until(lambda: subscriber.sync() or subscriber.subscriber.requests)
    for frames in ([b""], [b"\xc1"], [encode(Refusal(reason="no"))]):
        stranger.socket.send_multipart([beacons, *frames])
    stranger.weights(stranger.subscribed(), 9, damage=1)
    until(lambda: subscriber.sync() or subscriber.subscriber.torn)
    assert subscriber.have == NOTHING
    stranger.weights(stranger.subscribed(), 9)  # it asked again
    until(subscriber.sync)
    assert subscriber.have == Version(1, 9)


def test_Z2_an_older_snapshot_never_replaces_a_newer_one(ends: list[Any]) -> None:
    """Z2: the newest wins, whatever order they come in."""
    stranger, subscriber = Stranger(), Subscriber("tcp")
    ends += [stranger, subscriber]
    subscriber.subscriber.route(stranger.route)
    beacons = stranger.subscribed()
    for number in (5, 4, 3):
        stranger.weights(beacons, number)
    time.sleep(0.2)  # all three are there
    until(subscriber.sync)
    assert subscriber.have == Version(1, 5)
    assert not subscriber.sync()


def test_a_request_is_one_topic_used_once_and_never_two_at_a_time(ends: list[Any]) -> None:
    stranger, subscriber = Stranger(), Subscriber("tcp")
    ends += [stranger, subscriber]
    subscriber.subscriber.route(stranger.route)
    assert stranger.subscribed() == b"b/gem/"
    topics = []
    for number in (1, 20):
        stranger.beacon(number)
        until(lambda: subscriber.sync() or subscriber.subscriber._subscription.asked)
        topics.append(stranger.subscribed())
        for later in range(10):  # further news change nothing while it waits
            stranger.beacon(number + later)
            subscriber.sync()
        assert not stranger.socket.poll(100)
        stranger.weights(topics[-1], number + 9)
        until(subscriber.sync)
        assert stranger.socket.recv() == b"\x00" + topics[-1]
    known = re.fullmatch(rb"w/gem/([0-9a-f]{16})/1/", topics[0])
    assert known is not None
    assert topics[1] == b"w/gem/" + known[1] + b"/2/"


def test_a_lost_answer_is_asked_for_again_once_the_way_is_seen_to_be_free(
    ends: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But never while no beacon comes: a large answer may be under way, and asking would only make the queue longer."""
    monkeypatch.setattr(subscription, "_AGAIN_SECONDS", 0.2)
    stranger, subscriber = Stranger(), Subscriber("tcp")
    ends += [stranger, subscriber]
    subscriber.subscriber.route(stranger.route)
    stranger.subscribed()
    stranger.beacon(1)
    until(lambda: subscriber.sync() or subscriber.subscriber.requests)
    stranger.subscribed()  # and no answer
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        assert not subscriber.sync()
        time.sleep(0.02)
    assert subscriber.subscriber.requests == 1

    def again() -> bool:
        stranger.beacon(1)
        subscriber.sync()
        return subscriber.subscriber.requests == 2

    until(again)
    assert subscriber.subscriber.repeated == 1
    stranger.weights(stranger.subscribed(), 1)
    until(subscriber.sync)


STOPPED = """
import os, signal, sys
import zmq
from protocol.weights.manifest import Entry, Manifest
from protocol.messages.core import Route
from protocol.weights.manifest import NOTHING
from protocol.weights.publisher import WeightSubscriber
import numpy as np
manifest = Manifest([Entry("table", "|u1", (4 << 20,), 0)])
subscriber = WeightSubscriber(zmq.Context(1), "gem", manifest, "tcp")
subscriber.route(Route.model_validate_json(sys.argv[1]))
out = np.zeros(manifest.nbytes, np.uint8)
version = subscriber.wait(out, 60, lambda: None)
print("first", flush=True)
sys.stdin.readline()
while not subscriber.requests > 1:
    subscriber.adopt(out, version)
os.kill(os.getpid(), signal.SIGSTOP)
version = subscriber.wait(out, 60, lambda: None, version)
while version.version < 101:
    version = subscriber.wait(out, 60, lambda: None, version)
print(version.version, subscriber.requests, flush=True)
"""


def test_a_stopped_subscriber_costs_its_publisher_one_snapshot_at_most(ends: list[Any]) -> None:
    """Z2: 100 publications of 4 MiB; what nobody takes in is not sent, and the newest arrives when it goes on."""
    manifest = Manifest([Entry("table", "|u1", (4 << 20,), 0)])
    publisher = Publisher(None, manifest=manifest)
    ends.append(publisher)
    me = psutil.Process()
    with ExitStack() as stack:
        route = publisher.route.model_dump_json()
        processes = [stack.enter_context(python(STOPPED, route)) for _ in range(2)]
        publisher.publish(1)
        assert [line(process) for process in processes] == ["first", "first"]
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        publisher.publish(2)
        until(lambda: all(psutil.Process(p.pid).status() == psutil.STATUS_STOPPED for p in processes))
        before = me.memory_info().rss
        for number in range(3, 102):
            publisher.publish(number)
            time.sleep(0.005)
        grown = me.memory_info().rss - before
        assert publisher.counters["weights_answered"] <= 4  # two each
        assert grown < 3.5 * manifest.nbytes, f"{grown / 2**20:.1f} MiB more"
        for process in processes:
            process.send_signal(signal.SIGCONT)
        for process in processes:
            version, requests = map(int, line(process).split())
            assert version == 101
            assert requests <= 4


def test_strange_subscriptions_confuse_nobody(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "tcp")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    raw = connect(subscriber.context, zmq.XSUB, publisher.address)
    topics = (b"w", b"w/", b"w/gem/", b"w/none/a/1/", b"w/gem/x/1/", b"w/gem/a/-1/", b"b/\xff/", b"//", b"\xff" * 300)
    events = [b"\x01" + topic for topic in topics]
    for event in (b"", b"hello", b"\x02w/gem/a/1/", b"xw/gem/a/1/", *events):
        raw.send(event)
    until(lambda: publisher.counters["weights_refused"] >= len(topics))
    assert publisher.counters["weights_answered"] == 1
    publisher.publish(2)
    subscriber.get(publisher, Version(1, 2))
    raw.close(linger=0)


def test_a_withdrawn_request_is_not_answered(ends: list[Any]) -> None:
    publisher = Publisher(None)
    ends.append(publisher)
    context = zmq.Context(1)
    raw = connect(context, zmq.XSUB, publisher.address)
    raw.send(b"\x01w/gem/a/1/")
    entry = publisher.publisher._policies[POLICY]
    until(lambda: entry.asked)
    raw.send(b"\x01w/gem/a/2/")  # replaces it
    until(lambda: entry.asked == {b"a": b"w/gem/a/2/"})
    raw.send(b"\x00w/gem/a/2/")
    until(lambda: not entry.asked)
    raw.send(b"\x01w/gem/b/1/")
    until(lambda: entry.asked)
    raw.close(linger=0)  # and with the connection
    until(lambda: not entry.asked)
    publisher.publish(1)
    time.sleep(0.1)
    assert publisher.counters["weights_answered"] == 0
    context.destroy(linger=0)


def test_half_precision_on_the_wire_and_none_in_memory(ends: list[Any], memory_dir: Path) -> None:
    """bf16 halves what float32 entries cost on the wire; whole numbers arrive exactly, and so does all by memory."""
    manifest = Manifest([Entry("w", "<f4", (30_000,), 0), Entry("n", "<i8", (7,), 120_000 + 64 - 120_000 % 64)])
    values = np.zeros(manifest.nbytes, np.uint8)
    values[:120_000].view("<f4")[:] = np.random.default_rng(1).normal(size=30_000)
    values[-64:-8].view("<i8")[:] = range(10**12, 10**12 + 7)
    publisher = Publisher(memory_dir / MAILBOX, manifest=manifest, wire="bf16")
    there, here = Subscriber("tcp", manifest), Subscriber("memory", manifest)
    ends += [publisher, there, here]
    publisher.publisher.publish(POLICY, values, Version(1, 1))
    for subscriber in (there, here):
        subscriber.subscriber.route(publisher.route)
        assert subscriber.subscriber.wait(subscriber.out, 60, lambda: None) == Version(1, 1)
    assert publisher.counters["weights_bytes"] == 60_000 + 56
    assert np.array_equal(here.out, values)
    assert np.array_equal(there.out[-64:], values[-64:])
    exact, rounded = (out[:120_000].view("<f4") for out in (here.out, there.out))
    assert not np.array_equal(exact, rounded)
    assert (abs(exact - rounded) <= abs(exact) * 2**-8).all()


def test_publishing_waits_for_no_subscriber_and_costs_one_copy(ends: list[Any]) -> None:
    """The training thread's part: one copy into the mailbox, whoever is asking for 32 MiB meanwhile."""
    manifest = Manifest([Entry("w", "<f4", (8 << 20,), 0)])
    publisher, subscriber = Publisher(None, manifest=manifest, wire="bf16"), Subscriber("tcp", manifest)
    ends += [publisher, subscriber]
    values, copy = np.zeros(manifest.nbytes, np.uint8), np.zeros(manifest.nbytes, np.uint8)
    publisher.publisher.publish(POLICY, values, Version(1, 1))
    subscriber.subscriber.route(publisher.route)
    assert subscriber.subscriber.wait(subscriber.out, 60, lambda: None) == Version(1, 1)
    seconds, floors = [], []
    for number in range(2, 100):
        started = time.perf_counter()
        publisher.publisher.publish(POLICY, values, Version(1, number))
        seconds.append(time.perf_counter() - started)
        subscriber.subscriber.adopt(subscriber.out, Version(1, 1))
        started = time.perf_counter()
        np.copyto(copy, values)
        floors.append(time.perf_counter() - started)
        if number > 10 and min(seconds) < 2.5 * min(floors):
            break
    else:
        pytest.fail(f"a publication takes {min(seconds):.4f} s at best, a copy {min(floors):.4f} s")


def test_weights_on_their_way_from_a_device_are_published_by_the_thread_and_the_newest_wins(ends: list[Any]) -> None:
    """C11: the caller goes on at once; of several that wait the newest is published, the others are counted."""
    publisher, subscriber = _pair(ends, None, "tcp")
    arrive, fetched = threading.Event(), []

    def on_its_way(number: int) -> Callable[[], NDArray[np.uint8]]:
        def fetch() -> NDArray[np.uint8]:
            arrive.wait(60)
            fetched.append(number)
            return np.full(NBYTES, number, np.uint8)

        return fetch

    publisher.publisher.publish(POLICY, on_its_way(1), Version(1, 1))
    until(lambda: not publisher.publisher._policies[POLICY].staged)  # the thread waits for it
    for number in (2, 3, 4):
        publisher.publisher.publish(POLICY, on_its_way(number), Version(1, number))
    assert fetched == []
    arrive.set()
    subscriber.subscriber.route(publisher.route)
    subscriber.get(publisher, Version(1, 4))
    assert fetched == [1, 4]
    assert publisher.counters["weights_superseded"] == 2


def test_the_last_publication_is_in_the_mailbox_when_the_publisher_has_ended(memory_dir: Path) -> None:
    publisher = Publisher(memory_dir / MAILBOX)
    reader = SharedSnapshot.attach(memory_dir / MAILBOX, MANIFEST.hash)
    arrive = threading.Event()

    def first() -> NDArray[np.uint8]:
        arrive.wait(60)
        return np.full(NBYTES, 2, np.uint8)

    publisher.publisher.publish(POLICY, first, Version(1, 2))
    until(lambda: not publisher.publisher._policies[POLICY].staged)  # the thread waits for it
    publisher.publisher.publish(POLICY, lambda: np.full(NBYTES, 3, np.uint8), Version(1, 3))
    timer = threading.Timer(0.2, arrive.set)
    timer.start()
    publisher.close()
    timer.join()
    assert reader.version == Version(1, 3)
    reader.remove()


def test_what_ends_the_publications_thread_is_raised_in_the_training_thread(ends: list[Any]) -> None:
    publisher = Publisher(None)
    ends.append(publisher)

    def lost() -> NDArray[np.uint8]:
        raise RuntimeError("the device is lost")

    publisher.publisher.publish(POLICY, lost, Version(1, 1))
    until(lambda: publisher.publisher._publication._fault)
    with pytest.raises(RuntimeError, match="the device is lost"):
        publisher.publisher.check()
    with pytest.raises(RuntimeError, match="the device is lost"):
        publisher.publish(2)


def test_a_publications_thread_that_hangs_is_told_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_thread, "_END_SECONDS", 0.1)
    publisher, go_on = Publisher(None), threading.Event()

    def hang() -> NDArray[np.uint8]:
        go_on.wait(60)
        return np.zeros(NBYTES, np.uint8)

    publisher.publisher.publish(POLICY, hang, Version(1, 1))
    with raises(Timeout, "publication_did_not_end"):
        publisher.publisher.close()
    go_on.set()
    monkeypatch.setattr(publisher_thread, "_END_SECONDS", 60.0)
    publisher.close()


def test_waiting_for_weights_that_never_come_ends_at_its_deadline(ends: list[Any]) -> None:
    publisher, subscriber = _pair(ends, None, "tcp")
    looks: list[float] = []
    started = time.monotonic()
    assert subscriber.subscriber.wait(subscriber.out, 1.0, lambda: looks.append(1)) is None  # no route yet
    subscriber.subscriber.route(publisher.route)
    assert subscriber.subscriber.wait(subscriber.out, 0.3, publisher.publisher.check) is None  # nothing published yet
    assert 1.2 < time.monotonic() - started < 60
    assert len(looks) > 2


def test_a_beacon_a_second_tells_the_version_to_who_missed_it(ends: list[Any]) -> None:
    publisher = Publisher(None)
    ends.append(publisher)
    publisher.publish(7)
    context = zmq.Context(1)
    raw = connect(context, zmq.SUB, publisher.address)
    raw.setsockopt(zmq.SUBSCRIBE, f"b/{POLICY}/".encode())
    assert raw.poll(60_000)
    raw.recv_multipart()  # the answer to the subscription
    times: list[float] = []
    while len(times) < 3 or not any(0.8 < gap < 2 for gap in np.diff(times)):
        assert len(times) < 10, np.diff(times)
        assert raw.poll(60_000)
        message, _ = decode(raw.recv_multipart()[1:])
        assert isinstance(message, Beacon)
        assert message.version == 7
        times.append(time.monotonic())
    raw.close(linger=0)
    context.destroy(linger=0)


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
    socket = subscriber.subscriber._subscription._socket
    assert socket is not None
    waiting = 0
    while socket.poll(0):
        socket.recv_multipart()
        waiting += 1
    assert waiting <= 2


def test_where_memory_wakes_nobody_beacons_do(
    ends: list[Any], memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a system without futexes."""
    monkeypatch.setattr(futex, "AVAILABLE", False)
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "memory")
    subscriber.subscriber.route(publisher.route)
    for number in range(1, 6):
        publisher.publish(number)
        subscriber.have = _next(subscriber)
        assert subscriber.have == Version(1, number)
        assert (subscriber.out == number).all()
    assert subscriber.subscriber.requests == 0


def test_who_waits_for_news_is_woken_by_them_and_not_by_the_clock(
    ends: list[Any], memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U16: the sleep has no bound here, and still ends at once."""
    monkeypatch.setattr(publishing, "_LOOK_SECONDS", 600.0)
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.have = _next(subscriber)
    delays = []
    for number in range(2, 7):
        timer = threading.Timer(0.1, publisher.publish, (number,))
        started = time.monotonic()
        timer.start()
        subscriber.have = _next(subscriber)
        delays.append(time.monotonic() - started)
        timer.join()
        assert subscriber.have == Version(1, number)
    assert 0.05 < min(delays) < 2, delays


def test_waiting_for_a_mailbox_that_a_dead_writer_left_half_written_costs_nothing(
    ends: list[Any], memory_dir: Path
) -> None:
    publisher, subscriber = _pair(ends, memory_dir / MAILBOX, "memory")
    publisher.publish(1)
    publisher.publisher._policies[POLICY].mailbox._words[0][0] |= np.uint64(1)
    subscriber.subscriber.route(publisher.route)
    spent, looks = time.process_time(), 0

    def look() -> None:
        nonlocal looks
        looks += 1

    assert subscriber.subscriber.wait(subscriber.out, 1.0, look) is None
    assert time.process_time() - spent < 0.3
    assert looks < 40
    publisher.publish(2)
    subscriber.get(publisher, Version(1, 2))


def _next(subscriber: Subscriber) -> Version:
    version = subscriber.subscriber.wait(subscriber.out, 60, lambda: None, subscriber.have)
    assert version is not None
    return version


def test_closing_removes_the_mailbox_once_nobody_holds_it(memory_dir: Path) -> None:
    publisher, subscriber = Publisher(memory_dir / MAILBOX), Subscriber("memory")
    subscriber.subscriber.route(publisher.route)
    publisher.publish(1)
    subscriber.get(publisher, Version(1, 1))
    publisher.close()
    assert [path.name for path in files()] == [MAILBOX]
    subscriber.close()
    assert sweep() == [memory_dir / MAILBOX]
