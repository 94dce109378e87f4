"""Hostile peers of a run: `python -m tests.chaos.attacks NAME ...`, with a `Target` as JSON on its standard input.

In flow: where a run, or a plain sink, listens. Out flows: the bytes of an attack, at most `rate` messages a second and
`share` of a processor; a line of JSON with what was sent. Written from protocol/README.md: they speak ZMTP by
themselves, so that they need not read what they are answered, nor end what they begin. But for `wrong_keys`: whole
handshakes are ZeroMQ's own.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import zmq

__all__ = ["ATTACKS", "KEYED", "MEMBERS", "REASONS", "SERVED", "Target"]

_SCHEMA = 2
_LINGER_NONE = struct.pack("ii", 1, 0)
"""SO_LINGER of a connection that is reset when it is closed."""
_RECORD = np.dtype(
    [
        *((name, "<u8") for name in ("sequence", "number", "stream", "stream_sequence", "version_min", "version_max")),
        *((name, "<u4") for name in ("slot", "checksum")),
        *((name, "<u2") for name in ("valid", "before")),
        ("episode", "<u4"),
    ]
)
_HANDSHAKE = 64 + 202 + 300
"""Bytes of a greeting, a HELLO and an INITIATE, about."""
_TWO_SECONDS = struct.pack("ll", 2, 0)
Sent = Generator[int]
"""After each burst, how many messages it had."""


@dataclass(frozen=True, slots=True)
class Target:
    """A run as its welcome and its routes tell of it, or a sink in its place; and as whom to attack it."""

    control: str
    experience: str
    weights: str
    acknowledgements: str
    http: str
    simulators: str = ""
    """Where an actor serves them; empty: none does."""
    run: str = ""
    policy: str = ""
    layout: str = ""
    """The text in `specs.layout`."""
    memory: str = ""
    """Its folder of shared memory."""
    keys: str = ""
    """The folder of its keys, of which a stranger may know the public ones."""
    name: str = "actor-0"
    incarnation: int = 1
    token: str = "guessed"
    victim: str = "actor-0"
    proof: str = "1.guessed"
    """What the attackers' own membership gave them."""
    number: int = 1
    """The newest segment that was acknowledged to it: older ones are repeated, and not looked into."""
    version: int = (1 << 40) + 1
    """A version that is published."""
    rate: float = 0.0
    """Messages a second at most, if less than what is usual for the attack."""
    share: float = 0.3
    seconds: float = 60.0

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


