"""Sockets with the same options everywhere: blocks of ports, no lingering, bounded waits; and the cheapest way to
receive: many messages in a row, of which the socket itself waits for the first.
"""

from __future__ import annotations

import errno
import ipaddress
import random
import socket as system
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

import zmq
from zmq.backend import Socket as Bare

from protocol.errors import ConfigurationError
from protocol.refusal_log import RefusalLog
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.ports import BLOCK, FREE, HTTP, LAST_BASE

if TYPE_CHECKING:
    from protocol.transport.curve import CurveContext, Keys

_NAMES = {0: "control", 1: "experience", 2: "weights", 3: "acknowledgements"}
_READABLE, _EVENTS = int(zmq.POLLIN), int(zmq.EVENTS)  # the enumerations are slower
_send = Bare.send  # what lies over it, for sockets of other kinds, costs as much again
_MORE, _LAST = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK)
HIGH_WATER = 100_000
"""Messages a socket may queue for one peer; beyond it a message would be lost, so credits are refused that reach it."""
LARGEST: dict[int, int] = {zmq.ROUTER: 4 * 2**20, zmq.DEALER: 4 * 2**20, zmq.XPUB: 512}
"""Bytes of the largest frame that is taken in by sockets of a type (XPUB: subscriptions). A peer that sends a larger
one is disconnected before its memory is found. What PULL and SUB take in depends on their policies."""
QUEUED: dict[int, int] = {zmq.PULL: 1_000, zmq.XPUB: 10}
"""Messages of one peer that wait at a bound socket of a type at most; its others wait in the kernel and where it is. An
XPUB socket takes in all that wait whenever it is asked anything, and as long as more come."""
UNREAD: dict[int, int] = {zmq.XPUB: 10_000}
"""Messages that wait at a bound socket of a type for one who does not read: acknowledgements take some 300 bytes each,
and a beacon tells a relay one for each of its actors."""
SUBSCRIPTIONS = 4 * 2**20, 64 * 2**20
"""Bytes that the topics of one subscriber, and of all of a socket, may take: a relay for 1,000 actors of a policy needs
500 KiB."""
_SUBSCRIBED = 32_768
"""Bytes that the kernel keeps of a subscriber's, who has little to say: whoever is cut leaves no more behind."""
_DEAD_AFTER = 5_000
"""Milliseconds without an answer to a packet after which a connection is given up and made anew. The kernel counts
packets, so that a large message on a slow network is not taken for silence."""
_BEAT = 1_000
"""Milliseconds between two heartbeats of a socket that connects: on an idle connection they are the packets that a dead
network leaves unanswered. One that is bound answers them and sends none: ZeroMQ ends its process where it wants to send
one on a connection that broke while its queue was full (libzmq, issue 4364); the kernel probes for it instead."""
_HANGS_AFTER = 30_000
"""Milliseconds without an answer to a heartbeat, though packets are answered: the peer's process hangs."""


