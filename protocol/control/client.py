"""A worker's end of the control sockets: joining, heartbeats out, commands and routes (`Status`) in, leaving.

A membership whose heartbeats stop for a lease ends by itself. The client runs in a thread of its own, so that a long
update costs nobody the lease; when the coordinator is away, the worker goes on and joins again when it is back.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import zmq

from protocol.control.heartbeat import MAX_REQUEST, Report, UnackedEpisodes, introduction
from protocol.errors import Refused, Timeout, WireError
from protocol.messages.codec import decode, encode
from protocol.messages.core import Episodes, Heartbeat, Leave, Message, Refusal, Role, Status, Welcome
from protocol.refusal_log import RefusalLog, one_line
from protocol.transport.sockets import Handshakes, connect, poll, try_receive

log = logging.getLogger(__name__)

_ABANDONED = 10
"""Leases of silence after which a worker that nobody supervises gives its coordinator up."""


class ControlClient:
    """One worker's membership. `report` is called by the client's thread before each heartbeat and must be quick."""

    def __init__(
        self, context: zmq.Context[zmq.Socket[bytes]], coordinator: str, role: Role, name: str = "", node: str = ""
    ) -> None:
        self.coordinator = coordinator
        """Its address."""
        # Nothing is queued for an absent coordinator, which would find a Join for each second that it was waited for.
        self._handshakes = Handshakes()
        self._socket = connect(
            context, zmq.DEALER, coordinator, queue=False, server="coordinator", handshakes=self._handshakes
        )
        self._join = introduction(role, name, node)
        self._parent = int(os.environ.get("ROOKERY_PARENT", "0"))
        self._thread: threading.Thread | None = None
        self._ending = threading.Event()
        self._woken, self._wakes = os.pipe()
        """A byte there ends the wait of the thread: whoever ends does not wait until it looks."""
        self._orphaned = False
        self._away = False
        self._surplus = 0
        """Joins that were sent while an earlier one was not answered: their answers mean nothing."""
        self._unheard = UnackedEpisodes()
        self._report: Callable[[], Report] = Report
        self.status: Status | None = None
        """The newest answer of the coordinator."""
        self.refusals = RefusalLog()
        self._orders: tuple[str, int] | None = None
        """What it was told to do last."""
        self.heard_at = 0.0
        self.changed = threading.Event()
        """Set at every status; the worker may clear it."""

    def join(self, seconds: float, gone: Callable[[], bool] = lambda: False) -> Welcome:
        """Asks until the coordinator answers, or is `gone`. Refused with its reason, or Timeout with the address that
        is silent, or that knows other keys."""
        end, told = time.monotonic() + seconds, time.monotonic() + 3
        refused: Refused | None = None
        said = ""
        while True:
            answer = self._ask(end)
            if isinstance(answer, Welcome):
                return self._enter(answer)
            if answer is not None:
                refused = Refused.heard(answer.reason, field=answer.field, value=answer.value, limit=answer.limit)
                if not answer.retry:
                    raise refused
                time.sleep(min(0.2, max(0.0, end - time.monotonic())))
            if self.orphaned:
                raise Timeout("supervisor_gone")
            left = end - time.monotonic()
            if left <= 0 or gone():
                if refused is not None:
                    raise refused.within(f"after {seconds:g} s")
                if self._handshakes.refused():
                    raise Timeout("keys_not_accepted", peer=self.coordinator, seconds=seconds)
                raise Timeout("no_coordinator_answered", peer=self.coordinator, seconds=seconds)
            if time.monotonic() >= told:
                told = time.monotonic() + 10
                why = "other_keys" if self._handshakes.refused() else "no_answer"
                why = why if refused is None else f"not yet: {one_line(str(refused))}"
                if refused is None or why != said:  # what the coordinator says is said once
                    said, told_of = why, (self.coordinator, why, left)
                    log.warning("event=waiting for=coordinator address=%s reason=%s seconds_left=%.0f", *told_of)

    def start(self, report: Callable[[], Report]) -> None:
        """Begins the heartbeats, or tells something else by them from now on."""
        self._report = report
        if self._thread is not None:
            return
        self._thread = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    @property
    def command(self) -> Literal["go", "pause", "drain", "stop"]:
        """What the worker is to do now. An orphan has to stop."""
        if self._orphaned:
            return "stop"
        last = self.status
        return "go" if last is None or last.command == "rejoin" else last.command

    @property
    def token(self) -> str:
        """By which the coordinator knows this process."""
        return self._join.token

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this worker has died."""
        if self._parent and os.getppid() != self._parent:
            self._orphaned = True
        return self._orphaned

    def leave(self, error: str = "", seconds: float = 2.0) -> None:
        """Ends the membership with the last report; waits at most `seconds` for the coordinator to hear it."""
        self._end_thread()
        if not hasattr(self, "welcome") or self._socket.closed:
            return
        end, last = time.monotonic() + seconds, self._report()
        episodes = self._unheard.with_new(last.episodes)
        while self._unheard.more and self._send(self._beat(last, episodes)):  # whoever leaves has no next heartbeat
            self._unheard.told(sent=True)
            self._unheard.answered(known=True)
            episodes = self._unheard.with_new([])
        leave = Leave(
            schema_number=self.welcome.schema_number,
            name=self.welcome.name,
            token=self._join.token,
            incarnation=self.welcome.incarnation,
            counters=last.counters,
            metrics=last.metrics,
            episodes=episodes,
            error=error[-60_000:],
        )
        while not self._send(leave):
            if time.monotonic() >= end:
                return
            time.sleep(0.05)
        while (left := end - time.monotonic()) > 0 and poll([self._socket], int(left * 1000)):
            message = self._receive()
            if isinstance(message, Status) and message.command == "stop":
                break

    def close(self) -> None:
        """Stops the thread and closes the socket."""
        self._end_thread()
        for descriptor in (self._woken, self._wakes) if not self._socket.closed else ():
            os.close(descriptor)
        self._handshakes.close()
        self._socket.close(linger=0)

    def _end_thread(self) -> None:
        if self._thread is not None:
            self._ending.set()
            os.write(self._wakes, b"!")
            self._thread.join(timeout=5)
            self._thread = None

    def _ask(self, end: float) -> Welcome | Refusal | None:
        """Sends the Join once more and waits a moment for its answer."""
        sent = self._send(self._join)
        self._surplus += sent
        patience = 1000 if sent else 100
        if not poll([self._socket], min(patience, max(1, int((end - time.monotonic()) * 1000)))):
            return None
        frames = try_receive(self._socket)
        if frames is None:  # what woke the poll could not be decrypted
            return None
        message, _ = decode(frames)
        if not isinstance(message, Refusal | Welcome):
            return None
        self._surplus -= 1
        return message

    def _enter(self, welcome: Welcome) -> Welcome:
        """From now on this worker is who the coordinator says."""
        self.welcome = welcome
        self._handshakes.close()
        self._join = self._join.model_copy(update={"name": welcome.name, "incarnation": welcome.incarnation})
        self.heard_at = time.monotonic()
        return welcome

    def _run(self) -> None:
        interval = self.welcome.heartbeat
        beat_at, since = 0.0, time.monotonic()
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        try:
            while not self._ending.is_set():
                now = time.monotonic()
                if now >= beat_at:
                    waits = self._heartbeat() in ("starting", "waiting")
                    since = since if waits else now
                    beat_at = now + (pause(now - since, interval) if waits else interval)
                if self.orphaned:
                    self.changed.set()
                elif not self._parent and now - self.heard_at > _ABANDONED * self.welcome.lease:
                    self._end(
                        f"the coordinator at {self.coordinator} has been silent for {now - self.heard_at:.0f} s; "
                        "start it again, then this worker"
                    )
                if self._socket in dict(poller.poll(100)):
                    self._poll()
        except Exception as fault:  # without heartbeats the worker would go on for ever, unseen
            log.exception("event=control_failed error=%s", type(fault).__name__)
            self._end("its heartbeats failed")

    def _heartbeat(self) -> str:
        report = self._report()
        self._unheard.told(self._send(self._beat(report, self._unheard.with_new(report.episodes))))
        return report.state

    def _beat(self, report: Report, episodes: list[Episodes]) -> Heartbeat:
        return Heartbeat(
            schema_number=self.welcome.schema_number,
            name=self.welcome.name,
            token=self._join.token,
            incarnation=self.welcome.incarnation,
            state=report.state,
            routes=report.routes,
            counters=report.counters,
            metrics=report.metrics,
            episodes=episodes,
        )

    def _receive(self) -> Message | None:
        try:
            message, _ = decode(self._socket.recv_multipart(zmq.NOBLOCK))
        except (zmq.Again, WireError) as fault:
            kind = getattr(fault, "kind", "again")
            self.refusals.tell("control_message_refused", kind, str(fault), address=self.coordinator)
            return None
        self.heard_at = time.monotonic()
        return message

    def _poll(self) -> None:
        message = self._receive()
        if isinstance(message, Status):
            self.status = message
            self.changed.set()
            orders = message.command, message.checkpoints
            if self._orders in (None, orders) or message.command == "rejoin":
                self._unheard.answered(known=message.command != "rejoin")
            # else it may have been sent unasked, before the heartbeat that tells of them was received
            self._orders = None if message.command == "rejoin" else orders
            if message.command == "rejoin":
                self._surplus = 0
                self._send(self._join)
        elif isinstance(message, Welcome | Refusal) and self._surplus > 0:
            self._surplus -= 1
        elif isinstance(message, Refusal) and not message.retry:
            self._end(message.reason)
        elif isinstance(message, Welcome) and _identity(message) != _identity(self.welcome):
            self._end(
                f"the coordinator knows this worker as {message.name}.{message.incarnation} of run {message.run} only"
            )

    def _end(self, reason: str) -> None:
        self.refusals.tell("refused", Refused.heard(reason).kind, reason, level=logging.ERROR, address=self.coordinator)
        self._orphaned = True
        self.changed.set()

    def _send(self, message: Message) -> bool:
        """False while the coordinator is away: the next heartbeat says the same. WireError if it is too large."""
        if len(raw := encode(message)) > MAX_REQUEST:
            raise WireError("header_too_large", count=len(raw), limit=MAX_REQUEST)
        try:
            self._socket.send(raw, zmq.NOBLOCK)
        except zmq.Again:
            if not self._away:
                log.warning("event=not_sent type=%s reason=coordinator_away", message.type)
            self._away = True
            return False
        self._away = False
        return True


def pause(waited: float, interval: float) -> float:
    """Seconds to the next heartbeat of a worker that has `waited` for something so long: at most a tenth more until it
    hears of it, and a crowd that waits for long does not take all of its coordinator's time."""
    return min(interval, max(0.1, waited / 10))


def _identity(welcome: Welcome) -> tuple[str, str, int]:
    return welcome.run, welcome.name, welcome.incarnation
