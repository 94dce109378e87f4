"""How many bytes a peer may have waiting at a bound socket, how much it may send in vain, and who was not even let in.

ZeroMQ's high-water mark counts messages, and only whole ones: the parts of a message that never ends, or topics that
are subscribed to for ever, have no bound there. The kernel knows how many bytes came over each connection, and whoever
reads the socket knows how many it took. What lies between lies in ZeroMQ's memory.

In flows: accepted connections and failed handshakes (the sockets' monitors), the kernel's counts, what was taken and
what of it was of no use. Out flows: connections that are shut down, at which ZeroMQ lets go of what came over them, or
are no longer heard; refusals. All are shut down where somebody's key has changed. Where the kernel is not Linux no
connection is seen, and no bytes are counted.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket as system
import struct
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol.refusal_log import RefusalLog

if TYPE_CHECKING:
    from protocol.transport.curve import Keys

_LOOK_MS, _LOOK_OFTEN_MS = 100, 20
"""Milliseconds between two looks; the shorter while anybody uses more than a quarter of what it may."""
_LEISURE, _LATEST = 100, 1.0
"""How many times as long as a look takes it rests until the next, and the most of it in seconds: of a thousand
connections one takes milliseconds."""
_RECEIVED_AT, _INFO_BYTES = 128, 136
"""Of tcpi_bytes_received in Linux's tcp_info, and bytes of it that are asked for."""
_COOKIE = 57
"""Linux's SO_COOKIE: a number that no other socket has had."""
_LIBRARY, _HELD = ctypes.CDLL(None), ctypes.PyDLL(None)
_SOURCE = int(zmq.SRCFD)
_RESET = struct.pack("ii", 1, 0)
_SHORT_FRAME = 256
_SEALED = 33
"""Bytes that CURVE adds to a frame."""
_TOPIC_COMMAND = 24 + _SEALED
"""Bytes besides the topic that a subscription has at most on the wire."""
_TOPIC_MEMORY, _LETTER_MEMORY = 128, 64
"""Bytes of memory that a topic takes, and each of its letters that it does not share with the one before it: ZeroMQ
keeps topics in a tree with a node for each letter."""
_SLACK, _SLACK_A_SECOND = 65_536, 256
"""Bytes that are nobody's message: the handshake, heartbeats."""
_IN_VAIN, _IN_VAIN_A_SECOND = 200, 10.0
"""Messages of no use that one connection may send at once, and a second: who connects anew repeats a few."""
_TOPIC_IN_VAIN = 10
"""Such messages that a topic counts as: nobody asks for another's, and each takes kilobytes as long as it is known."""
_MUTED = 20
"""Connections that are not heard; where one more would be, the first of them is cut."""
_NO_PACKET = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""The instruction of Linux's packet filter that lets none through."""
_FILTER = system.SOL_SOCKET, 26, struct.pack("HP", 1, ctypes.addressof(_NO_PACKET))
"""SO_ATTACH_FILTER with that program."""
_KEYS_SECONDS = 1.0
_TRIM_SECONDS, _TRIMS, _TRIMS_AFTER_END = 1.0, 10, 2
"""How often, and how many times, memory is given back after a cut: ZeroMQ lets go of it bit by bit. Less often after a
connection that ended by itself; after handshakes that failed once."""
_EVENTS = int(zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_STRANGE = {
    int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH): ("keys_at_one_end", "only one of the two ends has keys"),
    int(zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC): ("other_server", "it looks for somebody with another key"),
    int(zmq.PROTOCOL_ERROR_ZMTP_UNEXPECTED_COMMAND): ("too_early", "it sent more before it was answered"),
}
"""Code of a failed handshake -> its kind and reason."""


def experience_limits(pools: int) -> tuple[int, int]:
    """Bytes of one peer and of all that may wait where segments come in, if `pools` bytes are what all actors may have
    in flight: who keeps to his credit is never the one who has most once there are more."""
    return 2 * pools + 16 * 2**20, 2 * pools + 16 * 2**20


