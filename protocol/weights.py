"""Weights from learner to actors: a mailbox for processes of the same node, snapshots over XPUB for all others.

The publisher keeps the last value: whoever subscribes gets the current beacon and, if asked for, the snapshot at once.
A beacon a second tells the newest version, so that a lost message is noticed.
"""

from __future__ import annotations

import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.codec import decode, encode
from protocol.errors import SharedMemoryError, WireError
from protocol.mailbox import Mailbox
from protocol.messages import Beacon, Route, Weights
from protocol.sockets import connect, poll
from protocol.version import Version

__all__ = ["WeightPublisher", "WeightSubscriber"]

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Published:
    manifest: str
    version: Version
    mailbox: Mailbox | None
    nbytes: int
    last: NDArray[np.uint8] | None
    """None until there is something whole to send."""
    remote: int = 0
    """Subscribers that want whole snapshots."""


class WeightPublisher:
    """A learner's end, for all policies it serves."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._policies: dict[str, _Published] = {}
        self._beacon_at = 0.0

    def add_policy(
        self, policy: str, nbytes: int, manifest: str, path: Path | None, mode: Literal["double_buffer", "snapshot"]
    ) -> tuple[Version, NDArray[np.uint8] | None]:
        """Opens the policy's mailbox (`path` None: none, all subscribers are remote).

        A mailbox that a dead learner left is adopted: returns its version and weights, else version (0, 0) and None.
        """
        mailbox, version, found = None, Version(0, 0), None
        if path is not None:
            if path.exists():
                mailbox = Mailbox.attach(path, manifest, nbytes)
                found = np.empty(nbytes, np.uint8)
                adopted = mailbox.read(found, 0.1)
                version, found = (adopted, found) if adopted else (mailbox.version, None)
            else:
                mailbox = Mailbox.create(path, nbytes, manifest, mode)
        last = None if found is None else found.copy()
        self._policies[policy] = _Published(manifest, version, mailbox, nbytes, last)
        return version, found

    def publish(self, policy: str, weights: NDArray[np.uint8], version: Version) -> None:
        """Makes `weights` [nbytes] the newest; ValueError unless `version` grows."""
        entry = self._policies[policy]
        if version <= entry.version:
            raise ValueError(f"version {version} is not newer than {entry.version}")
        if entry.mailbox is not None:
            entry.mailbox.write(weights, version)
        entry.last = weights.copy() if entry.last is None else entry.last
        entry.last[:] = weights
        entry.version = version
        if entry.remote:
            self._send_weights(policy)
        self._send_beacon(policy)

    def serve(self, now: float) -> None:
        """Answers new subscribers, and sends the beacon when a second has passed."""
        while True:
            try:
                event = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._subscription(event)
        if now - self._beacon_at >= 1.0:
            self._beacon_at = now
            for policy in self._policies:
                self._send_beacon(policy)

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """What to wait on."""
        return self._socket

    def close(self) -> None:
        """Removes the mailboxes unless others still hold them; the socket belongs to the caller."""
        for entry in self._policies.values():
            if entry.mailbox is not None:
                entry.mailbox.remove()
        self._policies.clear()

    def _subscription(self, event: bytes) -> None:
        parts = event[1:].decode(errors="replace").split("/")
        if event[:1] not in (b"\x00", b"\x01") or len(parts) != 3 or parts[1] not in self._policies:
            return
        policy, joins = parts[1], event[:1] == b"\x01"
        if parts[0] == "b" and joins:
            self._send_beacon(policy)
        elif parts[0] == "w":
            entry = self._policies[policy]
            entry.remote = max(0, entry.remote + (1 if joins else -1))
            if joins:
                self._send_weights(policy)

    def _send_beacon(self, policy: str) -> None:
        entry = self._policies[policy]
        beacon = Beacon(
            policy=policy,
            incarnation=entry.version.incarnation,
            version=entry.version.version,
            manifest=entry.manifest,
            nbytes=entry.nbytes,
            mailbox="" if entry.mailbox is None else str(entry.mailbox.path),
            nonce=0 if entry.mailbox is None else entry.mailbox.nonce >> 1,
        )
        self._socket.send_multipart([f"b/{policy}/".encode(), encode(beacon)], zmq.NOBLOCK)

    def _send_weights(self, policy: str) -> None:
        entry = self._policies[policy]
        if entry.last is None:
            return
        header = Weights(
            policy=policy,
            incarnation=entry.version.incarnation,
            version=entry.version.version,
            manifest=entry.manifest,
            crc=zlib.crc32(entry.last.data),
        )
        self._socket.send_multipart([f"w/{policy}/".encode(), encode(header), entry.last.tobytes()], zmq.NOBLOCK)


class WeightSubscriber:
    """An actor's end for one policy: knows the newest version and copies it on demand."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        policy: str,
        manifest: str,
        nbytes: int,
        transport: Literal["auto", "memory", "tcp"],
    ) -> None:
        self._context = context
        self._policy, self._manifest, self._nbytes = policy, manifest, nbytes
        self._transport = transport
        self._route: Route | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._mailbox: Mailbox | None = None
        self._remote = False
        self._pending: tuple[Version, NDArray[np.uint8]] | None = None
        self.newest = Version(0, 0)
        self.torn = 0

    @property
    def same_node(self) -> bool | None:
        """Whether the learner's memory can be seen from here; None until its first beacon."""
        if self._mailbox is not None:
            return True
        return False if self._remote else None

    def route(self, route: Route) -> None:
        """Where the learner is now."""
        if route == self._route:
            return
        self.close()
        self._route = route
        self._socket = connect(self._context, zmq.SUB, route.weights)
        self._socket.setsockopt(zmq.SUBSCRIBE, f"b/{self._policy}/".encode())

    def adopt(self, out: NDArray[np.uint8], have: Version) -> Version | None:
        """Copies weights newer than `have` to `out` [nbytes]; None if there are none. Never waits."""
        self._receive()
        if self._mailbox is not None and self._mailbox.version > have:
            retries = self._mailbox.retries
            version = self._mailbox.read(out, 0.1)
            self.torn += self._mailbox.retries - retries
            if version is not None and version > have:
                self.newest = max(self.newest, version)
                return version
            return None
        if self._pending is not None and self._pending[0] > have:
            version, weights = self._pending
            self._pending = None
            out[:] = weights
            return version
        return None

    def wait(self, out: NDArray[np.uint8], seconds: float, on_wait: Callable[[], None]) -> Version | None:
        """The first weights; None when none came in `seconds`."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            version = self.adopt(out, Version(0, 0))
            if version is not None and version.version:
                return version
            if self._socket is not None:
                poll([self._socket], 50)
            else:
                time.sleep(0.05)
            self._receive()
            on_wait()
        return None

    def close(self) -> None:
        """Closes socket and mailbox."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        if self._mailbox is not None:
            self._mailbox.close()  # never removed here: a learner that restarts continues from it
            self._mailbox = None
        self._remote = False

    def _receive(self) -> None:
        while self._socket is not None:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            try:
                message, rest = decode(frames[1:])
            except WireError as fault:
                log.warning("event=message_refused policy=%s reason=%s", self._policy, fault)
                continue
            if isinstance(message, Beacon):
                self._beacon(message)
            elif isinstance(message, Weights):
                self._snapshot(message, rest[0] if rest else b"")

    def _beacon(self, beacon: Beacon) -> None:
        if beacon.manifest != self._manifest or beacon.nbytes != self._nbytes:
            raise WireError(
                f"the learner of {self._policy!r} has another network than this actor; "
                "use the same configuration and release"
            )
        self.newest = max(self.newest, Version(beacon.incarnation, beacon.version))
        if self._mailbox is None and not self._remote:
            if self._transport != "tcp" and beacon.mailbox:
                self._attach(beacon)
            if self._mailbox is None:
                if self._transport == "memory":
                    raise SharedMemoryError(
                        f"transport is memory but the learner of {self._policy!r} cannot be reached through it; "
                        "start both on one node with the same ROOKERY_MEMORY, or set transport: auto"
                    )
                self._remote = True
                assert self._socket is not None
                self._socket.setsockopt(zmq.SUBSCRIBE, f"w/{self._policy}/".encode())

    def _attach(self, beacon: Beacon) -> None:
        path = Path(beacon.mailbox)
        if not path.exists():
            return
        mailbox = Mailbox.attach(path, self._manifest, self._nbytes)
        if mailbox.nonce >> 1 == beacon.nonce:
            self._mailbox = mailbox
        else:  # another machine's file of the same name
            mailbox.close()

    def _snapshot(self, header: Weights, data: bytes) -> None:
        version = Version(header.incarnation, header.version)
        if header.manifest != self._manifest or len(data) != self._nbytes:
            raise WireError(
                f"weights of {self._policy!r} with {len(data)} bytes, expected {self._nbytes}; use the same release"
            )
        if zlib.crc32(data) != header.crc:
            self.torn += 1
            log.warning("event=weights_damaged policy=%s version=%d", self._policy, header.version)
            return
        self.newest = max(self.newest, version)
        if self._pending is None or version > self._pending[0]:
            self._pending = (version, np.frombuffer(data, np.uint8))
