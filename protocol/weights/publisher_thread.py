"""The thread that tells others of new weights, so that neither an update nor a slow peer ever keeps the other waiting.

In flows: subscriptions; word from the training thread that a mailbox holds something newer (`wake`). Out flows: a
beacon at each publication and once a second, one snapshot for each request. The socket is this thread's alone.
"""

from __future__ import annotations

import logging
import math
import re
import threading
import time
import uuid
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import Timeout
from protocol.memory.shared_file import Counters
from protocol.messages.codec import encode
from protocol.messages.core import Beacon, Weights
from protocol.messages.versioning import OF_TOPICS
from protocol.transport.byte_guard import ByteGuard
from protocol.weights.manifest import NOTHING, Manifest, Version, Wire
from protocol.weights.shared_snapshot import SharedSnapshot

log = logging.getLogger(__name__)

_BEACON_SECONDS = 1.0
_END_SECONDS = 5.0
_AT_ONCE = 1_000
"""Subscriptions taken in before beacons and answers get their turn."""
_APART = 0.002
"""Seconds between two looks for subscriptions: for each the training thread has to let go of the interpreter."""
_UNREAD = 32
"""Messages of a policy that wait for one subscriber: each may be a snapshot, of which there are ever new ones. What is
not sent is asked for again."""
_ASKING = 10_000
"""Requests of a policy that may wait for an answer."""
_TOPIC = re.compile(rb"(b)/([\w.-]{1,128})/|(w)/([\w.-]{1,128})/([0-9a-f]{1,32})/([0-9]{1,18})/")


@dataclass(slots=True)
class Published:
    """One policy. What the training thread writes and what this one writes are different fields."""

    name: str
    manifest: Manifest
    mailbox: SharedSnapshot
    wire: Wire
    version: Version
    """The newest that lies whole in the mailbox."""
    staged: deque[tuple[Callable[[], NDArray[np.uint8]], Version]] = field(default_factory=lambda: deque(maxlen=1))
    """Weights on their way from a device: the newest alone, which this thread puts into the mailbox."""
    announced: Version = NOTHING
    ready: tuple[Version, list[bytes]] | None = None
    """A beacon made before it is needed: that of the version to come."""
    asked: dict[bytes, bytes] = field(default_factory=dict)
    """Subscriber -> topic of its one request that has no answer yet."""
    answer: tuple[Version, bytes, zmq.Frame] | None = None
    """The newest snapshot asked for, shared by all who ask for it."""