class Peer:
    """A connection that talks ZMTP 3.0. What comes is thrown away, unless `deaf`. For the end of the handshake it waits
    `patience` seconds, as a sink never answers."""

    sent = 0
    """Bytes of all of them."""

    def __init__(self, address: str, kind: str, deaf: bool = False, patience: float = 0.05) -> None:
        self._address, self._kind, self._deaf, self._patience = address, kind, deaf, patience
        self._connect()

    def _connect(self) -> None:
        self.socket = _connected(self._address)
        name = self._kind.encode()
        ready = b"\x05READY\x0bSocket-Type" + struct.pack(">I", len(name)) + name
        greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31) + bytes([4, len(ready)]) + ready
        heard, end = b"", time.monotonic() + self._patience
        with suppress(OSError):
            self.socket.sendall(greeting)
            while len(heard) < 66 or len(heard) < 66 + heard[65]:  # theirs, and the length of their READY
                self.socket.settimeout(max(1e-3, end - time.monotonic()))
                heard += self.socket.recv(66 + 255 - len(heard)) or bytes(322)
        self.socket.settimeout(None)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TWO_SECONDS)

    def send(self, *frames: bytes, more: bool = False) -> None:
        """One message, or the beginning of one."""
        self.raw(b"".join(_frame(one, more or at + 1 < len(frames)) for at, one in enumerate(frames)))

    def raw(self, data: bytes) -> None:
        """Bytes as they are; a peer that does not take them for two seconds, or hung up, is connected anew."""
        try:
            self.socket.sendall(data)
        except (BlockingIOError, ConnectionError):
            self.reset()
            return
        Peer.sent += len(data)
        with suppress(BlockingIOError, ConnectionError):
            while not self._deaf and self.socket.recv(1 << 20, socket.MSG_DONTWAIT):
                pass

    def unfinished(self, size: int) -> None:
        """A message of `size` bytes that does not end; then waits until it is hung up on."""
        self.socket.settimeout(60)
        with suppress(ConnectionError):
            for _ in range(size >> 16):
                self.socket.sendall(_frame(bytes(1 << 16), True))
            while self.socket.recv(1 << 16):
                pass

    def reset(self) -> None:
        """RST, and another connection."""
        self.close()
        time.sleep(0.02)
        self._connect()

    def close(self) -> None:
        """RST."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NONE)
        self.socket.close()


def _connected(address: str) -> socket.socket:
    host, _, port = address.rpartition("//")[2].partition("/")[0].rpartition(":")
    end = time.monotonic() + 10
    while True:
        try:
            made = socket.create_connection((host, int(port)), timeout=2)
            made.settimeout(None)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TWO_SECONDS)
            return made
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def _frame(data: bytes, more: bool) -> bytes:
    long = len(data) > 255
    return bytes([more | long << 1]) + struct.pack(">Q" if long else ">B", len(data)) + data


def _header(kind: str, **fields: Any) -> bytes:
    return bytes(msgpack.packb({"type": kind, "schema_number": _SCHEMA, **fields}))


def _join(name: str = "", role: str = "actor") -> bytes:
    who = {"role": role, "name": name, "token": secrets.token_hex(8), "release": "0", "host": "here", "pid": 1}
    return _header("join", **who)


def _beat(target: Target, name: str | None = None, **fields: Any) -> bytes:
    who = {"name": name or target.name, "token": target.token, "incarnation": target.incarnation}
    return _header("heartbeat", **who, **{"state": "acting", **fields})


def _segment(
    target: Target, number: int, *, change: Callable[[Any, Any], object] = lambda *_: None, **fields: Any
) -> list[bytes]:
    """One valid segment, inline, with its record and its columns changed by `change`."""
    layout = json.loads(target.layout)
    rows = layout["before"] + layout["length"] + 1
    columns = {
        name: np.zeros([rows, *shape] if per == "row" else shape, dtype) for name, dtype, shape, per in layout["fields"]
    }
    record = np.zeros((), _RECORD)
    record["number"], record["valid"], record["episode"] = number, layout["length"], 2
    record["version_min"] = record["version_max"] = target.version
    columns["version"][:] = target.version
    columns["final_row"][:] = -1
    if "log_probability" in columns:
        columns["log_probability"][:] = -1
    if "action_mask" in columns:
        columns["action_mask"][:] = True
    change(record, columns)
    who = {"run": target.run, "actor": target.name, "incarnation": target.incarnation, "policy": target.policy}
    known = {"layout": _hash(target.layout), "count": 1, "inline": True, "proof": target.proof}
    return [
        _header("segments", **{**who, **known, **fields}),
        record.tobytes(),
        *(c.tobytes() for c in columns.values()),
    ]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def joins_unread(target: Target) -> Sent:
    """Joins whose answers nobody reads; then RST."""
    peer = Peer(target.control, "DEALER", deaf=True)
    while True:
        for _ in range(100):
            peer.raw(b"".join(_frame(_join(), False) for _ in range(200)))
            yield 200
        peer.reset()


def repeats(target: Target) -> Sent:
    """One valid message again and again; then RST. The first comes over a connection that stays: it is counted."""
    peer, calm = Peer(target.experience, "PUSH"), Peer(target.experience, "PUSH")
    message = b"".join(_frame(one, at >= 0) for at, one in enumerate(_segment(target, 1)[:-1]))
    message += _frame(_segment(target, 1)[-1], False)
    calm.raw(message)
    while True:
        for _ in range(500):
            peer.raw(message * 20)
            yield 20
        peer.reset()


def requests_unread(target: Target) -> Sent:
    """Weights and acknowledgements asked for and not read; then RST."""
    who = f"a/{target.policy}/{target.name}/{target.incarnation}/".encode()
    peers = [Peer(target.weights, "SUB", deaf=True), Peer(target.acknowledgements, "SUB", deaf=True)]
    for number in range(1, sys.maxsize):
        asked = f"w/{target.policy}/{secrets.token_hex(8)}/{number}/".encode()
        peers[0].send(b"\x01" + asked)
        peers[1].raw(_frame(b"\x01" + who, False) + _frame(b"\x00" + who, False))
        yield 3
        if number % 2000 == 0:
            peers[0].reset()
            peers[1].reset()


def subscriptions(target: Target) -> Sent:
    """Subscriptions to ever new topics, of every length that is allowed."""
    peers = [Peer(target.weights, "SUB"), Peer(target.acknowledgements, "SUB")]
    while True:
        for peer in peers:
            topics = [secrets.token_hex(8).encode() + b"x" * 100 for _ in range(100)]
            peer.raw(b"".join(_frame(b"\x01" + topic, False) for topic in topics))
            yield 100


def unfinished(target: Target) -> Sent:
    """Messages without an end, 64 MiB each, on several connections to each door; then they are kept open."""
    peers = [Peer(target.control, "DEALER") for _ in range(3)] + [Peer(target.experience, "PUSH") for _ in range(3)]
    piece = _frame(bytes(1024), True) * 64
    for _ in range(1024):
        for peer in peers:
            peer.raw(piece)
            yield 64
    while True:
        time.sleep(0.1)
        yield 0


def rows(target: Target) -> Sent:
    """What the likeliest bugs of an actor send: truncated rows without their last observation, rewards that are finite
    and too large, numbers that are none, actions that there are not or that their masks forbid."""

    def truncate(_: Any, columns: Any) -> None:
        columns["truncated"][0] = True

    def enrich(_: Any, columns: Any) -> None:
        columns["reward"][:] = 3e38

    def spoil(_: Any, columns: Any) -> None:
        columns["reward"][0] = np.nan

    def doubt(_: Any, columns: Any) -> None:
        if "log_probability" in columns:
            columns["log_probability"][:] = -3e38

    def choose(_: Any, columns: Any) -> None:
        for name in _chosen(columns):
            columns[name][:] = 99

    def forbid(_: Any, columns: Any) -> None:
        for name in _chosen(columns):
            if (mask := name.replace("action", "action_mask", 1)) in columns:
                columns[mask][..., 0] = False

    peer, number = Peer(target.experience, "PUSH"), target.number
    while True:
        for change in (truncate, enrich, spoil, doubt, choose, forbid):
            number += 1
            peer.send(*_segment(target, number, change=change))
            yield 1


def _chosen(columns: Any) -> list[str]:
    """Those of choices."""
    return [name for name, column in columns.items() if name.partition(".")[0] == "action" and column.dtype.kind == "i"]


def forged(target: Target) -> Sent:
    """Segments in another actor's name: numbers far ahead, incarnations that it will have, and none that ever was."""
    peer = Peer(target.experience, "PUSH")
    for turn in range(1, sys.maxsize):
        for actor, incarnation, number in (
            (target.victim, 1, 10**9),
            (target.victim, 1 + turn % 1000, 1),
            (target.victim, 1 + turn % 1000, 2**63 - 1),
            (f"stranger-{turn}", 1, 1),
        ):
            peer.send(*_segment(target, number, actor=actor, incarnation=incarnation))
        yield 4


