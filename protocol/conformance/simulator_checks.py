"""Checks a simulator: serves it as an actor would, withholds what may be withheld, and looks at what it says.

In flow: a port, the world. Out flow: a Finding for each check, as it is made; nothing more after the first flaw.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import zmq

from protocol import SCHEMA
from protocol.conformance.golden import wide
from protocol.conformance.probe import Finding, Flaw
from protocol.conformance.samples import Masks, drawn
from protocol.conformance.session_state import SessionState
from protocol.errors import WireError
from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.messages.simulator import Act, Admit, Bye, End, Fault, Hello, Observe, Ping, Pong, Reset, facts_of
from protocol.spaces import Place, RowFormat, World
from protocol.transport.sockets import Ports, open_context, poll, receive_until, send_nowait

_HELLO, _LIVES, _BYE = (f"The conversation, {rule}" for rule in (1, 8, 9))
_EPISODES, _OBSERVES = 3, 300
"""After so many of one of them it has played long enough."""
_ALIVE = 10.0
"""Seconds in which what is due each second must have come."""
_SILENCE = 1.5
"""Seconds in which it must say nothing more."""
_FAREWELL_MS = 500
_LARGEST, _RATE = 2**20, 20_000


def check_simulator(
    host: str, port: int, world: World, tell: Callable[[str], None], keys: str = "", patience: float = 60.0
) -> Iterator[Finding]:
    """All checks of the first that says hello at this port (0: any that is free; `tell` is told the address);
    `patience`: seconds in which it must say something."""
    context = open_context(keys, "actor")
    ports = Ports(context, host, port, names={0: "simulators"})
    try:
        tell(ports.bind({0: zmq.ROUTER}, {0: _LARGEST})[0])
        listener = _Listener(ports.sockets[0], world, patience)
        for check in listener.checks:
            holds = (check.__doc__ or "").strip().rstrip(".")
            try:
                check()
                yield Finding(holds)
            except Flaw as flaw:
                listener.blame(flaw)
                yield Finding(holds, flaw.coded, flaw.section)
                return
    finally:
        ports.close()
        context.destroy(linger=500)


class _Listener:
    def __init__(self, socket: zmq.Socket[bytes], world: World, patience: float) -> None:
        self._socket, self._world, self._patience = socket, world, patience
        self._random = np.random.default_rng(0)
        self._route = b""
        self._hello: Hello | None = None
        self._said = SessionState(world, True)
        self.checks = (self._greets, self._plays, self._asks, self._returns, self._bears, self._leaves)

    def blame(self, flaw: Flaw) -> None:
        """Tells it what was wrong."""
        if self._route:
            self._send(Fault(code=flaw.code, reason=flaw.coded))
            poll([self._socket], _FAREWELL_MS)  # what is not sent yet would go with the port

    def _greets(self) -> None:
        """It says hello, and again until it is answered."""
        first, _ = self._receive(self._patience)
        if not isinstance(first, Hello):
            raise Flaw("message_before_hello", _HELLO, "unknown", message=first.type)
        if not first.oldest_schema <= SCHEMA <= first.newest_schema:
            raise Flaw(
                "schemas_not_common", "Schemas", "version", oldest=first.oldest_schema, newest=first.newest_schema
            )
        if first.world and first.world != self._hash:
            raise Flaw("hello_for_other_world", "`hello`", "world", value=first.world, expected=self._hash)
        self._hello = first
        self._again("while nothing answered")

    def _plays(self) -> None:
        """It plays whole episodes by the rules."""
        self._admit(1)
        while self._said.ended < _EPISODES and self._said.observes < _OBSERVES:
            self._answer()

    def _asks(self) -> None:
        """It asks whether the actor lives while an answer is due."""
        request = self._request()
        message, _ = self._receive(_ALIVE, "while its observe was not answered")
        if not isinstance(message, Ping):
            raise Flaw("ping_missing", _LIVES, message=message.type)
        self._send(Pong(clock=message.clock, pace="waiting"))
        self._act(*request)
        self._answer()

    def _returns(self) -> None:
        """It says hello again where it is not known, and counts from 1 anew."""
        observe, _ = self._request()
        self._send(Fault(code="unknown", answers=observe.number, reason="the lease has ended; say hello again"))
        self._again("after fault unknown")
        self._admit(2)
        for _ in range(5):
            self._answer()

    def _bears(self) -> None:
        """It understands any form, and what it did not ask for."""
        request = self._request()
        self._send(Pong(pace="going"), form=wide)
        self._act(*request, form=wide)
        self._answer()

    def _leaves(self) -> None:
        """It says bye when it is told so, and nothing more."""
        self._request()
        self._send(Bye(reason="all is checked"))
        while not isinstance(self._receive(_ALIVE, "after it was told bye")[0], Bye):
            continue  # what was under way
        message = self._on_message(_SILENCE)
        if message is not None:
            raise Flaw("message_after_bye", _BYE, message=message[0].type)

    @property
    def _hash(self) -> str:
        return hashlib.sha256(self._world.model_dump_json().encode()).hexdigest()[:16]

    @property
    def _known(self) -> Hello:
        assert self._hello is not None
        return self._hello

    def _again(self, when: str) -> None:
        message, _ = self._receive(_ALIVE, when)
        if not isinstance(message, Hello):
            raise Flaw(
                "hello_missing", _LIVES if self._said.observes else _HELLO, "unknown", message=message.type, when=when
            )
        if message != self._known:
            raise Flaw("hello_changed", "`hello`", when=when)

    def _admit(self, incarnation: int) -> None:
        hello = self._known
        admit = Admit(
            run="conform",
            name=hello.name,
            incarnation=incarnation,
            copy_number=0,
            hash=self._hash,
            world=self._world.model_dump_json(),
            places=[facts_of(place) for place in self._world.places],
            lease=hello.lease,
            largest=_LARGEST,
            rate=_RATE,
        )
        while isinstance((self._on_message(0.0) or (None,))[0], Hello):
            continue  # said before this is heard
        self._said = SessionState(self._world, hello.drives)
        self._send(admit)
        self._reset()

    def _reset(self) -> None:
        if not self._known.drives:
            self._send(Reset(episode=self._said.reset(), seed=int(self._random.integers(2**31))))

    def _answer(self) -> None:
        """One observe and its act."""
        self._act(*self._request())

    def _act(self, observe: Observe, allowed: list[tuple[Place, Masks]], form: Any = encode) -> None:
        actions = []
        for place, masks in allowed:
            wanted = [leaf for leaf in place.acted.leaves if not observe.elements or leaf.path[0] in observe.elements]
            actions.append(drawn(RowFormat.of(wanted), self._random, masks))
        self._send(Act(answers=observe.number, episode=observe.episode, waited=0.0), b"".join(actions), form=form)

    def _request(self) -> tuple[Observe, list[tuple[Place, Masks]]]:
        """The next observe, with all that comes before it."""
        while True:
            message, frames = self._receive(min(self._patience, self._known.lease), "though it is its turn")
            if isinstance(message, Observe):
                return message, self._said.observe(message, frames)
            if isinstance(message, End):
                if self._said.end(message, frames):
                    self._reset()
            elif isinstance(message, Ping):
                self._send(Pong(clock=message.clock, pace="going"))
            elif isinstance(message, Hello) and message == self._known and not self._said.observes:
                continue  # it crossed with admit
            else:
                raise Flaw("left_before_checked", _BYE, message=message.type, reason=getattr(message, "reason", ""))

    def _receive(self, seconds: float, when: str = "") -> tuple[Message, Sequence[Any]]:
        heard = self._on_message(seconds)
        if heard is None:
            raise Flaw("peer_silent", _LIVES, seconds=seconds, when=when and f" {when}")
        return heard

    def _on_message(self, seconds: float) -> tuple[Message, Sequence[Any]] | None:
        """What the first that spoke says next; None if it is silent. Others are told that all is taken."""
        end = time.monotonic() + seconds
        while True:
            frames = receive_until(self._socket, end)
            if frames is None:
                return None
            route, *rest = frames
            try:
                message, arrays = decode(rest)
            except WireError as fault:
                self._route = self._route or route
                raise Flaw("message_undecodable", "Messages", reason=fault) from None
            if isinstance(message, Hello) and (self._hello is None or message.token == self._hello.token):
                self._route = route
            if route == self._route or not self._route:
                self._route = route
                return message, arrays
            send_nowait(self._socket, [route, encode(Fault(code="full", reason="one is being checked; ask again"))])

    def _send(self, message: Message, *frames: bytes, form: Any = encode) -> None:
        send_nowait(self._socket, [self._route, form(message), *frames])