class Publication:
    """Serves `policies`, which only grows, on `socket` (XPUB) until `close`."""

    def __init__(
        self, socket: zmq.Socket[bytes], policies: Mapping[str, Published], counters: Counters, guard: ByteGuard
    ) -> None:
        self._socket, self._policies, self._counters, self._guard = socket, policies, counters, guard
        self._stopping = threading.Event()
        self._fault: BaseException | None = None
        self._beacon_at = 0.0
        self._here, self._there = socket.context.socket(zmq.PAIR), socket.context.socket(zmq.PAIR)
        address = f"inproc://publication-{uuid.uuid4().hex}"
        for end in (self._here, self._there):
            end.setsockopt(zmq.SNDHWM, 1)
            end.setsockopt(zmq.RCVHWM, 1)
        self._there.bind(address)
        self._here.connect(address)
        self._thread = threading.Thread(target=self._guarded, name="publication", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is news in a mailbox or among what is staged. Never waits."""
        with suppress(zmq.Again):  # then a wake-up is under way already
            self._here.send(b"", zmq.NOBLOCK)

    def check(self) -> None:
        """Raises what ended the thread, if something did."""
        if self._fault is not None:
            raise self._fault

    def close(self) -> None:
        """Tells what is new for the last time and ends the thread; Timeout if it hangs. May be called twice."""
        self._stopping.set()
        if not self._here.closed:
            self.wake()
        self._thread.join(_END_SECONDS)
        if self._thread.is_alive():
            raise Timeout("publication_did_not_end", seconds=_END_SECONDS)
        self._here.close(linger=0)

    def _guarded(self) -> None:
        try:
            self._serve()
        except BaseException as fault:
            log.error("event=publication_ended reason=%s", fault)
            self._fault = fault
        finally:
            self._there.close(linger=0)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for socket in (self._there, self._socket):
            poller.register(socket, zmq.POLLIN)
        served, listen_at = 0, 0.0
        while not self._stopping.is_set():
            if served != len(self._policies):
                served = len(self._policies)
                self._socket.setsockopt(zmq.SNDHWM, served * _UNREAD)
            now = time.monotonic()
            if now < listen_at:
                self._there.poll(math.ceil(1000 * (listen_at - now)))
            left = self._beacon_at + _BEACON_SECONDS - now
            ready = dict(poller.poll(max(0, math.ceil(left * 1000))))
            if self._there in ready:
                self._there.recv(zmq.NOBLOCK)
            self._tell_news()
            if self._socket in ready and time.monotonic() >= listen_at:
                self._listen()
                listen_at = time.monotonic() + _APART
            self._serve_others()
        self._tell_news()

    def _tell_news(self) -> None:
        """What others wait for comes first."""
        for entry in list(self._policies.values()):
            if entry.staged:
                fetch, version = entry.staged.popleft()
                entry.mailbox.write(fetch(), version)
                entry.version = version
            if entry.version > entry.announced:
                self._send_beacon(entry)

    def _serve_others(self) -> None:
        now = time.monotonic()
        due = now - self._beacon_at >= _BEACON_SECONDS
        self._beacon_at = now if due else self._beacon_at
        for entry in list(self._policies.values()):
            self._answer(entry)
            if due:
                self._send_beacon(entry)
            following = Version(entry.announced.incarnation, entry.announced.version + 1)
            if entry.ready is None or entry.ready[0] != following:
                entry.ready = (following, _beacon(entry, following))

    def _listen(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            self._guard.subscription(frame)
            event = frame.bytes
            if not self._subscription(event[:1], event[1:]):
                self._counters.add("weights_refused")
                self._guard.in_vain(frame)

    def _subscription(self, kind: bytes, topic: bytes) -> bool:
        """Whether it is for something that is published here."""
        known = _TOPIC.fullmatch(topic) if kind in (b"\x00", b"\x01") else None
        entry = self._policies.get((known[2] or known[4]).decode()) if known is not None else None
        if known is None or entry is None:
            return False
        if known[1]:
            if kind == b"\x01":
                self._send_beacon(entry)
        elif kind == b"\x00":
            if entry.asked.get(known[5]) == topic:
                del entry.asked[known[5]]
        elif len(entry.asked) < _ASKING:
            entry.asked[known[5]] = topic
        else:
            return False
        return True

    def _send_beacon(self, entry: Published) -> None:
        version = entry.version
        frames = entry.ready[1] if entry.ready is not None and entry.ready[0] == version else _beacon(entry, version)
        self._socket.send_multipart(frames, zmq.NOBLOCK)
        entry.announced = version

    def _answer(self, entry: Published) -> None:
        if not entry.asked or not entry.version.version:
            return
        answer = self._snapshot(entry)
        if answer is None:  # it is being overwritten, and the end of that wakes us
            self._counters.add("weights_deferred")
            return
        _, header, data = answer
        for topic in entry.asked.values():
            self._socket.send_multipart([topic, header, data], zmq.NOBLOCK, copy=False)
            self._counters.add("weights_answered")
            self._counters.add("weights_bytes", len(data))
        entry.asked.clear()

    def _snapshot(self, entry: Published) -> tuple[Version, bytes, zmq.Frame] | None:
        """Header and bytes of the newest weights; None if they cannot be read whole now."""
        if entry.answer is not None and entry.answer[0] == entry.version:
            return entry.answer
        entry.answer = None
        flat = np.empty(entry.manifest.nbytes, np.uint8)
        version = entry.mailbox.read(flat, 0)
        if version is None:
            return None
        packed = entry.manifest.pack(flat, entry.wire)
        header = Weights(
            schema_number=OF_TOPICS,
            policy=entry.name,
            incarnation=version.incarnation,
            version=version.version,
            manifest=entry.manifest.hash,
            entries=entry.manifest.text,
            wire=entry.wire,
            crc=zlib.crc32(packed.data),
        )
        # copied into ZeroMQ's own memory once, then counted by reference in every queue that it waits in
        entry.answer = (version, encode(header), zmq.Frame(packed.data, copy=True))
        return entry.answer


def _beacon(entry: Published, version: Version) -> list[bytes]:
    path = entry.mailbox.path
    beacon = Beacon(
        policy=entry.name,
        incarnation=version.incarnation,
        version=version.version,
        manifest=entry.manifest.hash,
        nbytes=entry.manifest.nbytes,
        mailbox="" if path is None else str(path),
        nonce=0 if path is None else entry.mailbox.nonce >> 1,
    )
    return [f"b/{entry.name}/".encode(), encode(beacon)]
