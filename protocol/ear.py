"""Taking in messages at the least cost: many in a row, and the first of them waited for by the socket itself.

In flow: a socket. Out flow: the frames of each message as bytes.
"""

from __future__ import annotations

import zmq

__all__ = ["Ear", "pending"]

_NOW, _PATIENCE = int(zmq.NOBLOCK), int(zmq.RCVTIMEO)  # the enumerations are slower


def pending(socket: zmq.Socket[bytes], flags: int = _NOW, routed: bool = False) -> list[bytes] | None:
    """The next message's frames, or None if none waits: for whoever takes in many in a row, where to raise once at
    their end costs less than to ask before each. `routed`: the first frame says whose it is, and is not the last."""
    receive = socket.recv
    frames: list[bytes] = []
    try:
        if routed:
            frames.append(receive(flags))
            flags = _NOW
        frame = receive(flags, False)  # one that knows whether it is the last costs less than to ask the socket
        frames.append(frame.bytes)
        while frame.more:
            frame = receive(_NOW, False)
            frames.append(frame.bytes)
    except zmq.Again:
        return None
    return frames


class Ear:
    """At one socket, whose own patience nobody else uses."""

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket, self._routed = socket, socket.type == zmq.ROUTER
        self._patience = -1
        """Milliseconds that the socket waits now."""

    def hear(self, milliseconds: int) -> list[bytes] | None:
        """The next message, waited for at most so long. To wait by receiving is one call, to poll first three."""
        if milliseconds <= 0:
            return pending(self._socket, _NOW, self._routed)
        if milliseconds != self._patience:
            self._socket.setsockopt(_PATIENCE, milliseconds)
            self._patience = milliseconds
        return pending(self._socket, 0, self._routed)
