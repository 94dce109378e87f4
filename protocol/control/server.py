"""The coordinator's end of the control sockets: joins, heartbeats, farewells and wishes for files in, answers out.

What a peer sends is checked before it is handed on; one that keeps sending what is no message is not listened to.
"""

from __future__ import annotations

import logging
import time

import zmq

from protocol import SCHEMA
from protocol.errors import Refused, RookeryError, WireError
from protocol.messages import versioning
from protocol.messages.codec import decode, encode
from protocol.messages.core import Heartbeat, Join, Leave, Message, Refusal
from protocol.messages.file_fetch import Fetch
from protocol.messages.versioning import Schemas
from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import peer_host, poll, send_nowait, try_receive

__all__ = ["ControlServer", "check_schemas", "refusal"]

_AT_ONCE = 1000
_APART = 0.005
"""Seconds, at least, from one look for requests to the next: those of a crowd are taken several at a time."""
_FAULTS = 20
"""Refused messages after which a peer is quarantined."""
_QUOTED = 200
"""Characters of a fact that is told."""
_PEERS = 1000
"""Peers whose faults are remembered."""


class ControlServer:
    """The coordinator's end: requests in, answers out. A peer that keeps sending what is no message is not listened to
    any more: quarantined."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer to a peer that is gone is an error, not silence
        self._socket = socket
        self.counts = {"requests": 0, "quarantined_peers": 0, "quarantined_requests": 0}
        """Messages that were none or no requests, peers not listened to any more, and what those sent since."""
        self.refusals = RefusalLog()
        self._faults: dict[bytes, int] = {}
        """peer -> messages that were refused."""
        self._numbers: dict[bytes, int] = {}
        """peer -> the schema its request is answered in."""
        self._looked_at = 0.0
        self.gone: set[bytes] = set()
        """Peers of the newest requests that could not be answered: they have ended."""

    def requests(self, milliseconds: int) -> list[tuple[bytes, Message]]:
        """Waiting requests as (peer, message), a bounded number at once; waits at most `milliseconds` for the first."""
        found: list[tuple[bytes, Message]] = []
        if (early := self._looked_at + _APART - time.monotonic()) > 0:
            time.sleep(early)
        self._numbers.clear()
        self.gone.clear()
        if not poll([self._socket], milliseconds):
            return found
        self._looked_at = time.monotonic()
        for _ in range(_AT_ONCE):  # a flood of garbage must not keep members from being answered
            if (received := try_receive(self._socket, copy=False)) is None:
                break
            identity, *frames = received
            peer = identity.bytes
            if self._faults.get(peer, 0) >= _FAULTS:
                self.counts["quarantined_requests"] += 1
                continue
            try:
                message = _request(frames)
                _check_role(message, identity)
            except WireError as fault:
                self._refuse(identity, peer, fault)
                continue
            self._numbers[peer] = _number(message)
            found.append((peer, message))
        return found

    def answer(self, peer: bytes, message: Message, *frames: bytes) -> bool:
        """Sends `message` to `peer`, in the schema of its request if it is one of the newest; False, and no error, if
        that one is gone."""
        number = self._numbers.get(peer, message.schema_number)
        if number != message.schema_number:
            message = message.model_copy(update={"schema_number": number})
        try:
            send_nowait(self._socket, [peer, encode(message), *frames])
        except zmq.ZMQError as fault:
            self.refusals.tell("answer_not_sent", message.type, str(fault), level=logging.INFO, type=message.type)
            if fault.errno == zmq.EHOSTUNREACH:
                self.gone.add(peer)
            return False
        return True

    def _refuse(self, identity: zmq.Frame, peer: bytes, fault: RookeryError) -> None:
        self.counts["requests"] += 1
        if len(self._faults) >= _PEERS and peer not in self._faults:
            del self._faults[next(iter(self._faults))]  # the one known longest
        self._faults[peer] = self._faults.get(peer, 0) + 1
        reason, host = fault.coded, peer_host(identity)
        self.refusals.tell("message_refused", fault.kind, reason, host=host)
        if self._faults[peer] == _FAULTS:
            self.counts["quarantined_peers"] += 1
            fault = Refused("connection_quarantined", count=_FAULTS, reason=reason)
            self.refusals.tell("peer_quarantined", fault.kind, fault.coded, host=host)
        self.answer(peer, refusal(fault))


def _request(frames: list[zmq.Frame]) -> Join | Heartbeat | Leave | Fetch:
    message, _ = decode(frames)
    if not isinstance(message, Join | Heartbeat | Leave | Fetch):
        raise WireError("message_not_a_request", message=message.type)
    return message


def _check_role(message: Message, identity: zmq.Frame) -> None:
    """WireError if somebody joins as another role than the one whose key it has."""
    if not isinstance(message, Join):
        return
    try:
        role = identity.get("User-Id")
    except zmq.ZMQError:  # no keys are used
        return
    if role and message.role != role:
        raise WireError("role_key_mismatch", role=message.role, expected=role)


def _number(message: Message) -> int:
    """The schema that a request is answered in."""
    if isinstance(message, Join):
        return versioning.agreed(Schemas(message.oldest_schema, message.newest_schema)) or SCHEMA
    return message.schema_number


def check_schemas(join: Join) -> Refused | None:
    """None, or why a worker that speaks these schemas may not join."""
    return versioning.disagreement(
        f"this worker (release {join.release})", Schemas(join.oldest_schema, join.newest_schema)
    )


def refusal(fault: RookeryError, retry: bool = False) -> Refusal:
    """What a worker is told that is refused something. `retry`: not yet."""
    return Refusal(
        reason=fault.coded,
        retry=retry,
        kind=fault.kind,
        field=_fact(fault, "field", "key"),
        value=_fact(fault, "value", "peer", "count"),
        limit=_fact(fault, "limit", "expected", "choices"),
    )


def _fact(fault: RookeryError, *names: str) -> str:
    """The first of its facts that is called so; empty for none."""
    return next((str(fault.facts[name])[:_QUOTED] for name in names if name in fault.facts), "")
