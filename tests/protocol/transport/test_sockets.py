"""Sockets: blocks of ports, addresses that are none, and what is open to the network."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from protocol.errors import ConfigurationError
from protocol.transport.sockets import (
    BLOCK,
    HIGH_WATER,
    UNREAD,
    Ports,
    check_bind,
    connect,
    is_loopback,
    poll,
)
from tests.faults import raises
from tests.tools import ROOT, require, skip_or_fail
from tests.waiting import until

KINDS: dict[int, int] = {0: zmq.ROUTER, 1: zmq.PULL, 2: zmq.XPUB}


def _binds(ports: Ports) -> bool:
    try:
        ports.bind(KINDS)
    except ConfigurationError:
        return False
    return True


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    made = zmq.Context(1)
    yield made
    made.destroy(linger=0)


def test_a_block_of_ports_is_consecutive_from_its_base(
    context: zmq.Context[zmq.Socket[bytes]], free_port_block: int
) -> None:
    ports = Ports(context, "127.0.0.1", free_port_block)
    assert ports.bind(KINDS) == {offset: f"tcp://127.0.0.1:{free_port_block + offset}" for offset in KINDS}
    ports.close()
    assert ports.sockets == {}

    until(lambda: _binds(ports))  # they are free again; ZeroMQ closes in a thread of its own
    ports.close()


@pytest.mark.parametrize("offset", [0, 2])
def test_a_busy_port_is_told_in_one_sentence_and_nothing_stays_bound(
    context: zmq.Context[zmq.Socket[bytes]], free_port_block: int, offset: int
) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", free_port_block + offset))
        busy.listen()
        ports = Ports(context, "127.0.0.1", free_port_block)
        with raises(ConfigurationError, "ports_not_bindable", peer="127.0.0.1", first=free_port_block):
            ports.bind(KINDS)
        assert ports.sockets == {}
    again = Ports(context, "127.0.0.1", free_port_block)
    until(lambda: _binds(again))


def test_without_a_base_every_worker_finds_a_block_of_its_own(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    workers = [Ports(context, "127.0.0.1", 0) for _ in range(30)]  # alive to the end: a collected one frees its ports
    blocks = [worker.bind(KINDS) for worker in workers]
    assert len({block[0] for block in blocks}) == 30
    assert all(int(block[0].rpartition(":")[2]) % BLOCK == 0 for block in blocks)


def test_what_is_advertised_may_differ_from_what_is_bound(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    addresses = Ports(context, "127.0.0.1", 0, advertise="node7").bind({0: zmq.PULL})
    assert addresses[0].startswith("tcp://node7:")


@pytest.mark.parametrize("host", ["no.such.host.invalid", "300.1.1.1", "", "127.0.0.1:5"])
def test_a_host_that_cannot_be_bound_is_told_in_one_sentence(
    context: zmq.Context[zmq.Socket[bytes]], host: str
) -> None:
    with raises(ConfigurationError, "ports_not_bindable", peer=host):
        Ports(context, host, 23_450).bind({0: zmq.PULL})


@pytest.mark.parametrize("base", [65_527, 70_000])
def test_ports_beyond_the_last_are_refused(context: zmq.Context[zmq.Socket[bytes]], base: int) -> None:
    with raises(ConfigurationError, "port_out_of_range", value=base + 9, limit=65_526):
        Ports(context, "127.0.0.1", base).bind({9: zmq.PULL})


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_may_be_bound(host: str) -> None:
    assert is_loopback(host)
    check_bind(host, keys="", insecure=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "*", "", "::", "10.0.0.1", "node7", "localhost.evil.org", "127.0.0.1.org"])
def test_no_socket_is_opened_to_the_network_without_insecure(host: str) -> None:
    with raises(ConfigurationError, "bind_without_keys", peer=host):
        check_bind(host, keys="", insecure=False)
    check_bind(host, keys="", insecure=True)
    check_bind(host, keys="keys", insecure=False)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "here",
        "127.0.0.1:5600",
        "http://127.0.0.1:5600",
        "ipc:///tmp/x",
        "inproc://x",
        "tcp://127.0.0.1",
        "tcp://:5600",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:port",
        "tcp://127.0.0.1:99999",
        "tcp://user@host:5600",
        "tcp://127.0.0.1:5600/path",
        "tcp://ho st:5600",
        "tcp://*:5600",
        "tcp://[::1:5600",
    ],
)
def test_what_is_no_address_is_refused_and_leaves_no_socket(
    context: zmq.Context[zmq.Socket[bytes]], address: str
) -> None:
    with raises(ConfigurationError, "address_malformed", value=address):
        connect(context, zmq.PUSH, address)
    started = time.monotonic()
    context.term()  # hangs if a socket were left open
    assert time.monotonic() - started < 60


def test_addresses_of_both_families_are_accepted(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    for address in ("tcp://127.0.0.1:5600", "tcp://[::1]:5600", "tcp://node-7.local:5600"):
        connect(context, zmq.PUSH, address).close()


def test_polling_ends_at_its_deadline_or_at_the_first_message(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    addresses = (ports := Ports(context, "127.0.0.1", 0)).bind({0: zmq.PULL, 1: zmq.PULL})
    sockets = list(ports.sockets.values())
    started = time.monotonic()
    assert not poll(sockets, 50)
    assert 0.04 < time.monotonic() - started < 60
    push = connect(context, zmq.PUSH, addresses[1])
    push.send(b"x")
    assert poll(sockets, 600_000)
    assert time.monotonic() - started < 60


def test_Z3_sending_to_nobody_is_bounded(context: zmq.Context[zmq.Socket[bytes]], free_port_block: int) -> None:
    """Z3: what may not be kept for an absent peer is refused at once; closing never lingers."""
    address = f"tcp://127.0.0.1:{free_port_block}"
    keeps = connect(context, zmq.PUSH, address)
    keeps.send(b"x", zmq.NOBLOCK)
    refuses = connect(context, zmq.DEALER, address, queue=False)
    with pytest.raises(zmq.Again):
        refuses.send(b"x", zmq.NOBLOCK)
    started = time.monotonic()
    for sender in (keeps, refuses):
        sender.close()
    context.term()
    assert time.monotonic() - started < 60


def test_Z2_all_that_is_published_waits_for_readers_that_do_not_look(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Z2: a publisher throws away in silence what is beyond a mark, so the mark is far beyond what is ever under way:
    10 MB are more than the kernel's buffers hold."""
    ports = Ports(context, "127.0.0.1", 0)
    address = ports.bind({0: zmq.XPUB})[0]
    publisher, count, text = ports.sockets[0], UNREAD[zmq.XPUB], bytes(1_000)
    readers = [connect(context, zmq.SUB, address) for _ in range(2)]
    for reader in readers:
        reader.setsockopt(zmq.SUBSCRIBE, b"")
        assert publisher.poll(60_000)
        assert publisher.recv() == b"\x01"
    assert publisher.getsockopt(zmq.SNDHWM) == UNREAD[zmq.XPUB]
    for end in readers:
        assert end.getsockopt(zmq.SNDHWM) == end.getsockopt(zmq.RCVHWM) == HIGH_WATER
    for number in range(count):
        publisher.send(number.to_bytes(4, "big") + text, zmq.NOBLOCK)
    for reader in readers:
        for number in range(count):
            assert reader.poll(60_000), f"{number} of {count} came"
            assert int.from_bytes(reader.recv()[:4], "big") == number