def is_loopback(host: str) -> bool:
    """Whether `host` can only be reached from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, keys: str, insecure: bool) -> None:
    """Refuses an address that others can reach without keys, unless told `--insecure`."""
    if not keys and not insecure and not is_loopback(host):
        raise ConfigurationError("bind_without_keys", peer=host)


def open_context(keys: str, role: str) -> zmq.Context[zmq.Socket[bytes]]:
    """A worker's context: with the keys in the folder `keys`, or of the run in it, guarded by them; ConfigurationError
    if they are wrong."""
    if not keys:
        return zmq.Context(1)
    from protocol.transport.curve import CurveContext, Keys  # a run without keys does not need it

    return CurveContext.make(Keys.load(Path(keys), role))


def refusals_of(context: zmq.Context[zmq.Socket[bytes]]) -> RefusalLog:
    """Where a guarded context tells whom it did not let in, and its process what else it refuses; a new one else."""
    return getattr(context, "refusals", None) or RefusalLog()


class Ports:
    """Binds sockets of one worker to consecutive ports of `host`; base 0 finds a free block by itself."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        host: str,
        base: int,
        advertise: str = "",
        names: Mapping[int, str] = _NAMES,
        refusals: RefusalLog | None = None,
    ) -> None:
        self._context, self._names = context, names
        self._host = host
        self._advertise = advertise or host
        self._chosen = base
        self.sockets: dict[int, zmq.Socket[bytes]] = {}
        self.guard = ByteGuard(refusals or refusals_of(context), keys_of(context))
        """To be told of what is read from sockets whose bytes are bounded."""
        self.http: system.socket | None = None
        """Listens at base + 9, if asked for."""

    def bind(
        self,
        kinds: dict[int, int],
        largest: dict[int, int] | None = None,
        waiting: int = HIGH_WATER,
        http: bool = False,
        bytes_waiting: Mapping[int, tuple[int, int]] | None = None,
    ) -> dict[int, str]:
        """One socket of type `kinds[offset]` at base + offset; returns the addresses to tell others.

        `largest[offset]`: bytes of the largest frame that is taken in there, if other than `LARGEST` says. `waiting`:
        most messages of one peer that wait, in each direction. `http`: besides, a plain socket at base + 9.
        `bytes_waiting[offset]`: how many bytes of one peer, and of all, may wait there; whoever reads there tells
        `guard`.
        """
        if self._chosen > LAST_BASE:  # ZeroMQ would bind another port instead
            raise ConfigurationError("port_out_of_range", value=self._chosen + BLOCK - 1, limit=LAST_BASE)
        for attempt in range(200):
            base = self._chosen or random.SystemRandom().randrange(*FREE, BLOCK)
            try:
                for offset, kind in kinds.items():
                    socket = self._open_one(kind, self._names.get(offset, ""), (largest or {}).get(offset), waiting)
                    if offset in (bytes_waiting or {}):
                        self.guard.watch(socket, self._names.get(offset, "?"), *(bytes_waiting or {})[offset])
                    self.sockets[offset] = self._bind_one(socket, base + offset)
                self.guard.start()
                if http:
                    self.http = _listen(self._host, base + HTTP)
                    return {**self._addresses(kinds, base), HTTP: f"http://{bracketed(self._advertise)}:{base + HTTP}"}
                return self._addresses(kinds, base)
            except (zmq.ZMQError, OSError) as fault:
                self.close()
                if self._chosen or attempt == 199 or fault.errno != errno.EADDRINUSE:
                    raise ConfigurationError(
                        "ports_not_bindable", first=base, last=base + BLOCK - 1, peer=self._host, reason=fault.strerror
                    ) from None
        raise AssertionError("unreachable")

    def close(self) -> None:
        """Closes all sockets without waiting for peers."""
        self.guard.close()
        for socket in self.sockets.values():
            socket.close(linger=0)
        self.sockets.clear()
        if self.http is not None:
            self.http.close()
            self.http = None

    def _addresses(self, kinds: dict[int, int], base: int) -> dict[int, str]:
        return {offset: f"tcp://{bracketed(self._advertise)}:{base + offset}" for offset in kinds}

    def _open_one(self, kind: int, port: str, largest: int | None, waiting: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        _set_options(socket, kind, largest)
        socket.setsockopt(zmq.SNDHWM, min(waiting, UNREAD.get(kind, waiting)))
        socket.setsockopt(zmq.RCVHWM, min(waiting, QUEUED.get(kind, waiting)))
        if keys_of(self._context) is not None:
            cast("CurveContext", self._context).guard(socket, port)
        if kind == zmq.ROUTER:
            # What comes from a second connection of one name would stay unread in memory, for ever. The first is ended;
            # nobody can name another's, as peers without a name are given random ones.
            socket.setsockopt(zmq.ROUTER_HANDOVER, 1)
        if kind == zmq.XPUB:
            socket.setsockopt(zmq.RCVBUF, _SUBSCRIBED)
            socket.setsockopt(
                zmq.XPUB_VERBOSER, 1
            )  # every subscriber of a topic must get the current value, not only the first
        return socket

    def _bind_one(self, socket: zmq.Socket[bytes], port: int) -> zmq.Socket[bytes]:
        try:
            socket.bind(f"tcp://{bracketed(self._host)}:{port}")
        except zmq.ZMQError:
            socket.close(linger=0)
            raise
        return socket


def _listen(host: str, port: int) -> system.socket:
    """A plain listening socket; OSError if there is none to be had."""
    host = "" if host == "*" else host.strip("[]")
    (family, *_, address), *_ = system.getaddrinfo(host or None, port, type=system.SOCK_STREAM, flags=system.AI_PASSIVE)
    socket = system.socket(family, system.SOCK_STREAM)
    try:
        socket.setsockopt(system.SOL_SOCKET, system.SO_REUSEADDR, 1)
        socket.bind(address)
        socket.listen(1024)  # where a burst fills what waits, a probe in it waits a second for its next try
    except OSError:
        socket.close()
        raise
    return socket


def connect(
    context: zmq.Context[zmq.Socket[bytes]],
    kind: int,
    address: str,
    queue: bool = True,
    largest: int | None = None,
    server: str = "learner",
    handshakes: Handshakes | None = None,
) -> zmq.Socket[bytes]:
    """A socket connected to `address`; ConfigurationError if that is no tcp address.

    `server`: the role that must be there, where keys are used; anybody else is not talked to.
    `queue` False: while the peer is away nothing is kept for it, sending raises zmq.Again at once.
    `largest`: bytes of the largest frame that is taken in, if other than `LARGEST` says. `handshakes` watches it.
    """
    refused = ConfigurationError("address_malformed", value=address)
    try:
        parts = urlsplit(address)
        valid = parts.scheme == "tcp" and bool(parts.hostname) and bool(parts.port)
    except ValueError:
        valid = False
    if not valid:
        raise refused
    socket = context.socket(kind)
    _set_options(socket, kind, largest)
    socket.setsockopt(zmq.IMMEDIATE, 0 if queue else 1)
    socket.setsockopt(zmq.HEARTBEAT_IVL, _BEAT)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, _HANGS_AFTER)
    keys = keys_of(context)
    if keys is not None:
        keys.join(socket, server)
    if handshakes is not None:
        handshakes.watch(socket)
    try:
        socket.connect(address)
    except zmq.ZMQError:
        socket.close(linger=0)
        raise refused from None
    return socket


