"""Checks an actor that serves simulators (a policy service): plays by the rules, then breaks each. It must
refuse what is wrong of one simulator, with its code, while it serves everybody as before.

In flow: an address. Out flow: a Finding for each check, as it is made; a check is a function that raises a Flaw where
its sentence does not hold.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import zmq

from protocol.conformance.golden import golden, wide
from protocol.conformance.probe import Finding, Flaw, Talk
from protocol.errors import ConfigurationError, Timeout
from protocol.messages.codec import encode
from protocol.messages.simulator import Admit, Bye, End, Fault, Observe, Ping, Pong, facts_of
from protocol.simulator.connection import address_in, addresses_of, simulator_context
from protocol.spaces import dtype_of, parse_world
from protocol.transport.sockets import Handshakes, connect


class _Server:
    """The actor at `address`, to be met in new connections."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, patience: float) -> None:
        self._context, self._address, self._patience = context, address, patience
        self._group, self._count = f"conform-{secrets.token_hex(3)}", 0

    @contextmanager
    def met(self, name: str = "") -> Iterator[Talk]:
        """A connection that has said nothing yet."""
        self._count += 1
        talk = Talk(self._context, self._address, name or f"{self._group}-{self._count}", self._patience)
        try:
            yield talk
        finally:
            talk.close()


def check_server(endpoint: str, keys: str = "", patience: float = 30.0) -> Iterator[Finding]:
    """All checks of the first actor at `endpoint`, as a simulator names it; `patience`: seconds in which an answer must
    come, and a copy of the world be free. ConfigurationError where none serves yet, Timeout where none lets us in."""
    if not (known := addresses_of(endpoint)):
        raise ConfigurationError("simulators_not_served", file=address_in(endpoint))
    context, address = simulator_context(endpoint, keys), known[0]
    try:
        _let_in(context, address, patience)
        server = _Server(context, address, patience)
        for check in CHECKS:
            holds = (check.__doc__ or "").strip().rstrip(".")
            try:
                check(server)
                yield Finding(holds)
            except Flaw as flaw:
                yield Finding(holds, flaw.coded, flaw.section)
    finally:
        context.destroy(linger=500)


def _let_in(context: zmq.Context[zmq.Socket[bytes]], address: str, patience: float) -> None:
    """Timeout where nobody listens at `address`, or who does knows other keys: no check would say so."""
    handshakes = Handshakes()
    socket = connect(context, zmq.DEALER, address, queue=False, server="actor", handshakes=handshakes)
    try:
        outside = not socket.poll(int(1000 * min(patience, _HANDSHAKE_SECONDS)), zmq.POLLOUT)
        if outside and handshakes.refused():
            raise Timeout("keys_not_accepted", peer=address, seconds=min(patience, _HANDSHAKE_SECONDS))
        if outside and not socket.poll(int(1000 * patience), zmq.POLLOUT):
            raise Timeout("simulator_not_admitted", reason=f"no actor answered at {address}", seconds=patience)
    finally:
        handshakes.close()
        socket.close(linger=0)


_HANDSHAKE_SECONDS = 5.0
_REFUSED = "What is refused of simulators"
_STRIKES = 20
_RECONNECTED = 60
"""Times that it is asked over a connection that is being made anew."""


class Server(Protocol):
    """An actor, to be met in new connections."""

    def met(self, name: str = "") -> AbstractContextManager[Talk]:
        """A connection that has said nothing yet; `name`: else one of its own."""


def greets(server: Server) -> None:
    """The golden hello is answered by an admit that says what the world is."""
    with server.met("robot-1") as talk:
        admit = talk.enter(golden("hello")[0])
        _look(admit, "robot-1")


def any_form(server: Server) -> None:
    """Any valid msgpack form is understood."""
    with server.met() as talk:
        talk.enter(wide(talk.hello))
        talk.act(form=wide)


def stable(server: Server) -> None:
    """Fields of a stable message that are not known are ignored."""
    with server.met() as talk:
        talk.enter(wide(talk.hello, colour="green"))


def plays(server: Server) -> None:
    """Each observe is answered by its act, from one episode to the next, ended or cut."""
    with server.met() as talk:
        talk.enter()
        for truncated in (False, True, False):
            talk.act()
            talk.act([1.0])
            talk.end(truncated)
        talk.act()


def driven(server: Server) -> None:
    """Who does not drive is told when to begin."""
    with server.met() as talk:
        talk.enter(drives=False)
        for _ in range(2):
            talk.begin()
            talk.act()
            talk.act([0.5])
            talk.end(False)
        talk.begin()