def test_a_connection_whose_peer_says_nothing_any_more_is_made_anew(
    context: zmq.Context[zmq.Socket[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The peer accepts and then hangs: it is noticed without a message being sent, and everything queued is kept."""
    monkeypatch.setattr("protocol.transport.sockets._DEAD_AFTER", 300)
    with socket.create_server(("127.0.0.1", 0)) as peer:
        peer.settimeout(60)
        push = connect(context, zmq.PUSH, f"tcp://127.0.0.1:{peer.getsockname()[1]}")
        push.send(b"x")
        accepted = []
        for _ in range(3):
            accepted.append(peer.accept()[0])
        for connection in accepted:
            connection.close()


def test_every_socket_notices_a_dead_network_within_seconds(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """Both those that connect and those that bind; that it works is shown where a network is cut. One that connects
    notices a process that hangs, too."""
    ports = Ports(context, "127.0.0.1", 0)
    addresses = ports.bind({0: zmq.PULL})
    push = connect(context, zmq.PUSH, addresses[0])
    for made in (ports.sockets[0], push):
        for option, most in (
            (zmq.TCP_KEEPALIVE_IDLE, 1),
            (zmq.TCP_KEEPALIVE_INTVL, 1),
            (zmq.TCP_MAXRT, 5_000),
            (zmq.CONNECT_TIMEOUT, 2_000),
            (zmq.RECONNECT_IVL_MAX, 1_000),
        ):
            assert 0 < int(made.getsockopt(option)) <= most, option
    assert 0 < int(push.getsockopt(zmq.HEARTBEAT_IVL)) < int(push.getsockopt(zmq.HEARTBEAT_TIMEOUT)) <= 30_000


MOVING = """
import sys, time
import zmq
from pathlib import Path
from protocol.transport.sockets import Ports, connect
hosts = Path("/etc/hosts")
def name(address):
    hosts.write_text(f"127.0.0.1 localhost\\n{address} learner.rookery.test\\n")
def learner(address, base):
    ports = Ports(zmq.Context(1), address, base)
    return ports, ports.bind({0: zmq.PULL})[0].rpartition(":")[2]
name("127.0.0.2")
first, port = learner("127.0.0.2", 0)
push = connect(zmq.Context(1), zmq.PUSH, f"tcp://learner.rookery.test:{port}")
push.send(b"before")
assert first.sockets[0].poll(60_000) and first.sockets[0].recv() == b"before"
name("127.0.0.3")
second, _ = learner("127.0.0.3", int(port))
first.close()
end = time.monotonic() + 60
while not second.sockets[0].poll(200):
    push.send(b"after")
    assert time.monotonic() < end, "the name was not looked up again"
print("moved", flush=True)
"""


def test_a_name_is_looked_up_anew_at_each_reconnection(tmp_path: Path) -> None:
    """A learner whose pod got another address is found; /etc/hosts is this process's own, in a mount namespace."""
    if os.geteuid() != 0:
        skip_or_fail("needs root")
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    own = f'mount --bind "{hosts}" /etc/hosts && exec "{sys.executable}" -c "$0"'
    result = subprocess.run(
        [require("unshare"), "--mount", "sh", "-c", own, MOVING],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert result.stdout.strip() == "moved", result.stderr


def test_who_takes_a_name_that_is_taken_is_heard_and_leaves_nothing_behind(
    context: zmq.Context[zmq.Socket[bytes]],
) -> None:
    """What a second connection of one name says would stay unread where nobody sees it, even when it has ended."""
    ports = Ports(context, "127.0.0.1", 0)
    (address,) = ports.bind({0: zmq.ROUTER}).values()
    server = ports.sockets[0]
    try:
        for one, word in [(context.socket(zmq.DEALER), word) for word in (b"first", b"second")]:
            one.setsockopt(zmq.ROUTING_ID, b"same")
            one.connect(address)
            one.send(word)
            assert server.poll(10_000), f"{word!r} is heard"
            assert server.recv_multipart() == [b"same", word]
    finally:
        ports.close()
