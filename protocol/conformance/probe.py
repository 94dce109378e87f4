"""What a check says: what held, or in one sentence what is wrong and where protocol/README.md says how it should be;
and a connection to an actor that says what a check wants, and takes the answers for what README.md says they must be.

In flows: messages to say; answers. Out flow: a Flaw for each answer that breaks a rule.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import zmq

from protocol.conformance.samples import drawn, drawn_masks, flaw, forbidden, masks_of
from protocol.errors import RookeryError, WireError
from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.messages.simulator import Act, Admit, Bye, End, Fault, Hello, Observe, Pong, Reset
from protocol.spaces import Place, parse_world
from protocol.spaces.row_format import nbytes
from protocol.transport.sockets import connect, receive_until, send_nowait


class Flaw(RookeryError):
    """The other side breaks a rule of `section`. `code`: what a simulator is refused with for it."""

    def __init__(self, kind: str, section: str, code: str = "message", /, **facts: Any) -> None:
        super().__init__(kind, **facts)
        self.section, self.code = section, code


@dataclass(frozen=True, slots=True)
class Finding:
    """Of one check: what should hold; what is wrong, if it does not."""

    holds: str
    flaw: str = ""
    section: str = ""

    @property
    def good(self) -> bool:
        """Whether it holds."""
        return not self.flaw

    def __str__(self) -> str:
        if self.good:
            return f"ok     {self.holds}"
        return f"WRONG  {self.holds}: {self.flaw} (protocol/README.md, {self.section})"


_SAID = (Act, Admit, Bye, Fault, Pong, Reset)
_AGAIN = 1.0
"""Seconds after which one says hello again."""
M = TypeVar("M", bound=Message)


class Talk:
    """With the actor at `address`, as the simulator `name`. `patience`: seconds in which an answer must come."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], address: str, name: str, patience: float) -> None:
        self._socket = connect(context, zmq.DEALER, address, server="actor")
        self._patience = patience
        self._random = np.random.default_rng(0)
        self.hello = Hello(name=name, token=secrets.token_hex(8), lease=60.0, software="rookery simulate --conform")
        self.place: Place | None = None
        """Where the first agent of the world stands."""
        self.agent = ""
        self.number, self.episode, self.playing = 0, 0, False

    def close(self) -> None:
        """Says farewell."""
        if self._socket.poll(0, zmq.POLLOUT):
            self.send(encode(Bye(reason="checked")))
        self._socket.close(linger=500)

    def send(self, *frames: bytes) -> None:
        """Sends a message as it is."""
        if not self._socket.poll(int(self._patience * 1000), zmq.POLLOUT):
            raise Flaw("messages_not_taken", "Frames")
        send_nowait(self._socket, frames)

    def receive(self, seconds: float | None = None) -> tuple[Message, Sequence[Any]] | None:
        """The next message that answers something, with its frames; None if none comes in time."""
        end = time.monotonic() + (self._patience if seconds is None else seconds)
        while True:
            frames = receive_until(self._socket, end)
            if frames is None:
                return None
            try:
                message, rest = decode(frames)
            except WireError as fault:
                raise Flaw("answer_undecodable", "Messages", reason=fault) from None
            if not isinstance(message, _SAID):
                raise Flaw("message_not_for_simulator", "Frames", message=message.type)
            if isinstance(message, Bye):
                raise Flaw("actor_left_early", "The conversation, 9", reason=message.reason)
            if not isinstance(message, Pong) or message.clock:  # of itself it may say pong at any time
                return message, rest

    def expect(self, kind: type[M], to: str, section: str, seconds: float | None = None) -> tuple[M, Sequence[Any]]:
        """The answer to `to`, which must be of this kind."""
        heard = self.receive(seconds)
        if heard is None:
            raise Flaw("request_not_answered", section, request=to, seconds=self._patience, expected=kind.type)
        message, rest = heard
        if isinstance(message, kind):
            return message, rest
        said = f"fault {message.code} ({message.reason})" if isinstance(message, Fault) else message.type
        raise Flaw("answer_of_wrong_type", section, request=to, answer=said, expected=kind.type)

    def enter(self, frame: bytes | None = None, **fields: Any) -> Admit:
        """Says hello, or `frame` in its place, until it is let in."""
        self.hello = self.hello.model_copy(update=fields)
        end = time.monotonic() + self._patience
        while True:
            self.send(encode(self.hello) if frame is None else frame)
            heard = self.receive(_AGAIN)
            if heard is not None and isinstance(heard[0], Admit):
                return self._entered(heard[0])
            full = heard is not None and isinstance(heard[0], Fault) and heard[0].code == "full"
            if time.monotonic() > end or (heard is not None and not full):
                said = "nothing" if heard is None else getattr(heard[0], "reason", heard[0].type)
                raise Flaw("hello_not_admitted", "The conversation, 1", answer=said)
            time.sleep(_AGAIN / 4)

    def begin(self) -> Reset:
        """Of one that does not drive: is told to begin."""
        reset, _ = self.expect(Reset, "admit, or the end of an episode,", "The conversation, 3")
        if reset.episode != self.episode + 1 or reset.seed >= 2**31:
            raise Flaw("reset_misnumbered", "`reset`", episode=reset.episode, seed=reset.seed, previous=self.episode)
        self.episode, self.playing = reset.episode, True
        return reset

    def observe(self, rewards: Sequence[float] = (), **fields: Any) -> tuple[Observe, bytes]:
        """A right observation of the first agent, not said yet, but for `fields`."""
        assert self.place is not None
        self.number += 1
        self.episode, self.playing = self.episode + (not self.playing), True
        about = {"number": self.number, "episode": self.episode, "agents": [self.agent], "rewards": list(rewards)}
        seen = drawn(self.place.observed, self._random) + drawn_masks(self.place, self._random)
        return Observe(**{**about, **fields}), seen

    def act(self, rewards: Sequence[float] = (), form: Callable[[Message], bytes] = encode) -> Act:
        """Asks for an action, in this form; looks through the answer."""
        message, arrays = self.observe(rewards)
        self.send(form(message), arrays)
        act, rest = self.expect(Act, f"observe {message.number}", "The conversation, 3")
        assert self.place is not None
        if (act.answers, act.episode) != (message.number, message.episode):
            raise Flaw(
                "act_answers_other_observe",
                "`act`",
                answers=act.answers,
                episode=act.episode,
                expected=message.number,
                wanted=message.episode,
            )
        wanted, sizes = nbytes(self.place.acted), [len(frame) for frame in rest]
        if sizes != [wanted]:
            raise Flaw("act_frames_wrong", "Simulators", sizes=sizes, expected=wanted)
        wrong = flaw(self.place.acted, bytes(rest[0]))
        if wrong:
            raise Flaw("action_outside_space", "Simulators", reason=wrong)
        masks = masks_of(self.place, arrays[nbytes(self.place.observed) :])
        if wrong := forbidden(self.place, masks, bytes(rest[0])):
            raise Flaw("action_not_legal", "The conversation, 3", field=wrong)
        return act

    def end(self, truncated: bool) -> None:
        """Says that the episode is over."""
        assert self.place is not None
        infos: list[dict[str, bool | float]] = [{"truncated": True}] if truncated else []
        header = encode(End(episode=self.episode, agents=[self.agent], rewards=[1.0], truncated=truncated, infos=infos))
        self.send(header, *([drawn(self.place.observed, self._random)] if truncated else []))
        self.playing = False

    def _entered(self, admit: Admit) -> Admit:
        try:
            world = parse_world(admit.world)
        except WireError as fault:
            raise Flaw("admitted_world_invalid", "`admit`", reason=fault) from None
        self.place = world.places[0]
        self.agent = self.place.slots[0]
        self.number, self.episode, self.playing = 0, 0, False
        return admit
