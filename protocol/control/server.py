"""The coordinator's end of the control sockets: joins, heartbeats, farewells and wishes for files in, answers out.

What a peer sends is checked before it is handed on; one that keeps sending what is no message is not listened to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from protocol import SCHEMA
from protocol.control.heartbeat import MAX_REQUEST
from protocol.errors import Refused, RookeryError, WireError
from protocol.messages import versioning
from protocol.messages.codec import decode, encode, first_keys
from protocol.messages.core import Fetch, FetchGraph, Heartbeat, Join, Leave, Message, Refusal, Status
from protocol.messages.versioning import Schemas
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import peer_host, poll, refusals_of, send_nowait, try_receive

WAITING = 50
"""Requests of one peer that wait: with `MAX_REQUEST`, what its connection can take of this process's memory."""
BYTES = 4 * 2**20, 64 * 2**20
"""Of one peer, and of all, that wait or belong to a request that has not ended."""
_AT_ONCE = 0.01
"""Seconds after which requests have to wait until the rest of the coordinator's loop had its turn."""
_APART = 0.01
"""Seconds, at least, from one look for requests to the next: those of a crowd are taken several at a time."""
_REMEMBERED = 64
_FAULTS = 20
"""Refused messages after which a peer is quarantined."""
_QUOTED = 200
"""Characters of a fact that is told."""
_PEERS = 1000
"""Peers whose faults are remembered."""
_MAX_JOIN = 4096
"""Bytes of the largest request of one that may be no member: a `join`, or what does not say first who sends it."""
_SHARE, _LEAST = 4 * 2**20, 4096
"""Bytes that one peer may have read in a second, and what a message counts for at least."""
_FROM_MEMBERS = ("heartbeat", "leave", "fetch", "fetch_graph")
_SENDER = dict.fromkeys(("name", "token", "incarnation")).keys()