class Handshakes:
    """Whether a socket that connects was let in where it came to; to be asked by the thread that has the socket."""

    def __init__(self) -> None:
        self._socket: zmq.Socket[bytes] | None = None
        self._events: zmq.Socket[bytes] | None = None
        self._seen: set[int] = set()

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """From now on, before it connects."""
        self._socket, self._seen = socket, set()
        self._events = socket.get_monitor_socket(int(zmq.EVENT_CONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED))

    def refused(self) -> bool:
        """Whether somebody listens there, and no handshake has succeeded."""
        from zmq.utils.monitor import recv_monitor_message  # costs some milliseconds, and few need it

        while self._events is not None and self._events.poll(0):
            self._seen.add(recv_monitor_message(self._events)["event"])
        return self._seen == {zmq.EVENT_CONNECTED}

    def close(self) -> None:
        """Looks no longer; the socket goes on."""
        if self._socket is not None and not self._socket.closed:
            self._socket.disable_monitor()
        self._socket = self._events = None


def keys_of(context: zmq.Context[zmq.Socket[bytes]]) -> Keys | None:
    """By which a worker's context is guarded."""
    return getattr(context, "keys", None)


def poll(sockets: list[zmq.Socket[bytes]], milliseconds: int) -> bool:
    """Waits until one of `sockets` can be read; False when the time is up."""
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    return bool(poller.poll(milliseconds))


def try_receive(socket: zmq.Socket[bytes], copy: bool = True) -> list[Any] | None:
    """The next message's frames, or None if none waits; asked first, because raising costs more than asking."""
    if not int(socket.getsockopt(_EVENTS)) & _READABLE:
        return None
    if copy:
        return pending(socket)
    try:
        frame = socket.recv(_LAST, copy=False)
        frames = [frame]
        while frame.more:  # what `recv_multipart` does takes three times as long
            frame = socket.recv(_LAST, copy=False)
            frames.append(frame)
    except zmq.Again:  # its connection ended between the question and the answer
        return None
    return frames