def future(target: Target) -> Sent:
    """Rows of weights that were never published, and of a newest version below the oldest."""

    def tell(oldest: int, newest: int) -> Callable[[Any, Any], None]:
        def change(record: Any, columns: Any) -> None:
            record["version_min"], record["version_max"] = oldest, newest
            columns["version"][:] = newest

        return change

    peer, number = Peer(target.experience, "PUSH"), target.number
    far = 1 << 62
    while True:
        for oldest, newest in ((far, far), (target.version, far), (target.version, 1), (2**64 - 1, 2**64 - 1)):
            number += 1
            peer.send(*_segment(target, number, change=tell(oldest, newest)))
            yield 1


def beats(target: Target) -> Sent:
    """Heartbeats of two megabytes, from nobody and from a member."""
    episodes = [["x" * 100, 1, 1, 0.5, 1]] * 19_000
    large = [
        _beat(target, "nobody", episodes=episodes),
        _beat(target, episodes=episodes),
        _beat(target, counters={f"{number}": 1.0 for number in range(16_000)}),
        _beat(target, "nobody", routes=[{"a" * 100: "b" * 100}] * 9_000),
    ]
    peer = Peer(target.control, "DEALER")
    while True:
        for one in large:
            peer.send(one)
            yield 1


def crowd(target: Target) -> Sent:
    """Small heartbeats of a thousand that are no members, over a hundred connections."""
    peers = [Peer(target.control, "DEALER") for _ in range(100)]
    for turn in range(sys.maxsize):
        peers[turn % 100].raw(b"".join(_frame(_beat(target, f"actor-{turn * 10 + n}"), False) for n in range(10)))
        yield 10