@dataclass(slots=True)
class _Port:
    monitor: zmq.Socket[bytes]
    name: str
    share: int
    total: int
    connections: dict[int, _Connection] = field(default_factory=dict)
    """By descriptor."""


class _Topics:
    """What one connection is subscribed to."""

    def __init__(self) -> None:
        self.held = 0
        self._costs: dict[bytes, int] = {}
        self._last = b""

    def add(self, topic: bytes) -> int:
        """Bytes of memory that all of them take."""
        if topic not in self._costs:
            shared = os.path.commonprefix((self._last, topic))  # noqa: RUF071 - these are no paths
            own = len(topic) - len(shared)
            self._costs[topic] = cost = _TOPIC_MEMORY + len(topic) + _LETTER_MEMORY * own
            self.held, self._last = self.held + cost, topic
        return self.held

    def remove(self, topic: bytes) -> None:
        """It is subscribed to no more."""
        self.held -= self._costs.pop(topic, 0)


@dataclass(slots=True)
class _Connection:
    port: _Port
    descriptor: int
    cookie: int
    host: str
    since: float
    before: int
    """Bytes that had come when it was first seen: whether they were taken by then is not known."""
    taken_before: int
    topics: _Topics = field(default_factory=_Topics)
    waiting: int = 0
    in_vain: float = 0.0
    """Messages of no use, less what it may send of them, when the newest came."""
    in_vain_at: float = 0.0
    muted: bool = False
    cut: bool = False