def pings(server: Server) -> None:
    """A ping is answered by a pong with its clock."""
    with server.met() as talk:
        talk.enter()
        talk.send(encode(Ping(clock=1.5)))
        pong, _ = talk.expect(Pong, "ping", "`ping`")
        if pong.clock != 1.5:
            raise Flaw("pong_clock_wrong", "`pong`", value=pong.clock)


def refuses(server: Server) -> None:
    """What is wrong is refused with its code, and disturbs neither the next message nor a neighbour."""
    with server.met() as talk, server.met() as neighbour:
        talk.enter()
        talk.act()
        neighbour.enter()
        neighbour.act()
        for wrong in wrongs(talk):
            talk.send(*wrong.frames)
            fault, _ = talk.expect(Fault, wrong.what, _REFUSED)
            if (fault.code, fault.fatal) != (wrong.code, False):
                said = f"{fault.code}{', fatal' if fault.fatal else ''}"
                raise Flaw(
                    "refusal_code_wrong",
                    _REFUSED,
                    request=wrong.what,
                    answer=said,
                    reason=fault.reason,
                    expected=wrong.code,
                )
            if fault.answers != wrong.number:
                raise Flaw(
                    "refusal_answers_other_message",
                    "`fault`",
                    request=wrong.what,
                    value=fault.answers,
                    expected=wrong.number,
                )
            talk.act([1.0])
            neighbour.act([1.0])


def strangers(server: Server) -> None:
    """Who has not said hello is told so."""
    with server.met() as talk:
        talk.send(encode(Ping(clock=1.5)))
        _refused(talk, "ping before hello", "unknown", fatal=False)


def versions(server: Server) -> None:
    """Other schemas and other worlds are refused for good."""
    for code, fields in (("version", {"oldest_schema": 77, "newest_schema": 78}), ("world", {"world": "0" * 16})):
        with server.met() as talk:
            talk.send(encode(talk.hello.model_copy(update=fields)))
            _refused(talk, f"hello for another {code}", code, fatal=True)


def identity(server: Server) -> None:
    """A name that is taken is given to nobody else, but to its own process again."""
    with server.met() as talk:
        first = talk.enter()
        with server.met(talk.hello.name) as other:
            other.send(encode(other.hello))
            _refused(other, "hello with the name of another", "identity", fatal=None)
            talk.act()
            again = other.enter(token=talk.hello.token)
            if again.incarnation <= first.incarnation:
                raise Flaw("incarnation_not_rising", "`admit`", value=again.incarnation, previous=first.incarnation)
            other.act()


def anew(server: Server) -> None:
    """After hello, episodes and observes are counted from 1 anew."""
    with server.met() as talk:
        talk.enter()
        talk.act()
        talk.act([1.0])
        talk.enter()
        talk.act()


def leaves(server: Server) -> None:
    """Who said bye is no simulator any more."""
    with server.met() as talk:
        talk.enter()
        talk.act()
        talk.send(encode(Bye()))
        talk.send(encode(Ping(clock=1.5)))
        _refused(talk, "ping after bye", "unknown", fatal=False)


def too_large(server: Server) -> None:
    """A frame that is too large costs the connection, not more."""
    with server.met() as talk:
        admit = talk.enter()
        talk.act()
        talk.send(encode(Ping()), bytes(admit.largest + 1))
        for _ in range(_RECONNECTED):  # what is said over a connection that ends may be lost
            talk.send(encode(Ping(clock=1.5)))
            heard = talk.receive(1.0)
            if heard is None:
                continue
            if isinstance(heard[0], Fault) and heard[0].code == "unknown":
                break
            raise Flaw("large_frame_not_refused", _REFUSED, limit=admit.largest, message=heard[0].type)
        talk.enter()
        talk.act()


def quarantine(server: Server) -> None:
    """Who is refused twenty times in a row is put into quarantine."""
    with server.met() as talk:
        talk.enter()
        for count in range(1, _STRIKES + 1):
            talk.send(b"\xc1")
            fault, _ = talk.expect(Fault, "garbage", _REFUSED)
            if fault.fatal != (count == _STRIKES):
                raise Flaw(
                    "repeated_fault_fatality_wrong", _REFUSED, count=count, negation="" if fault.fatal else "not "
                )
        _check_code(fault, f"garbage for the {_STRIKES}th time", "quarantined")
        talk.send(encode(talk.hello))
        _refused(talk, "hello in quarantine", "quarantined", fatal=True)


def _look(admit: Admit, name: str) -> None:
    """Whether what admit says agrees with itself."""
    if admit.name != name or admit.incarnation < 1:
        raise Flaw("admit_identity_wrong", "`admit`", expected=name, peer=admit.name, incarnation=admit.incarnation)
    wanted = hashlib.sha256(admit.world.encode()).hexdigest()[:16]
    if admit.hash != wanted:
        raise Flaw("admit_hash_wrong", "`admit`", value=admit.hash, expected=wanted)
    places = [facts_of(place) for place in parse_world(admit.world).places]
    if admit.places != places:
        raise Flaw("admit_places_wrong", "`place`")


