"""A file of a league's library from the coordinator, part by part, checked against its name.

In flow: who asks for which file. Out flow: its bytes; Refused or Timeout in a sentence.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import zmq

from protocol.control.client import ControlClient
from protocol.errors import Refused, Timeout, WireError
from protocol.messages.codec import decode, encode
from protocol.messages.core import PART_BYTES, Fetch, Part, Refusal, Welcome
from protocol.transport.sockets import connect, poll, try_receive

log = logging.getLogger(__name__)

_AGAIN = 2.0
"""Seconds, at least, until a part that has not come is asked for once more: twice what the last one took, and each time
twice as long. On a slow way each answer too many stands before the next part."""

Fetching = Callable[[str, str, float, threading.Event], bytes]
"""Gives the file of a member with this checksum; as `LibraryClient.fetch`."""


class LibraryClient:
    """Of a worker that was welcomed, and joined with `token`; a socket of its own, for one thread."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, welcome: Welcome, token: str) -> None:
        self._coordinator, self._welcome, self._token = coordinator, welcome, token
        self._socket = connect(
            context, zmq.DEALER, coordinator, queue=False, largest=2 * PART_BYTES, server="coordinator"
        )
        self._took = 0.0
        """Seconds from the last part's request to its arrival."""

    def fetch(self, member: str, checksum: str, seconds: float, stop: threading.Event) -> bytes:
        """The whole file. Timeout after `seconds` without a part, or when told to `stop`; Refused where the coordinator
        will not give it, or what comes is not what has that checksum."""
        data, size, end = bytearray(), 1, time.monotonic() + seconds
        while len(data) < size:
            part = self._ask(self._wanted(member, checksum, len(data)), end, stop)
            if part is None:
                raise Timeout("library_part_silent", peer=self._coordinator, member=member, seconds=seconds)
            told, frame = part
            data += frame
            size, end = told.size, time.monotonic() + seconds
            if len(data) > size or (not frame and size):
                raise Refused("library_parts_incomplete", member=member, size=size)
        found = hashlib.blake2b(data, digest_size=16).hexdigest()
        if found != checksum:
            raise Refused("library_file_checksum_wrong", member=member, expected=checksum, value=found)
        return bytes(data)

    def _wanted(self, member: str, checksum: str, offset: int) -> Fetch:
        return Fetch(
            schema_number=self._welcome.schema_number,
            name=self._welcome.name,
            token=self._token,
            incarnation=self._welcome.incarnation,
            member=member,
            checksum=checksum,
            offset=offset,
        )

    def _ask(self, wanted: Fetch, end: float, stop: threading.Event) -> tuple[Part, bytes] | None:
        again, patience, began = 0.0, max(_AGAIN, 2 * self._took), time.monotonic()
        while not stop.is_set() and (now := time.monotonic()) < end:
            if now >= again:
                sent = self._send(wanted)
                again = now + (patience if sent else 0.1)
                patience *= 2 if sent else 1
            if not poll([self._socket], 100):
                continue
            frames = try_receive(self._socket)
            if frames is None:
                continue
            try:
                message, rest = decode(frames)
            except WireError as fault:
                raise Refused("library_answer_malformed", reason=str(fault)) from None
            if isinstance(message, Refusal) and not message.retry:
                raise Refused.heard(message.reason)
            if isinstance(message, Part) and _answers(message, wanted) and len(rest) == 1:
                self._took = time.monotonic() - began
                return message, bytes(memoryview(rest[0]))
        return None

    def _send(self, wanted: Fetch) -> bool:
        try:
            self._socket.send(encode(wanted), zmq.NOBLOCK)
        except zmq.Again:  # the coordinator is away
            return False
        return True

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close(linger=0)


def _answers(part: Part, wanted: Fetch) -> bool:
    """One that was asked for twice comes twice."""
    return (part.member, part.checksum, part.offset) == (wanted.member, wanted.checksum, wanted.offset)


def fetching(context: zmq.Context[zmq.Socket[bytes]], client: ControlClient) -> Fetching:
    """From the coordinator of `client`, which has joined; over a connection for each file."""

    def fetch(member: str, checksum: str, seconds: float, stop: threading.Event) -> bytes:
        library = LibraryClient(context, client.coordinator, client.welcome, client.token)
        try:
            return library.fetch(member, checksum, seconds, stop)
        finally:
            library.close()

    return fetch


class FileFetcher:
    """`fetch` waits for the file with a name and checksum, in a thread; what does not come is asked for again."""

    def __init__(self, fetch: Callable[[str, str], bytes]) -> None:
        self._fetch, self._pool = fetch, ThreadPoolExecutor(1, "files")
        self._coming: dict[tuple[str, str], Future[bytes]] = {}

    def get(self, name: str, checksum: str) -> bytes | None:
        """The file; None as long as it is on its way."""
        key = name, checksum
        for other in [one for one, coming in self._coming.items() if one != key and coming.done()]:
            del self._coming[other]  # nobody may want it any more; who does asks again
        coming = self._coming.get(key)
        if coming is None:
            self._coming[key] = self._pool.submit(self._fetch, *key)
        if coming is None or not coming.done():
            return None
        del self._coming[key]
        try:
            return coming.result()
        except (Refused, Timeout) as fault:
            log.warning("event=file_not_fetched file=%s error=%s", name, fault.coded)
            return None

    def close(self) -> None:
        """Waits for nothing that has not begun."""
        self._pool.shutdown(wait=False, cancel_futures=True)