class ByteGuard:
    """Of all sockets that a worker binds. Its thread sleeps but for a few looks a second; it touches no socket itself,
    so that whoever reads one may do so in a thread of its own."""

    def __init__(self, refusals: RefusalLog | None = None, keys: Keys | None = None) -> None:
        self.refusals = refusals or RefusalLog()
        self._keys, self._known = keys, {} if keys is None else keys.known
        self._sealed = 0 if keys is None else _SEALED
        self._ports: list[_Port] = []
        self._taken: dict[int, int] = {}
        """Descriptor -> bytes of what was taken from it, by whichever connection had it."""
        self._connections: dict[int, _Connection] = {}
        """Those of all ports that were not cut, by descriptor."""
        self._muted: list[_Connection] = []
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._trim_at, self._trims = 0.0, 0
        self.cut = 0
        """Connections that were."""

    def watch(self, socket: zmq.Socket[bytes], name: str, share: int, total: int) -> None:
        """Before `bind`: one connection may have `share` bytes waiting there, all together `total`."""
        self._ports.append(_Port(socket.get_monitor_socket(_EVENTS), name, share, total))

    def start(self) -> None:
        """Once all are bound."""
        if self._ports and self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._run, name="byte_guard", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Before the sockets are closed."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        for port in self._ports:
            port.monitor.close(linger=0)
        self._ports.clear()

    def took(self, frames: list[zmq.Frame]) -> None:
        """A whole message was read."""
        self.took_sizes(frames[0], map(len, frames))

    def took_sizes(self, frame: zmq.Frame, sizes: Iterable[int]) -> None:
        """A whole message was read, of frames of these `sizes`; `frame` is one of them."""
        count = 0
        for size in sizes:
            count += size + self._sealed + (2 if size + self._sealed < _SHORT_FRAME else 9)
        source = _source(frame)
        if source is not None:
            self._taken[source] = self._taken.get(source, 0) + count

    def subscription(self, frame: zmq.Frame) -> None:
        """An event of an XPUB socket was read: the topic stays in ZeroMQ's memory until it is unsubscribed from."""
        source = _source(frame)
        if source is None:  # made here, where a connection ended
            return
        event = frame.bytes
        self._taken[source] = self._taken.get(source, 0) + len(event) + _TOPIC_COMMAND
        one = self._connections.get(source)
        if one is None:  # it was cut, and ZeroMQ lets go of what it subscribed to
            return
        if event[:1] != b"\1":
            one.topics.remove(event[1:])
        elif one.topics.add(event[1:]) > one.port.share:  # at once: megabytes come between two looks
            one.waiting = one.topics.held
            self._cut_who_has_most(one, one.waiting)

    def in_vain(self, frame: zmq.Frame) -> None:
        """The message of this frame was of no use: refused, known already, a topic that nobody publishes. Who sends
        many is not heard for some five seconds, until the kernel takes it for dead: to look at them costs more than to
        send them, and who was cut would send the next ones at once."""
        source = _source(frame)
        one = None if source is None else self._connections.get(source)
        if one is None or one.muted:
            return
        now = time.monotonic()
        one.in_vain = max(0.0, one.in_vain - _IN_VAIN_A_SECOND * (now - one.in_vain_at))
        one.in_vain += _TOPIC_IN_VAIN if one.topics.held else 1
        one.in_vain_at = now
        if one.in_vain > _IN_VAIN:
            one.muted = True
            try:
                with _socket_of(one) as connection:
                    connection.setsockopt(*_FILTER)
            except OSError:  # it ended, or this kernel has no filters
                self._cut(one)
            self._muted = [*(known for known in self._muted if self._connections.get(known.descriptor) is known), one]
            for first in self._muted[:-_MUTED]:
                self._cut(first)
            reason = "many of its messages were refused, known already or topics that nobody publishes"
            self.refusals.tell("connection_muted", "in_vain", reason, port=one.port.name, host=one.host)

    def _run(self) -> None:
        poller = zmq.Poller()
        for port in self._ports:
            poller.register(port.monitor, zmq.POLLIN)
        patience, look_at, keys_at = _LOOK_MS, 0.0, 0.0
        while not self._closing.is_set():
            ready = dict(poller.poll(patience))
            for port in self._ports:
                if port.monitor in ready:
                    self._admit(port)
            now = time.monotonic()
            if now >= look_at:
                began = time.thread_time()
                close = [self._look(port, now) for port in self._ports]
                rest = min(_LATEST, _LEISURE * (time.thread_time() - began))
                patience = max(_LOOK_OFTEN_MS if any(close) else _LOOK_MS, int(1000 * rest))
                look_at = now + patience / 1000
            if self._keys is not None and now >= keys_at:
                keys_at = now + _KEYS_SECONDS
                before, self._known = self._known, self._keys.known_now(self._known, self.refusals)
                if before != self._known:
                    self._cut_everybody()
            if self._trims and now >= self._trim_at:
                self._trim_at, self._trims = now + _TRIM_SECONDS, self._trims - 1
                with suppress(AttributeError):  # a C library that has none gives back by itself
                    _LIBRARY.malloc_trim(0)

    def _admit(self, port: _Port) -> None:
        while port.monitor.poll(0):
            event = parse_monitor_message(port.monitor.recv_multipart())
            descriptor = int(event["value"])
            if event["event"] != zmq.EVENT_ACCEPTED:
                self._tell_stranger(port, event["event"], descriptor)
                continue
            if sys.platform != "linux":
                continue
            with suppress(OSError):  # it ended already
                cookie = int(_asked(descriptor, system.SOL_SOCKET, _COOKIE, 8)[0])
                connection = system.socket(fileno=os.dup(descriptor))
                with connection:
                    host = str(connection.getpeername()[0]).removeprefix("::ffff:")
                taken = self._taken.get(descriptor, 0)
                came = _received(descriptor, cookie)
                one = _Connection(port, descriptor, cookie, host, time.monotonic(), came, taken)
                port.connections[descriptor] = self._connections[descriptor] = one

    def _tell_stranger(self, port: _Port, what: int, fault: int) -> None:
        kind, reason = _STRANGE.get(fault, ("malformed", f"what it says is no ZMTP ({fault:#x})"))
        if what == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:  # whichever end sees first that keys differ hangs up
            kind, reason = "hung_up", "it left before it showed a key: it may have none, or only look at the port"
        self._trims = self._trims or 1  # a crowd of them leaves megabytes behind
        self.refusals.tell("handshake_refused", kind, reason, port=port.name)

    def _look(self, port: _Port, now: float) -> bool:
        """Whether somebody may soon have too much waiting; whoever has is cut."""
        for one in list(port.connections.values()):
            try:
                came = _received(one.descriptor, one.cookie)
            except OSError:
                del port.connections[one.descriptor]
                if self._connections.get(one.descriptor) is one:
                    del self._connections[one.descriptor]
                if not self._trims:  # else C's allocator keeps all that waited for itself
                    self._trim_at, self._trims = now + _TRIM_SECONDS, _TRIMS_AFTER_END
                continue
            taken = self._taken.get(one.descriptor, 0)
            between = came - one.before - (taken - one.taken_before) - _SLACK_A_SECOND * (now - one.since)
            if between < 0:  # what is not owed now is no credit for later
                one.taken_before -= int(between)
            one.waiting = max(0, int(between) - _SLACK) + one.topics.held
        living = [one for one in port.connections.values() if not one.cut]
        together = sum(one.waiting for one in living)
        for one in sorted(living, key=lambda one: -one.waiting):
            if one.waiting <= port.share and together <= port.total:
                break
            self._cut_who_has_most(one, together)
            together -= one.waiting
        return together > port.total / 4 or any(one.waiting > port.share / 4 for one in living)

    def _cut_who_has_most(self, one: _Connection, together: int) -> None:
        self._cut(one)
        port = one.port
        reason = (
            f"{one.waiting} bytes of it wait or belong to a message that has not ended, of {together} of all; "
            f"{port.share} and {port.total} may"
        )
        self.refusals.tell("connection_cut", "bytes_waiting", reason, port=port.name, host=one.host)

    def _cut_everybody(self) -> None:
        """Whose key is good connects anew at once; who holds one that was revoked is not let in again."""
        for port in self._ports:
            self._admit(port)  # who came in before is cut, too
            for one in port.connections.values():
                self._cut(one)
            self.refusals.tell("connection_cut", "keys_changed", "who may come in is asked again", port=port.name)

    def _cut(self, one: _Connection) -> None:
        one.cut = True
        self._connections.pop(one.descriptor, None)
        self.cut, self._trims = self.cut + 1, _TRIMS
        with suppress(OSError), _socket_of(one) as connection:
            connection.setsockopt(system.SOL_SOCKET, system.SO_LINGER, _RESET)  # else it may learn in a minute
            connection.shutdown(system.SHUT_RDWR)