def lies(target: Target) -> Sent:
    """What cannot be, told of itself by a member."""
    policy = target.policy
    told: list[dict[str, Any]] = [
        {"counters": {"agent_steps": -1e12, "env_steps": -1e12}},
        {"counters": {"agent_steps": 1e300, "env_steps": 1e300}},
        {"counters": {"agent_steps": 2**63 - 1, f"produced.{policy}": 2**63 - 1}},
        {"counters": {f"produced.{policy}": 1e15, f"dropped.overwritten.{policy}": -1e15}},
        {"counters": {f"produced.{target.policy}": 0.0, f"waits.credit.{policy}": 1e18}},
        {"episodes": [[policy, 10, 1, 1e300, 1]]},
        {"episodes": [[policy, 2**62, 10**15, 1.0, 1]]},
        {"episodes": [["no-policy", 10, 1, 1.0, 1]]},
        {"counters": {"environment_restarts": 1.7e308, "refused_acks": 1.7e308}},
        {"counters": {f"health.observation_outside.{policy}": 1.0, f"outside_step.{policy}/x": 1.0}},
        {"metrics": dict.fromkeys(("name", "role", "state", "host", "pid", "silent"), 1.0)},
        {"state": "dreaming"},
        {"metrics": {f"adopted.{policy}": 1e300, "x" * 100: float("nan")}},
        {"counters": {f"waits.credit.{policy}": 1e7}},
        {"metrics": {f"adoption_lag.{policy}": 1e7}},
        {"routes": [_route(policy)]},
    ]
    peer = Peer(target.control, "DEALER")
    while True:
        for one in told:
            peer.send(_beat(target, **one))
            yield 1


def _route(policy: str) -> dict[str, Any]:
    nowhere = dict.fromkeys(("experience", "weights", "acknowledgements"), "tcp://127.0.0.1:1")
    return {"policy": policy, "learner": "learner-0", "incarnation": 9, **nowhere}


def refusals(target: Target) -> Sent:
    """Joins that are refused, each for another reason or in another name."""
    peer = Peer(target.control, "DEALER")
    for turn in range(sys.maxsize):
        names = (f"ghost-{turn}", target.victim, f"learner-{turn}", "../" + "x" * 200)
        roles = ("actor", "learner", "nobody", "relay")
        peer.raw(b"".join(_frame(_join(name, roles[turn % 4]), False) for name in names))
        yield 4
        if turn % 50 == 49:
            peer.reset()


