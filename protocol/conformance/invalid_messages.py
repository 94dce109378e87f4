"""What an actor must refuse of a simulator, each with its code, while it serves everybody as before.

In flow: a simulator's right message, just made. Out flow: wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.conformance.probe import Talk
from protocol.messages.codec import encode
from protocol.messages.simulator import End, Observe, Ping, Pong
from protocol.spaces import dtype_of


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