def _source(frame: zmq.Frame) -> int | None:
    """Descriptor of the connection that a message came over; None where none is seen: a peer that speaks ZMTP 1.0."""
    try:
        return int(frame.get(_SOURCE))
    except (zmq.ZMQError, ValueError):
        return None


@contextmanager
def _socket_of(one: _Connection) -> Iterator[system.socket]:
    """ZeroMQ's socket of a connection; OSError if it ended."""
    with system.socket(fileno=os.dup(one.descriptor)) as connection:
        if _asked(connection.fileno(), system.SOL_SOCKET, _COOKIE, 8)[0] != one.cookie:
            raise OSError(errno.EBADF, "it ended")
        yield connection


def _received(descriptor: int, cookie: int) -> int:
    """Bytes that came over the connection since it began; OSError if it ended: its number may be another's by now. A
    socket of Python's would close it, and it is ZeroMQ's."""
    if _asked(descriptor, system.SOL_SOCKET, _COOKIE, 8)[0] != cookie:
        raise OSError(errno.EBADF, "it ended")
    return int(_asked(descriptor, system.IPPROTO_TCP, system.TCP_INFO, _INFO_BYTES)[_RECEIVED_AT // 8])


def _asked(descriptor: int, level: int, option: int, size: int) -> ctypes.Array[ctypes.c_uint64]:
    """What the kernel says of a socket, in words; OSError if it is none. The interpreter is not let go meanwhile: of a
    thousand connections that would take turns with whoever reads them a thousand times."""
    words, length = (ctypes.c_uint64 * (size // 8))(), ctypes.c_uint32(size)
    if _HELD.getsockopt(descriptor, level, option, words, ctypes.byref(length)):
        raise OSError(errno.EBADF, "it is none")
    return words
