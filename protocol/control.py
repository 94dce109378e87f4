"""Membership and commands between the coordinator and everyone else.

A worker joins, then sends a heartbeat (`Beat`) and is answered with a `Pulse`. A membership whose heartbeats stop for a
lease ends by itself. The client runs in a thread of its own, so that a long update costs nobody the lease; when the
coordinator is away, the worker goes on and joins again when it is back.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import zmq

from protocol import RELEASE, SCHEMA, schema
from protocol.codec import decode, encode
from protocol.errors import Refused, Timeout, WireError
from protocol.messages import Beat, Join, Leave, Message, Pulse, Refusal, Role, Route, Welcome
from protocol.schema import Schemas
from protocol.sockets import connect, peer_host, poll

__all__ = ["ControlClient", "ControlServer", "Report", "check_schemas"]

log = logging.getLogger(__name__)

_ABANDONED = 10
"""Leases of silence after which a worker that nobody supervises gives its coordinator up."""
_AT_ONCE = 1000
_TOLD = 100
"""Different refusals that are logged."""
_FAULTS = 20
"""Refused messages after which a peer is quarantined."""
_PEERS = 1000
"""Peers whose faults are remembered."""

_UNHEARD = 10_000
"""Entries about episodes that are kept while the coordinator is away; the oldest are forgotten."""


@dataclass(slots=True)
class Report:
    """What a worker tells with its next heartbeat."""

    state: str = "starting"
    routes: list[Route] = field(default_factory=list)
    counters: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    episodes: list[tuple[str, int, int, float]] = field(default_factory=list)


class ControlClient:
    """One worker's membership. `report` is called by the client's thread before each heartbeat and must be quick."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, role: Role, name: str = "", node: str = ""
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        # Nothing is queued for an absent coordinator, which would find a Join for each second that it was waited for.
        self._socket = connect(context, zmq.DEALER, coordinator, queue=False, server="coordinator")
        self._join = Join(
            role=role,
            name=name,
            token=secrets.token_hex(8),
            release=RELEASE,
            host=platform.node() or "unknown",
            pid=os.getpid(),
            node=node,
            oldest_schema=schema.SPOKEN.oldest,
            newest_schema=schema.SPOKEN.newest,
        )
        self._parent = int(os.environ.get("ROOKERY_PARENT", "0"))
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._orphaned = False
        self._away = False
        self._surplus = 0
        """Joins that were sent while an earlier one was not answered: their answers mean nothing."""
        self._unheard: list[tuple[str, int, int, float]] = []
        """Episodes of beats that were not answered; the next beat tells them again."""
        self._told = 0
        """How many of these, the oldest, the last beat told."""
        self._report: Callable[[], Report] = Report
        self._last: Pulse | None = None
        self.heard_at = 0.0
        self.changed = threading.Event()
        """Set at every pulse; the worker may clear it."""

    def join(self, seconds: float) -> Welcome:
        """Asks until the coordinator answers. Refused with its reason, or Timeout with the address that is silent."""
        end, told, refused = time.monotonic() + seconds, time.monotonic() + 3, ""
        while True:
            sent = self._send(self._join)
            self._surplus += sent
            patience = 1000 if sent else 100
            if poll([self._socket], min(patience, max(1, int((end - time.monotonic()) * 1000)))):
                message, _ = decode(self._socket.recv_multipart())
                self._surplus -= isinstance(message, Refusal | Welcome)
                if isinstance(message, Refusal):
                    if not message.retry:
                        raise Refused(message.reason)
                    refused = message.reason
                    time.sleep(min(0.2, max(0.0, end - time.monotonic())))
                elif isinstance(message, Welcome):
                    self.welcome = message
                    self._join = self._join.model_copy(
                        update={"name": message.name, "incarnation": message.incarnation}
                    )
                    self.heard_at = time.monotonic()
                    return message
            if self.orphaned:
                raise Timeout("the supervisor that started this worker is gone; start the run again")
            if time.monotonic() >= end:
                if refused:
                    raise Refused(f"{refused} (waited {seconds:g} s)")
                raise Timeout(
                    f"no coordinator answered at {self._coordinator} within {seconds:g} s; start `rookery coordinator` "
                    "there or correct --coordinator"
                )
            if time.monotonic() >= told:
                told = time.monotonic() + 10
                log.warning(
                    "event=waiting for=coordinator address=%s seconds_left=%.0f",
                    self._coordinator,
                    end - time.monotonic(),
                )

    def start(self, report: Callable[[], Report]) -> None:
        """Begins the heartbeats."""
        self._report = report
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    @property
    def command(self) -> Literal["go", "drain", "stop"]:
        """What the worker is to do now. An orphan has to stop."""
        if self._orphaned:
            return "stop"
        last = self._last
        return "go" if last is None or last.command == "rejoin" else last.command

    @property
    def pulse(self) -> Pulse | None:
        """The newest answer of the coordinator."""
        return self._last

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this worker has died."""
        if self._parent and os.getppid() != self._parent:
            self._orphaned = True
        return self._orphaned

    def leave(self, error: str = "", seconds: float = 2.0) -> None:
        """Ends the membership with the last report; waits at most `seconds` for the coordinator to hear it."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        if not hasattr(self, "welcome") or self._socket.closed:
            return
        last = self._report()
        leave = Leave(
            schema_number=self.welcome.schema_number,
            name=self.welcome.name,
            token=self._join.token,
            incarnation=self.welcome.incarnation,
            counters=last.counters,
            metrics=last.metrics,
            episodes=[*self._unheard, *last.episodes],
            error=error[-60_000:],
        )
        end = time.monotonic() + seconds
        while not self._send(leave):
            if time.monotonic() >= end:
                return
            time.sleep(0.05)
        while (left := end - time.monotonic()) > 0 and poll([self._socket], int(left * 1000)):
            message = self._receive()
            if isinstance(message, Pulse) and message.command == "stop":
                break

    def close(self) -> None:
        """Stops the thread and closes the socket."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(timeout=5)
            self._thread = None
        self._socket.close(linger=0)

    def _run(self) -> None:
        interval = self.welcome.beat
        beat_at = 0.0
        try:
            while not self._ending.is_set():
                now = time.monotonic()
                if now >= beat_at:
                    state = self._beat()
                    beat_at = now + (min(interval, 0.1) if state in ("starting", "waiting") else interval)
                if self.orphaned:
                    self.changed.set()
                elif not self._parent and now - self.heard_at > _ABANDONED * self.welcome.lease:
                    self._end(
                        f"the coordinator at {self._coordinator} has been silent for {now - self.heard_at:.0f} s; "
                        "start it again, then this worker"
                    )
                if poll([self._socket], 100):
                    self._hear()
        except Exception as fault:  # without heartbeats the worker would go on for ever, unseen
            log.exception("event=control_failed error=%s", type(fault).__name__)
            self._end("its heartbeats failed")

    def _beat(self) -> str:
        report = self._report()
        self._unheard = [*self._unheard, *report.episodes][-_UNHEARD:]
        beat = Beat(
            schema_number=self.welcome.schema_number,
            name=self.welcome.name,
            token=self._join.token,
            incarnation=self.welcome.incarnation,
            state=report.state,
            routes=report.routes,
            counters=report.counters,
            metrics=report.metrics,
            episodes=self._unheard,
        )
        self._told = len(beat.episodes) if self._send(beat) else 0
        return report.state

    def _receive(self) -> Message | None:
        try:
            message, _ = decode(self._socket.recv_multipart(zmq.NOBLOCK))
        except (zmq.Again, WireError) as fault:
            log.warning("event=control_message_refused reason=%s", fault)
            return None
        self.heard_at = time.monotonic()
        return message

    def _hear(self) -> None:
        message = self._receive()
        if isinstance(message, Pulse):
            self._last = message
            self.changed.set()
            if message.command == "rejoin":
                self._surplus = 0
                self._send(self._join)
            else:
                self._unheard = self._unheard[self._told :]
            self._told = 0
        elif isinstance(message, Welcome | Refusal) and self._surplus > 0:
            self._surplus -= 1
        elif isinstance(message, Refusal) and not message.retry:
            self._end(message.reason)
        elif isinstance(message, Welcome) and _identity(message) != _identity(self.welcome):
            self._end(
                f"the coordinator knows this worker as {message.name}.{message.incarnation} of run {message.run} only"
            )

    def _end(self, reason: str) -> None:
        log.error("event=refused reason=%s", reason)
        self._orphaned = True
        self.changed.set()

    def _send(self, message: Message) -> bool:
        """False while the coordinator is away: the next heartbeat says the same."""
        try:
            self._socket.send(encode(message), zmq.NOBLOCK)
        except zmq.Again:
            if not self._away:
                log.warning("event=not_sent type=%s reason=coordinator_away", message.type)
            self._away = True
            return False
        self._away = False
        return True


def _identity(welcome: Welcome) -> tuple[str, str, int]:
    return welcome.run, welcome.name, welcome.incarnation


class ControlServer:
    """The coordinator's end: requests in, answers out. A peer that keeps sending what is no message is not listened to
    any more: quarantined."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self.refused_messages = 0
        """What was no message or no request."""
        self.quarantined_peers = 0
        self.quarantined_messages = 0
        """What quarantined peers sent since."""
        self._told: set[str] = set()
        self._faults: dict[bytes, int] = {}
        """peer -> messages that were refused."""
        self._numbers: dict[bytes, int] = {}
        """peer -> the schema its request is answered in."""

    def requests(self, milliseconds: int) -> list[tuple[bytes, Message]]:
        """Waiting requests as (peer, message), a bounded number at once; waits at most `milliseconds` for the first."""
        found: list[tuple[bytes, Message]] = []
        self._numbers.clear()
        if not poll([self._socket], milliseconds):
            return found
        for _ in range(_AT_ONCE):  # a flood of garbage must not keep members from being answered
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            peer = identity.bytes
            if self._faults.get(peer, 0) >= _FAULTS:
                self.quarantined_messages += 1
                continue
            try:
                message = _request(frames)
                _check_role(message, identity)
            except WireError as fault:
                self._refuse(identity, peer, str(fault))
                continue
            self._numbers[peer] = _number(message)
            found.append((peer, message))
        return found

    def answer(self, peer: bytes, message: Message) -> None:
        """Sends `message` to `peer`, in the schema of its request; one that is gone is no error."""
        number = self._numbers.get(peer, SCHEMA)
        if number != message.schema_number:
            message = message.model_copy(update={"schema_number": number})
        try:
            self._socket.send_multipart([peer, encode(message)], zmq.NOBLOCK)
        except zmq.ZMQError as fault:
            log.info("event=answer_not_sent reason=%s", fault.strerror)

    def _refuse(self, identity: zmq.Frame, peer: bytes, reason: str) -> None:
        self.refused_messages += 1
        if len(self._faults) >= _PEERS and peer not in self._faults:
            del self._faults[next(iter(self._faults))]  # the one known longest
        self._faults[peer] = self._faults.get(peer, 0) + 1
        if reason not in self._told and len(self._told) < _TOLD:
            self._told.add(reason)
            log.warning("event=message_refused host=%s reason=%s", peer_host(identity), reason)
        if self._faults[peer] == _FAULTS:
            self.quarantined_peers += 1
            reason = f"{_FAULTS} messages of this connection were refused and it is not listened to any more; {reason}"
            log.warning("event=peer_quarantined host=%s messages=%d", peer_host(identity), _FAULTS)
        self.answer(peer, Refusal(reason=reason))


def _request(frames: list[zmq.Frame]) -> Join | Beat | Leave:
    message, _ = decode(frames)
    if not isinstance(message, Join | Beat | Leave):
        raise WireError(f"a {message.type} message is no request to a coordinator; see protocol/README.md")
    return message


def _check_role(message: Message, identity: zmq.Frame) -> None:
    """WireError if somebody joins as another role than the one whose key it has."""
    try:
        role = identity.get("User-Id")
    except zmq.ZMQError:  # no keys are used
        return
    if isinstance(message, Join) and role and message.role != role:
        raise WireError(f"a join as {message.role} with the key of role {role}; give each worker the keys of its role")


def _number(message: Message) -> int:
    """The schema that a request is answered in."""
    if isinstance(message, Join):
        return schema.agreed(Schemas(message.oldest_schema, message.newest_schema)) or SCHEMA
    return message.schema_number


def check_schemas(join: Join) -> str:
    """Empty, or why a worker that speaks these schemas may not join."""
    return schema.disagreement(f"this worker (release {join.release})", Schemas(join.oldest_schema, join.newest_schema))