def hellos(target: Target) -> Sent:
    """Those of simulators, in ever new names and in one that is taken, whose answers nobody reads; then RST."""
    peer = Peer(target.simulators, "DEALER", deaf=True)
    for turn in range(1, sys.maxsize):
        names = [f"ghost-{turn}-{number}" for number in range(199)] + [f"{target.victim}-0"]
        peer.raw(b"".join(_frame(_header("hello", name=name, token="guessed"), False) for name in names))
        yield 200
        if turn % 100 == 0:
            peer.reset()


def handshakes(target: Target) -> Sent:
    """Connections that speak something else, another mechanism, or stop half-way."""
    curve = b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(15 + 1 + 31)
    beginnings = (b"GET / HTTP/1.1\r\n\r\n", curve, curve + b"\x04\xc8\x05HELLO" + bytes(194), b"\xff", os.urandom(500))
    doors = (target.control, target.experience, target.weights, target.acknowledgements)
    held: list[socket.socket] = []
    while True:
        for door in doors:
            for words in beginnings:
                with suppress(OSError):
                    held.append(_connected(door))
                    held[-1].sendall(words)
                    Peer.sent += len(words)
                yield 1
        while len(held) > 200:
            held.pop(0).close()


def wrong_keys(target: Target) -> Sent:
    """Whole handshakes with the server's right key and ever new ones of their own, which nobody has let in."""
    control, learner = ((Path(target.keys) / f"{role}.public").read_bytes() for role in ("coordinator", "learner"))
    doors = (
        (zmq.DEALER, target.control, control),
        (zmq.PUSH, target.experience, learner),
        (zmq.SUB, target.weights, learner),
        (zmq.SUB, target.acknowledgements, learner),
    )
    held = deque[zmq.Socket[bytes]]()
    context = zmq.Context(1)
    try:
        for kind, door, server in cycle(doors):
            held.append(context.socket(kind))
            held[-1].curve_publickey, held[-1].curve_secretkey = zmq.curve_keypair()
            held[-1].curve_serverkey = server.strip()
            held[-1].connect(door)
            Peer.sent += _HANDSHAKE
            yield 1
            if len(held) > 200:
                held.popleft().close(linger=0)
    finally:
        context.destroy(linger=0)


def http(target: Target) -> Sent:
    """Connections that say a byte of their header or body now and then, orders from another site, bodies without an
    end."""
    order = b"POST /api/stop HTTP/1.1\r\nHost: evil\r\nOrigin: http://evil\r\nContent-Length: 2\r\n\r\n{}"
    large = b"POST /api/stop HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999999\r\n\r\n" + bytes(1 << 17)
    slow: list[socket.socket] = []
    while True:
        while len(slow) < 64:
            slow.append(_connected(target.http))
            header, body = b"GET / HTTP/1.1\r\n", b"POST /api/stop HTTP/1.1\r\nContent-Length: 99\r\n\r\n"
            slow[-1].sendall(body if len(slow) % 2 else header)
        for one in list(slow):
            try:
                one.sendall(b"X")
                Peer.sent += 1
            except OSError:
                slow.remove(one)
        yield 64
        for words in (order, large):
            with suppress(OSError), _connected(target.http) as one:
                one.sendall(words)
                Peer.sent += len(words)
            yield 1


