"""The port at which simulators meet an actor: who is admitted, on what terms, to which copy, for how long.

In flows: a world and its settings; messages of any number of simulators. Out flows: their messages, in their sessions'
inboxes; answers. A simulator that breaks the rules gets one sentence with a code, and is counted; no other notices.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import zmq

from protocol import SCHEMA
from protocol.errors import WireError
from protocol.messages import versioning
from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.messages.fast_path import ActHeader, ObserveHeader, frequent, pack
from protocol.messages.simulator import Admit, Bye, End, Fault, Hello, Observe, Ping, Pong
from protocol.messages.versioning import Schemas
from protocol.refusal_log import RefusalLog, one_line
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import BlockingReceiver, send_nowait
from workers.environments.simulators.quarantine import SECONDS as QUARANTINED
from workers.environments.simulators.quarantine import STRIKES, Quarantine
from workers.environments.simulators.session import GuestFault, Heard, IdentityTable, SimulatorSession


@dataclass(frozen=True, slots=True)
class AdmissionTerms:
    """What is the same for all simulators of an actor: the answer to `hello`, but for who it is; the copies there
    are; messages a second that one may send."""

    admit: Admit
    copies: int
    rate: int


COUNTERS = ("admitted", "left", "lost", "faults", "quarantined", "ignored", "held")
_AT_ONCE = 256
"""Messages taken in before those who asked are answered; sockets give each connection its turn."""
_INBOX = 64
"""Messages of one simulator that may wait to be looked at."""
_LOOK_EVERY = 0.5
"""Seconds between two looks for leases that have ended."""
_LONGEST_LEASE = 3600.0
_OF_EPISODES = (ObserveHeader, Observe, End)
_AGAIN = ("identity", "full")
"""Codes of refusals after which it is right to ask again."""


class SimulatorServer:
    """Serves at `socket`, a ROUTER. `on_cut` is called for a guest whose episode can no longer go on."""

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        terms: AdmissionTerms,
        on_admit: Callable[[SimulatorSession], None],
        on_cut: Callable[[SimulatorSession], None],
        clock: Callable[[], float] = time.monotonic,
        guard: ByteGuard | None = None,
    ) -> None:
        self._socket, self._terms, self._clock = socket, terms, clock
        self._on_admit, self._on_cut = on_admit, on_cut
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a connection that is gone is an error, not silence
        self._ear = BlockingReceiver(socket, guard)
        self._at_once = max(_AT_ONCE, 2 * terms.copies)
        self.guests: dict[bytes, SimulatorSession] = {}
        """By connection."""
        self._named: dict[str, SimulatorSession] = {}
        self._names = IdentityTable(terms.copies)
        self._quarantine = Quarantine(clock)
        self._looked_at = 0.0
        self.waiting = False
        """Whether no actions are given for now, because training cannot take in more."""
        self._held: set[bytes] = set()
        """Who was told so."""
        self._farewell = ""
        """Why nobody is served any more."""
        self.counts = dict.fromkeys(COUNTERS, 0)
        self._log = RefusalLog() if guard is None else guard.refusals

    def receive(self, milliseconds: int, enough: int = _AT_ONCE) -> int:
        """Takes in what there is, waiting at most so long for the first; how many messages. After `enough` it does not
        look whether there are more, which costs as much as to take in two."""
        said, count = self._ear.receive(milliseconds), 0
        now, most = self._clock(), min(enough, self._at_once)
        while said is not None:
            count += 1
            self._dispatch(said[0], said[1:], now)
            said = self._ear.receive(0) if count < most else None
        self._expire(now)
        return count

    def send(self, guest: SimulatorSession, message: Message) -> bool:
        """Sends it; whether its connection is still there. If it is not, it is lost."""
        if self._send(guest.route, message, guest.schema_number):
            return True
        self.disconnect(guest, "lost", "its connection ended")
        return False

    def give(self, guest: SimulatorSession, number: int, episode: int, waited: float, arrays: Sequence[bytes]) -> bool:
        """`send` for an `act` that answers `observe` number `number`."""
        header = pack(ActHeader(guest.schema_number, number, episode, waited))
        if self._send_frames((guest.route, header, arrays[0] if len(arrays) == 1 else b"".join(arrays))):
            return True
        self.disconnect(guest, "lost", "its connection ended")
        return False

    def pause(self, guests: Iterable[SimulatorSession]) -> None:
        """These wait for actions, and there are none for now: tells each of them once, until `resume`."""
        for guest in guests:
            if guest.route not in self._held:
                self._held.add(guest.route)
                self.counts["held"] += 1
                self.send(guest, Pong(pace="waiting"))

    def resume(self) -> None:
        """Actions are given again."""
        if self.waiting:
            self.waiting = False
            self._held.clear()

    def report_fault(self, guest: SimulatorSession, fault: GuestFault) -> None:
        """Tells a guest what it did wrong; one that does little else is quarantined."""
        guest.strikes += 1
        if guest.strikes >= STRIKES:
            last = {"count": STRIKES, "seconds": QUARANTINED, "reason": fault.coded}
            fault = GuestFault("simulator_quarantined", "quarantined", True, **last)
        self._fault(guest.route, fault, guest.name, guest.schema_number)
        if fault.fatal:
            self._quarantine.block(guest.name)
            self.disconnect(guest, "quarantined", fault.coded)

    def disconnect(self, guest: SimulatorSession, count: str, reason: str) -> None:
        """It is a guest no more: what is open of it is cut; what it said before counts, but not in quarantine."""
        if self.guests.pop(guest.route, None) is None:
            return
        del self._named[guest.name]
        self.counts[count] += 1
        who = {"name": guest.name, "copy": guest.copy, "incarnation": guest.incarnation}
        self._log.tell(f"simulator_{count}", count, reason, level=logging.INFO, **who)
        guest.gone = count == "quarantined"
        self._on_cut(guest)
        guest.gone = True

    def dismiss_named(self, name: str, reason: str) -> None:
        """The process of this identity is known to be gone."""
        guest = self._named.get(name)
        if guest is not None:
            self.disconnect(guest, "lost", reason)

    def close(self, reason: str, seconds: float) -> None:
        """Says farewell to all, and hears theirs: what is unread when a connection is closed takes along what was sent
        over it."""
        self._farewell, end = reason, self._clock() + seconds
        for guest in [*self.guests.values()]:
            self.send(guest, Bye(reason=reason))
        while self.guests and (left := end - self._clock()) > 0:
            self.receive(math.ceil(left * 1000))

    def _dispatch(self, route: bytes, frames: list[bytes], now: float) -> None:
        guest = self.guests.get(route)
        if guest is None and self._quarantine.ignores(route):
            self.counts["ignored"] += 1
            return
        try:
            said = frequent(frames[0])
            message, rest = (said, frames[1:]) if isinstance(said, ObserveHeader) else decode(frames)
            if guest is not None:
                guest.heard_at = now
                self._limit(guest, now)
            self._sort(route, guest, message, rest, now)
        except WireError as wrong:
            self._wrong(route, guest, GuestFault("message_refused", "message", reason=wrong.coded))
        except GuestFault as fault:
            self._wrong(route, guest, fault)

    def _sort(
        self,
        route: bytes,
        guest: SimulatorSession | None,
        message: Message | ObserveHeader,
        rest: Sequence[bytes],
        now: float,
    ) -> None:
        if isinstance(message, Hello):
            self._welcome(route, message, now)
        elif guest is None:
            raise GuestFault("simulator_connection_unknown", "unknown")
        elif isinstance(message, _OF_EPISODES):  # as nearly all are
            if len(guest.inbox) >= _INBOX:
                raise GuestFault("simulator_inbox_full", "rate", True, limit=_INBOX)
            guest.inbox.append(Heard(message, rest, now))
        elif isinstance(message, Ping):
            self.send(guest, Pong(clock=message.clock, pace="waiting" if self.waiting else "going"))
        elif isinstance(message, Bye):
            self.disconnect(guest, "left", message.reason or "it said bye")
        else:
            raise GuestFault("message_not_for_simulators", "message", value=message.type)

    def _welcome(self, route: bytes, hello: Hello, now: float) -> None:
        if self._farewell:
            self._send(route, Bye(reason=self._farewell), SCHEMA)
            return
        theirs = Schemas(hello.oldest_schema, hello.newest_schema)
        number, terms = versioning.agreed(theirs), self._terms
        if number is None:
            differs = versioning.disagreement(f"the simulator {hello.name!r}", theirs)
            raise GuestFault("simulator_schema_differs", "version", True, reason=str(differs))
        if hello.world and hello.world != terms.admit.hash:
            raise GuestFault(
                "simulator_written_for_other_world",
                "world",
                True,
                peer=hello.name,
                value=hello.world,
                expected=terms.admit.hash,
            )
        if self._quarantine.is_blocked(hello.name):
            raise GuestFault("simulator_still_in_quarantine", "quarantined", True, peer=hello.name)
        before = self.guests.get(route)
        self._make_room(route, hello, now)
        copy = self._names.copy_for(hello.name, {guest.copy for guest in self.guests.values()})
        incarnation = self._names.incarnation_of(hello.name)
        lease = min(hello.lease, _LONGEST_LEASE)
        guest = SimulatorSession(route, hello, incarnation, copy, lease, now, number)
        if before is not None:  # who says hello again and again is no other connection
            guest.reported, guest.second = before.reported, before.second
        self.guests[route] = self._named[hello.name] = guest
        self._quarantine.reset(route)
        self.counts["admitted"] += 1
        about = {"name": hello.name, "incarnation": incarnation, "copy_number": copy, "lease": lease}
        who = {"name": hello.name, "incarnation": incarnation, "copy": copy, "drives": hello.drives}
        self._log.tell("simulator_admitted", "admitted", "hello", level=logging.INFO, **who, software=hello.software)
        if self.send(guest, terms.admit.model_copy(update=about)):
            self._on_admit(guest)

    def _make_room(self, route: bytes, hello: Hello, now: float) -> None:
        """Whoever this was before is so no more; GuestFault if it is somebody else, or there is no copy left."""
        before = self.guests.get(route)
        if before is not None:
            self.disconnect(before, "left", "it said hello again")
        namesake = self._named.get(hello.name)
        if namesake is not None and namesake.hello.token == hello.token:
            self.disconnect(namesake, "lost", "it connected anew")
        elif namesake is not None and self._answers(namesake):
            rival, asked = namesake.rival
            namesake.rival = hello.token, now  # the first time it may be itself again: of its death is heard later
            alive = rival == hello.token and namesake.heard_at > asked
            raise GuestFault("simulator_name_taken", "identity", alive, peer=hello.name, seconds=namesake.lease)
        if len(self.guests) == self._terms.copies:
            for guest in [*self.guests.values()]:
                self._answers(guest)
        if len(self.guests) == self._terms.copies:
            raise GuestFault("simulator_copies_taken", "full", limit=self._terms.copies, key="environment.copies")

    def _answers(self, guest: SimulatorSession) -> bool:
        """Whether its connection is still there, as far as this end knows."""
        return self.send(guest, Pong(pace="waiting" if self.waiting else "going"))

    def _limit(self, guest: SimulatorSession, now: float) -> None:
        if now - guest.second >= 1.0:
            guest.second, guest.reported = now, 0
        guest.reported += 1
        if guest.reported > self._terms.rate:
            raise GuestFault("simulator_rate_exceeded", "rate", True, limit=self._terms.rate)

    def _wrong(self, route: bytes, guest: SimulatorSession | None, fault: GuestFault) -> None:
        if guest is not None and route in self.guests:
            self.report_fault(guest, fault)
            return
        if self._quarantine.strike(route, fault.code in _AGAIN):
            self.counts["quarantined"] += 1
            self._log.tell("stranger_quarantined", fault.kind, fault.coded, who=route.hex())
        self._fault(route, fault, route.hex(), SCHEMA)

    def _fault(self, route: bytes, fault: GuestFault, who: str, number: int) -> None:
        self.counts["faults"] += 1
        reason = f"{one_line(str(fault))} [{fault.kind}]"
        self._log.tell("simulator_fault", fault.kind, reason, who=who, code=fault.code)
        self._send(route, Fault(code=fault.code, answers=fault.answers, reason=reason, fatal=fault.fatal), number)

    def _expire(self, now: float) -> None:
        """Those whose lease has ended. What they said before has been taken in."""
        if now - self._looked_at < _LOOK_EVERY:
            return
        self._looked_at = now
        for guest in [*self.guests.values()]:
            if now - guest.heard_at > guest.lease:
                ended = GuestFault("simulator_lease_ended", "unknown")
                self._send(guest.route, Fault(code=ended.code, reason=ended.coded), SCHEMA)
                self.disconnect(guest, "lost", f"it was silent for its lease of {guest.lease:g} s")

    def _send(self, route: bytes, message: Message, number: int) -> bool:
        if number != message.schema_number:
            message = message.model_copy(update={"schema_number": number})
        return self._send_frames((route, encode(message)))

    def _send_frames(self, frames: Sequence[bytes]) -> bool:
        try:
            send_nowait(self._socket, frames)
        except zmq.ZMQError as fault:  # gone, or it does not read what it is told
            self._log.tell("simulator_unreachable", "gone", str(fault), level=logging.INFO, route=frames[0].hex())
            return False
        return True
