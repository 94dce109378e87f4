"""A connection to an actor that says whatever a test wants it to say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import zmq

from protocol.messages.codec import decode, encode
from protocol.messages.core import Message
from protocol.messages.simulator import Admit, Hello, Observe

__all__ = ["Raw", "raw", "seen"]

SECONDS = 60.0


def seen(*numbers: float) -> bytes:
    """An observation."""
    return np.array(numbers, "<f4").tobytes()


class Raw:
    """One DEALER."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.linger = 0
        self.socket.connect(address)

    def say(self, message: Message | bytes, *frames: bytes) -> None:
        """Sends it as it is."""
        self.socket.send_multipart([message if isinstance(message, bytes) else encode(message), *frames])

    def hear(self, seconds: float = SECONDS) -> Message:
        """The next message."""
        assert self.socket.poll(int(seconds * 1000)), "nothing was answered"
        return decode(self.socket.recv_multipart())[0]

    def ask(self, message: Message | bytes, *frames: bytes) -> Message:
        """Says it; what is answered."""
        self.say(message, *frames)
        return self.hear()

    def enter(self, name: str, **fields: Any) -> Admit:
        """Says hello and is let in."""
        admit = self.ask(Hello(name=name, token=f"token of {name}", **fields))
        assert isinstance(admit, Admit), admit
        return admit

    def begin(self, name: str = "raw", **fields: Any) -> None:
        """Is let in and has acted once, in episode 1."""
        self.enter(name, **fields)
        assert self.ask(Observe(number=1, episode=1, agents=["walker"]), seen(1, 1)).type == "act"


@contextmanager
def raw(address: str) -> Iterator[Raw]:
    """A connection for the block."""
    with zmq.Context() as context:
        one = Raw(context, address)
        try:
            yield one
        finally:
            one.socket.close()