def rings(target: Target) -> Sent:
    """Segments in files that are no rings: one with a wrong header that shrinks, a link, a pipe, one that no memory can
    hold, none, a device."""
    folder = Path(target.memory)
    stem = f"rookery-{target.run}-{target.name}.{target.incarnation}-{target.policy}"
    shrunk, link, pipe, vast = (folder / f"{stem}{end}" for end in (".ring", "l.ring", "p.ring", "v.ring"))
    header = json.dumps(
        {"layout": json.loads(target.layout), "hash": _hash(target.layout), "slots": 4, "nonce": "0" * 16}
    )
    peer, number = Peer(target.experience, "PUSH"), target.number
    try:
        link.symlink_to("/proc/self/mem")
        os.mkfifo(pipe)
        vast.touch()
        os.truncate(vast, 1 << 50)
        while True:
            raw = b"ROOKRING" + struct.pack("<I", len(header)) + header.encode()
            shrunk.write_bytes(raw.ljust(1 << 20, b"\0"))
            for path in (shrunk, link, pipe, vast, folder / "rookery-none.ring", Path("/dev/zero")):
                number += 1
                peer.send(*_segment(target, number, inline=False, ring=str(path), nonce="0" * 16)[:2])
                yield 1
            os.truncate(shrunk, 100)
    finally:
        for path in (shrunk, link, pipe, vast):
            path.unlink(missing_ok=True)


ATTACKS: dict[str, tuple[Callable[[Target], Sent], int]] = {
    "joins_unread": (joins_unread, 20_000),
    "repeats": (repeats, 5_000),
    "requests_unread": (requests_unread, 3_000),
    "subscriptions": (subscriptions, 20_000),
    "unfinished": (unfinished, 100_000),
    "rows": (rows, 200),
    "forged": (forged, 400),
    "future": (future, 200),
    "beats": (beats, 370),
    "crowd": (crowd, 2_000),
    "lies": (lies, 200),
    "refusals": (refusals, 10_000),
    "hellos": (hellos, 20_000),
    "handshakes": (handshakes, 500),
    "wrong_keys": (wrong_keys, 200),
    "http": (http, 1_000),
    "rings": (rings, 100),
}
"""Name -> what it does, and how many messages (or connections) a second at most."""
MEMBERS = ("repeats", "rows", "forged", "future", "rings")
"""Those that must know what a welcome tells."""
SERVED = ("hellos",)
"""Those on an actor that serves simulators."""
KEYED = ("wrong_keys",)
"""Those on a run that has keys."""
REASONS = {
    "rows": {
        "segment_last_observation_missing",
        "segment_field_too_large",
        "segment_field_not_finite",
        "segment_action_outside_space",
        "segment_action_not_legal",
    },
    "future": {"segment_version_not_published", "segment_versions_reversed"},
    "rings": {"ring_header_damaged", "ring_name_invalid", "shared_memory_unopenable", "shared_memory_not_plain_file"},
}
"""The kinds of refusals of which a member that attacks so is told the newest, in its acknowledgements."""


def _main() -> None:
    os.nice(19)
    target, names = Target(**json.load(sys.stdin)), sys.argv[1:]
    began, cpu, sent = time.monotonic(), time.process_time(), 0
    for name in names:
        attack, rate = ATTACKS[name]
        sent += _attack(attack, min(rate, target.rate or rate), target, target.seconds / len(names))
    seconds = time.monotonic() - began
    used = (time.process_time() - cpu) / seconds
    sys.stdout.write(json.dumps({"messages": sent, "bytes": Peer.sent, "seconds": seconds, "cores": used}) + "\n")


def _attack(attack: Callable[[Target], Sent], rate: float, target: Target, seconds: float) -> int:
    """For so long; how many messages."""
    began, cpu, messages = time.monotonic(), time.process_time(), 0
    burst = attack(target)
    while not messages or time.monotonic() - began < seconds:  # on a busy machine, too, each is made once
        try:
            messages += next(burst)
        except OSError as fault:
            sys.stderr.write(f"{fault}\n")
            break
        now = time.monotonic() - began
        ahead = max(messages / rate, (time.process_time() - cpu) / target.share) - now
        if ahead > 0:
            time.sleep(min(ahead, max(0.0, began + seconds - time.monotonic())))
    burst.close()
    return messages


if __name__ == "__main__":
    _main()
