"""A simulator's connection to an actor: found where the run says it is, opened anew when it moves.

In flows: frames. Out flows: frames; nothing is queued for an actor that is away.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import zmq

from protocol.transport.sockets import BlockingReceiver, Handshakes, connect, open_context, send_nowait

_FAREWELL_MS = 500
_OUTSIDE_SECONDS = 5.0
"""After which who was not let in looks for other keys."""


class Line:
    """To `endpoint`: an actor's address, or connect string, or the folder of a run. `context`: one to share, else its
    own with `keys`, once there is somebody to speak to: a run that has not begun has made none yet."""

    def __init__(self, endpoint: str | Path, keys: str, context: zmq.Context[zmq.Socket[bytes]] | None) -> None:
        self._endpoint, self._keys = endpoint, keys
        self._context, self._owns_context = context, context is None
        self._handshakes = Handshakes()
        self._socket: zmq.Socket[bytes] | None = None
        self._ear: BlockingReceiver | None = None
        self.address = ""
        self._opened_at = 0.0

    def open(self, seconds: float, elsewhere: bool = False) -> None:
        """To where an actor is now, if that is known: where it was, or `elsewhere` if there are others; waits so long
        until it can be spoken to."""
        served = _served(self._endpoint)
        known, address = [*served], self.address
        if known and (elsewhere or address not in known):
            address = known[(known.index(address) + 1) % len(known)] if address in known else known[0]
        outside = time.monotonic() - self._opened_at > _OUTSIDE_SECONDS and self.refused
        if address and (self._socket is None or address != self.address or outside):
            self.drop()
            self.address, self._opened_at = address, time.monotonic()
            if self._owns_context:  # the run may have other keys by now
                if self._context is not None:
                    self._context.destroy()
                self._context = simulator_context(self._endpoint, self._keys or served.get(address, ""))
            assert self._context is not None
            # What were queued for an actor that is away, it could make no sense of when it is back.
            self._socket = connect(self._context, zmq.DEALER, address, False, None, "actor", self._handshakes)
            self._ear = BlockingReceiver(self._socket)
        if self._socket is not None:
            self._socket.poll(int(seconds * 1000), zmq.POLLOUT)

    @property
    def moved(self) -> bool:
        """Whether the run says that its actors are elsewhere now."""
        known = addresses_of(self._endpoint)
        return bool(known) and self.address not in known

    @property
    def refused(self) -> bool:
        """Whether somebody listens there whose keys are others."""
        return self._handshakes.refused()

    @property
    def over(self) -> bool:
        """Whether the run says that it has ended."""
        return ended(self._endpoint)

    def send(self, frames: list[bytes]) -> None:
        """What cannot be sent is found out when the answer does not come."""
        if self._socket is None:
            return
        try:
            send_nowait(self._socket, frames)
        except zmq.Again:
            return  # the next ping, or hello, tells whether the actor knows of it

    def receive(self, seconds: float) -> list[bytes] | None:
        """The next message, if one comes in time."""
        if self._ear is None:
            time.sleep(min(seconds, 0.1))
            return None
        return self._ear.receive(int(seconds * 1000))

    def drop(self, linger: int = 0) -> None:
        """Closes the connection; what is to be said yet has `linger` milliseconds."""
        if self._socket is not None:
            self._handshakes.close()
            self._socket.close(linger=linger)
            self._socket = self._ear = None

    def close(self) -> None:
        """Closes everything."""
        self.drop(_FAREWELL_MS)
        if self._owns_context and self._context is not None:
            self._context.destroy()


def address_in(endpoint: str | Path) -> str | Path:
    """The address in a connect string; anything else as it is."""
    return endpoint.partition("?keys=")[0] if isinstance(endpoint, str) else endpoint


def simulator_context(endpoint: str | Path, keys: str) -> zmq.Context[zmq.Socket[bytes]]:
    """With `keys`, else with those that a connect string carries, that an actor of the run in the folder `endpoint`
    says it has, or that `ROOKERY_KEYS` names, as it does for who is started by a run; else without any."""
    _, carries, carried = str(endpoint).partition("?keys=")
    if carries and not keys:
        from protocol.transport.curve import CurveContext, Keys

        return CurveContext.make(Keys.carried(carried))
    told = next(iter(_served(endpoint).values()), "")
    return open_context(keys or told or os.environ.get("ROOKERY_KEYS", ""), "simulator")


def addresses_of(endpoint: str | Path) -> list[str]:
    """The address of an actor; of all that a run's folder tells of, none if none has served yet."""
    return [*_served(endpoint)]


def _served(endpoint: str | Path) -> dict[str, str]:
    """Addresses, and the folders of keys that are asked for there; empty: none, or they are not told."""
    if _is_address(endpoint):
        return {str(address_in(endpoint)): ""}
    told = [json.loads(path.read_text()) for path in sorted((Path(endpoint) / "simulators").glob("[!.]*.json"))]
    return {str(one["address"]): str(one.get("keys", "")) for one in told}


def ended(endpoint: str | Path) -> bool:
    """Whether a run's folder has a summary, and no coordinator has gone on with it since."""
    if _is_address(endpoint):
        return False
    told, begun = (_written(Path(endpoint) / name) for name in ("summary.json", "coordinator.json"))
    return told > 0 and told >= begun


def _written(path: Path) -> int:
    """When, in nanoseconds; 0: not yet."""
    try:
        return path.stat().st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_address(endpoint: str | Path) -> bool:
    return str(endpoint).startswith("tcp://")
