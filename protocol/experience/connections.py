"""A process's connections for experience: one to each place, however many policies are sent there.

What agents see in common goes over such a connection once and is referred to by the segments of all policies that
follow: one connection keeps them in order. In flow: messages of all senders to one place. Out flow: the same; whoever
makes the connection anew has all of them send again what may have been lost with it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import zmq

from protocol.experience.shared_obs import SharedObsWriter
from protocol.messages.core import CommonRows, Route
from protocol.refusal_log import RefusalLog
from protocol.transport.sockets import connect


class Connection:
    """The connection to where `route` leads experience."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], route: Route) -> None:
        self._context, self._address = context, route.experience
        self._server = "relay" if route.experience_relay else "learner"
        self.generation = 0
        """How often it was made anew: whoever sent before must send again what was not heard of."""
        self.users = 0
        self._sent: set[int] = set()
        """Moments that went over this connection and may still be referred to."""
        self.socket = self._connect()

    def renew(self) -> None:
        """Another connection; what waited in the old one is thrown away."""
        self.close(0)
        self.socket = self._connect()
        self._sent.clear()
        self.generation += 1

    def common(self, writer: SharedObsWriter, owner: object) -> tuple[CommonRows, list[Any]]:
        """What segments that hold moments as `owner` must be told, and the frames of those not sent before."""
        oldest, newest = writer.held(owner)
        alive = writer.blocks()
        if len(self._sent) > 2 * writer.ring.slots * writer.moments:
            self._sent = {moment for moment in self._sent if any(a <= moment // writer.moments <= b for a, b in alive)}
        lacking = [moment for moment in range(oldest, newest + 1) if moment not in self._sent]
        edges = [i for i in range(1, len(lacking)) if self._parts(writer, lacking[i - 1], lacking[i])]
        runs = [(lacking[a], b - a) for a, b in pairwise([0, *edges, len(lacking)]) if b > a]
        self._sent.update(lacking)
        return CommonRows(sent=runs, alive=alive), [writer.frame(first, count) for first, count in runs]

    def close(self, linger: int) -> None:
        """Closes it, giving what is queued so many milliseconds."""
        self.socket.close(linger=linger)

    def _parts(self, writer: SharedObsWriter, one: int, other: int) -> bool:
        return other != one + 1 or other % writer.moments == 0

    def _connect(self) -> zmq.Socket[bytes]:
        return connect(self._context, zmq.PUSH, self._address, server=self._server)


class ConnectionPool:
    """All of one process, and what it refuses of what comes back. A peer that was started again is another place."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], refusals: RefusalLog | None = None) -> None:
        self.context, self.refusals = context, refusals or RefusalLog()
        self._open: dict[tuple[str, int, int], Connection] = {}

    def take(self, route: Route) -> Connection:
        """The connection for `route`, to be left when it is used no more."""
        relay = route.experience_relay
        place = (route.experience, relay, 0 if relay else route.incarnation)
        outlet = self._open.get(place)
        if outlet is None:
            outlet = self._open[place] = Connection(self.context, route)
        outlet.users += 1
        return outlet

    def leave(self, outlet: Connection, linger: int = 0) -> None:
        """Closed when nobody uses it; what is queued gets so many milliseconds."""
        outlet.users -= 1
        if outlet.users == 0:
            outlet.close(linger)
            self._open = {place: known for place, known in self._open.items() if known is not outlet}
