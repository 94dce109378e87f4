"""A subscriber's socket: beacons of one policy, and snapshots that are asked for one at a time.

In flows: beacons; answers. Out flow: requests, each a subscription to a topic that is used only once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import zmq

from protocol.errors import WireError
from protocol.messages.codec import MAX_HEADER, decode
from protocol.messages.core import Beacon, Message, Weights
from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import connect, poll, try_receive

_AGAIN_SECONDS = 3.0
"""A request without an answer after this time is made again, once later beacons show that the way is free."""


class Subscription:
    """To the learner of `policy`, whose snapshots have at most `largest` bytes; counts go on when it moves."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], policy: str, largest: int) -> None:
        self._context, self._policy, self._largest = context, policy, max(largest, MAX_HEADER)
        self._socket: zmq.Socket[bytes] | None = None
        self._subscriber = secrets.token_hex(8)
        self._topic = b""
        """Of the request that has no answer yet."""
        self._asked_at = self._looked_at = 0.0
        self.requests = 0
        self.repeated = 0
        """Requests, and how many of them were for an answer that got lost."""
        self.refusals = RefusalLog()

    @property
    def asked(self) -> bool:
        """Whether a request has no answer yet."""
        return bool(self._topic)

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return [] if self._socket is None else [self._socket]

    def connect(self, address: str, server: str = "learner") -> None:
        """Leaves the learner (or relay: `server`) it was connected to, and listens to the beacons of this one."""
        self.close()
        self._socket = connect(self._context, zmq.SUB, address, largest=self._largest, server=server)
        self._socket.setsockopt(zmq.SUBSCRIBE, self._beacons)

    def mute(self) -> None:
        """Wants no beacons any more."""
        if self._socket is not None:
            self._socket.setsockopt(zmq.UNSUBSCRIBE, self._beacons)

    def ask(self) -> None:
        """Asks for the newest snapshot. A repeated connection asks again by itself."""
        if self._socket is not None:
            self.requests += 1
            self._topic = f"w/{self._policy}/{self._subscriber}/{self.requests}/".encode()
            self._asked_at = time.monotonic()
            self._socket.setsockopt(zmq.SUBSCRIBE, self._topic)

    def messages(self) -> Iterator[tuple[Message, Sequence[Any]]]:
        """All that is there (header, frames after it); then a request whose answer got lost is given up.

        A subscriber's messages keep their order. So beacons that come after a look in which the answer should have been
        there show that it will not come; while a large answer is under way no beacon arrives.
        """
        late = self._looked_at - self._asked_at >= _AGAIN_SECONDS
        beacons = False
        while (found := self._frames()) is not None:
            topic, frames = found
            try:
                message, rest = decode(frames)
            except WireError as fault:
                self.refusals.tell("message_refused", fault.kind, fault.coded, policy=self._policy)
                continue
            beacons = beacons or isinstance(message, Beacon)
            if isinstance(message, Weights) and topic == self._topic:
                self._settle()
            yield message, rest
        self._looked_at = time.monotonic()
        if self._topic and late and beacons:
            self.repeated += 1
            self._settle()

    def drain(self) -> None:
        """Throws away what is there, unread."""
        while self._socket is not None and try_receive(self._socket) is not None:
            pass

    def wait(self, seconds: float) -> None:
        """Until a message comes, at most for `seconds`."""
        if self._socket is not None:
            poll([self._socket], max(1, int(seconds * 1000)))
        else:
            time.sleep(seconds)

    def close(self) -> None:
        """Closes the socket; what was asked for is not expected any more."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._topic = b""

    @property
    def _beacons(self) -> bytes:
        return f"b/{self._policy}/".encode()

    def _frames(self) -> tuple[bytes, list[Any]] | None:
        """The next message: its topic and the frames behind; snapshots stay in ZeroMQ's memory."""
        found = None if self._socket is None else try_receive(self._socket, copy=False)
        return None if found is None else (found[0].bytes, found[1:])

    def _settle(self) -> None:
        if self._socket is not None:
            self._socket.setsockopt(zmq.UNSUBSCRIBE, self._topic)
        self._topic = b""