class ControlServer:
    """The coordinator's end: requests in, answers out. A peer that keeps sending what is no message is not listened to
    any more: quarantined."""

    def __init__(self, socket: zmq.Socket[bytes], guard: ByteGuard | None = None) -> None:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # an answer to a peer that is gone is an error, not silence
        self._socket, self._guard = socket, guard or ByteGuard(refusals_of(socket.context))
        self.counts = {"requests": 0, "quarantined_peers": 0, "quarantined_requests": 0}
        """Messages that were none or no requests, peers not listened to any more, and what those sent since."""
        self.refusals = self._guard.refusals
        self._faults: dict[bytes, int] = {}
        """peer -> messages that were refused."""
        self._numbers: dict[bytes, int] = {}
        """peer -> the schema its request is answered in."""
        self._looked_at = self._second = 0.0
        self._spent: dict[bytes, int] = {}
        """peer -> bytes that it sent in this second."""
        self._made: dict[tuple[int, int], tuple[Message, bytes]] = {}
        """Newest answers, by which message in which schema."""
        self.gone: set[bytes] = set()
        """Peers of the newest requests that could not be answered: they have ended."""

    def requests(
        self, milliseconds: int, known: Callable[[Any, Any, Any], bool] = lambda *_sender: True
    ) -> Iterator[tuple[bytes, Message]]:
        """Waiting requests as (peer, message), one by one, for a bounded time; waits at most `milliseconds` for the
        first. Of what a member sends nothing is read before its (name, token, incarnation) is `known`."""
        if (early := self._looked_at + _APART - time.monotonic()) > 0:
            time.sleep(early)
        self._numbers.clear()
        self.gone.clear()
        if not poll([self._socket], milliseconds):
            return
        self._looked_at = now = time.monotonic()
        if now - self._second >= 1:
            self._second = now
            self._spent.clear()
        while (received := try_receive(self._socket, copy=False)) is not None:
            self._guard.took(received[1:])
            identity, *frames = received
            if (message := self._taken(identity, identity.bytes, frames, known)) is not None:
                self._numbers[identity.bytes] = _number(message)
                yield identity.bytes, message
            if time.monotonic() - now > _AT_ONCE:  # no flood keeps the coordinator from the rest of its work
                break

    def _taken(
        self, identity: zmq.Frame, peer: bytes, frames: list[zmq.Frame], known: Callable[[Any, Any, Any], bool]
    ) -> Message | None:
        """The request in `frames`; None where it was answered here, or is not listened to."""
        if self._faults.get(peer, 0) >= _FAULTS:
            self.counts["quarantined_requests"] += 1
            self._guard.in_vain(identity)
            return None
        before = self._spent.get(peer, 0)
        self._spent[peer] = before + max(_LEAST, sum(map(len, frames)))
        if self._spent[peer] > _SHARE:
            fault = Refused("share_spent", limit=_SHARE)
            self.refusals.tell("not_read", fault.kind, str(fault), host=peer_host(identity))
            self._guard.in_vain(identity)
            if before <= _SHARE:
                self.answer(peer, refusal(fault, retry=True))
            return None
        try:
            first = _first_keys(frames)
            if _tells_sender(first) and not known(*(first[key] for key in _SENDER)):
                self._turn_away(identity, peer, first)
                return None
            message = _request(frames)
            _check_role(message, identity)
        except WireError as fault:
            self._refuse(identity, peer, fault)
            return None
        return message

    def _turn_away(self, identity: zmq.Frame, peer: bytes, first: dict[str, Any]) -> None:
        """Answers who is no member; its request is not read."""
        kind = first["type"]
        self.refusals.tell("not_a_member", kind, "unknown sender", level=logging.INFO, host=peer_host(identity))
        number, (oldest, newest) = first.get("schema_number"), versioning.SPOKEN
        if isinstance(number, int) and oldest <= number <= newest:
            self._numbers[peer] = number
        if kind in ("fetch", "fetch_graph"):
            self.answer(peer, refusal(Refused("asker_not_in_run"), retry=True))
        else:
            self.answer(peer, Status(command="rejoin" if kind == "heartbeat" else "stop"))

    def answer(self, peer: bytes, message: Message, *frames: bytes) -> bool:
        """Sends `message` to `peer`, in the schema of its request if it is one of the newest; False, and no error, if
        that one is gone."""
        number = self._numbers.get(peer, message.schema_number)
        try:
            send_nowait(self._socket, [peer, self._encoded(message, number), *frames])
        except zmq.ZMQError as fault:
            self.refusals.tell("answer_not_sent", message.type, str(fault), level=logging.INFO, type=message.type)
            if fault.errno == zmq.EHOSTUNREACH:
                self.gone.add(peer)
            return False
        return True

    def _encoded(self, message: Message, number: int) -> bytes:
        """What many are told is made once."""
        known, raw = self._made.get((id(message), number), (None, b""))
        if known is not message:
            told = message if number == message.schema_number else message.model_copy(update={"schema_number": number})
            raw = encode(told)
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            self._made[id(message), number] = message, raw
        return raw

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


def _first_keys(frames: list[zmq.Frame]) -> dict[str, Any]:
    """What the header says first; WireError if it is larger than one that says that may be."""
    if not frames:
        return {}
    first = first_keys(frames[0].buffer)
    limit = MAX_REQUEST if _tells_sender(first) else _MAX_JOIN
    if len(frames[0]) > limit:
        raise WireError("header_too_large", count=len(frames[0]), limit=limit)
    return first


def _tells_sender(first: dict[str, Any]) -> bool:
    return first.get("type") in _FROM_MEMBERS and first.keys() >= _SENDER


def _request(frames: list[zmq.Frame]) -> Join | Heartbeat | Leave | Fetch | FetchGraph:
    message, _ = decode(frames)
    if not isinstance(message, Join | Heartbeat | Leave | Fetch | FetchGraph):
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