def receive_until(socket: zmq.Socket[bytes], end: float) -> list[Any] | None:
    """The next message's frames, waited for until `end` of the monotonic clock; None if none comes."""
    while True:
        frames = try_receive(socket)
        if frames is not None:
            return frames
        left = end - time.monotonic()
        if left <= 0 or not poll([socket], int(left * 1000) + 1):
            return None


def send_nowait(socket: zmq.Socket[bytes], frames: Sequence[Any], copy: bool = True) -> None:
    """Sends a message at once, or raises zmq.Again where there is no room for it."""
    last = len(frames) - 1
    for i in range(last):
        _send(socket, frames[i], _MORE, copy)
    _send(socket, frames[last], _LAST, copy)


def peer_host(frame: zmq.Frame) -> str:
    """Where a message came from, as far as its socket tells."""
    try:
        return str(frame.get("Peer-Address")).removeprefix("::ffff:")
    except zmq.ZMQError:
        return "unknown"


def _set_options(socket: zmq.Socket[bytes], kind: int, largest: int | None) -> None:
    socket.setsockopt(zmq.MAXMSGSIZE, LARGEST.get(kind, -1) if largest is None else largest)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER)
    socket.setsockopt(zmq.TCP_MAXRT, _DEAD_AFTER)
    socket.setsockopt(zmq.TCP_KEEPALIVE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_IDLE, 1)
    socket.setsockopt(zmq.TCP_KEEPALIVE_INTVL, 1)
    socket.setsockopt(zmq.CONNECT_TIMEOUT, 2_000)  # else the kernel tries for two minutes, ever more seldom
    socket.setsockopt(zmq.HANDSHAKE_IVL, _DEAD_AFTER)
    socket.setsockopt(zmq.RECONNECT_IVL, 100)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1_000)  # each time the name is looked up anew
    socket.setsockopt(zmq.IPV6, 1 if system.has_ipv6 else 0)


def bracketed(host: str) -> str:
    """A host as it stands in an address: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


_NOW, _PATIENCE = int(zmq.NOBLOCK), int(zmq.RCVTIMEO)  # the enumerations are slower


def pending(
    socket: zmq.Socket[bytes], flags: int = _NOW, routed: bool = False, guard: ByteGuard | None = None
) -> list[bytes] | None:
    """The next message's frames, or None if none waits: for whoever takes in many in a row, where to raise once at
    their end costs less than to ask before each. `routed`: the first frame says whose it is, and is not the last.
    `guard` is told of it."""
    receive = socket.recv
    frames: list[bytes] = []
    try:
        if routed:
            frames.append(receive(flags))
            flags = _NOW
        frame = receive(flags, False)  # one that knows whether it is the last costs less than to ask the socket
        frames.append(frame.bytes)
        while frame.more:
            frame = receive(_NOW, False)
            frames.append(frame.bytes)
    except zmq.Again:
        return None
    if guard is not None:
        guard.took_sizes(frame, map(len, frames[routed:]))
    return frames


class BlockingReceiver:
    """At one socket, whose own patience nobody else uses."""

    def __init__(self, socket: zmq.Socket[bytes], guard: ByteGuard | None = None) -> None:
        self._socket, self._routed, self._guard = socket, socket.type == zmq.ROUTER, guard
        self._patience = -1
        """Milliseconds that the socket waits now."""

    def receive(self, milliseconds: int) -> list[bytes] | None:
        """The next message, waited for at most so long. To wait by receiving is one call, to poll first three."""
        if milliseconds <= 0:
            return pending(self._socket, _NOW, self._routed, self._guard)
        if milliseconds != self._patience:
            self._socket.setsockopt(_PATIENCE, milliseconds)
            self._patience = milliseconds
        return pending(self._socket, 0, self._routed, self._guard)