def _refused(talk: Talk, what: str, code: str, fatal: bool | None) -> None:
    fault, _ = talk.expect(Fault, what, _REFUSED)
    _check_code(fault, what, code)
    if fatal not in (None, fault.fatal):
        raise Flaw("refusal_fatality_wrong", _REFUSED, request=what, negation="" if fault.fatal else "not ")


def _check_code(fault: Fault, what: str, code: str) -> None:
    if fault.code != code:
        raise Flaw("refusal_code_wrong", _REFUSED, request=what, answer=fault.code, reason=fault.reason, expected=code)


CHECKS: tuple[Callable[[Server], None], ...] = (
    greets,
    any_form,
    stable,
    plays,
    driven,
    pings,
    refuses,
    strangers,
    versions,
    identity,
    anew,
    leaves,
    too_large,
    quarantine,
)
"""In the order in which they are made."""


@dataclass(frozen=True, slots=True)
class InvalidMessage:
    """A message that breaks a rule. `number`: what `fault.answers` must be."""

    what: str
    code: str
    frames: list[bytes]
    number: int = 0


def wrongs(talk: Talk) -> Iterator[InvalidMessage]:
    """All of them, for one that has acted once, whose episode goes on; each is to be said before the next is made."""
    assert talk.place is not None
    yield from _observations(talk)
    yield from _ends(talk)
    header = encode(Ping())
    yield InvalidMessage("a frame that is no msgpack", "message", [b"\xc1"])
    yield InvalidMessage("half a header", "message", [header[: len(header) // 2]])
    yield InvalidMessage("a pong, which only actors say", "message", [encode(Pong(pace="going"))])
    yield InvalidMessage(
        "a ping of another schema", "message", [encode(Ping().model_copy(update={"schema_number": 77}))]
    )
    yield InvalidMessage("a ping whose clock is a text", "message", [encode(Ping().model_copy(update={"clock": "2"}))])


def _observations(talk: Talk) -> Iterator[InvalidMessage]:
    assert talk.place is not None

    def one(what: str, code: str, change: Any = None, **fields: Any) -> InvalidMessage:
        """`change`: from the arrays to the frames behind the header."""
        message, arrays = talk.observe(**fields)
        frames = [arrays] if change is None else change(arrays)
        return InvalidMessage(what, code, [encode(message), *frames], message.number)

    yield one("an observe without its arrays", "size", lambda arrays: [])
    yield one("an observe with half of its arrays", "size", lambda arrays: [arrays[: len(arrays) // 2]])
    yield one("an observe with its arrays twice", "size", lambda arrays: [arrays, arrays])
    yield one("an observe of an agent that there is not", "agent", agents=["no such agent"])
    yield one("an observe that names its agent twice", "agent", lambda arrays: [arrays * 2], agents=[talk.agent] * 2)
    yield one("an observe of nobody", "agent", lambda arrays: [b""], agents=[])
    yield one("an observe of the episode after the next", "episode", episode=talk.episode + 7)
    yield one("an observe with a reward too many", "reward", rewards=[1.0, 1.0])
    first = talk.place.observed.leaves[0].space
    if first.dtype.startswith("float") and np.prod(first.shape):
        nan = np.array(np.nan, dtype_of(first).newbyteorder("<")).tobytes()
        yield one("an observe with a number that is not finite", "value", lambda arrays: [nan + arrays[len(nan) :]])
    message, arrays = talk.observe()
    old = Observe(**{**message.model_dump(), "number": 1})
    yield InvalidMessage("an observe with an old number", "number", [encode(old), arrays], 1)


def _ends(talk: Talk) -> Iterator[InvalidMessage]:
    def end(**fields: Any) -> list[bytes]:
        return [encode(End(**{"episode": talk.episode, "agents": [talk.agent], "rewards": [1.0], **fields}))]

    yield InvalidMessage("an end of another episode", "episode", end(episode=talk.episode + 7))
    yield InvalidMessage("an end that leaves out who acted", "order", end(agents=[], rewards=[]))
    yield InvalidMessage("an end that is cut, without what was seen last", "size", end(truncated=True))
    yield InvalidMessage("an end with infos of two agents, of whom it names one", "info", end(infos=[{}, {}]))
    text = End(episode=talk.episode).model_copy(update={"infos": [{"won": "yes"}]})
    yield InvalidMessage("an end whose info is a text", "message", [encode(text)])
