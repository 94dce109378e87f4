"""From a relay to one learner on its node, and back.

Out flow: headers of segments. In flow: acknowledgements for the actors that the relay asked about.
"""

from __future__ import annotations

from collections.abc import Iterator

import zmq
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.experience.ack_publisher import Key, ack_topic
from protocol.memory.shared_file import Counters
from protocol.messages.codec import decode, encode
from protocol.messages.core import Ack, Route, Segments
from protocol.messages.versioning import spoken_with
from protocol.transport.sockets import connect, try_receive

_AT_ONCE = 1000
_LARGEST_ACK = 4096
_LONGEST_REASON = 400
Place = tuple[str, int, str, str]
"""One incarnation of a learner process, which may serve many policies."""


def place_of(route: Route) -> Place:
    """Where `route` leads."""
    return route.learner, route.incarnation, route.experience, route.acknowledgements


class LearnerLink:
    """Open until `close`."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], route: Route, counters: Counters) -> None:
        self.place = place_of(route)
        self._number = spoken_with(route)
        self._counters = counters
        self._push = connect(context, zmq.PUSH, route.experience)
        self.acks = connect(context, zmq.SUB, route.acknowledgements, largest=_LARGEST_ACK)
        """To wait on."""

    def listen(self, policy: str, key: Key) -> None:
        """Asks for one actor incarnation's acknowledgements; the first one comes at once."""
        self.acks.setsockopt(zmq.SUBSCRIBE, ack_topic(policy, *key))

    def ignore(self, policy: str, key: Key) -> None:
        """Asks for them no more."""
        self.acks.setsockopt(zmq.UNSUBSCRIBE, ack_topic(policy, *key))

    def announce(self, header: Segments, records: NDArray) -> None:
        """Tells the learner of segments; never waits."""
        self._send(header, records.tobytes())

    def refuse(self, header: Segments, count: int, fault: WireError) -> None:
        """Tells the learner that `count` messages like this one were refused; never waits."""
        said = f"{str(fault)[:_LONGEST_REASON]} [{fault.kind}]"
        self._send(header.model_copy(update={"count": count, "refused": said, "compressed": [], "common": None}))

    def _send(self, header: Segments, *frames: bytes) -> None:
        said = header.model_copy(update={"schema_number": self._number})
        try:
            self._push.send_multipart([encode(said), *frames], zmq.NOBLOCK)
        except zmq.Again:  # cannot be: an actor's credit is less than a queue holds
            self._counters.add("push_full")

    def acknowledgements(self) -> Iterator[Ack]:
        """What has come; what is no acknowledgement is counted."""
        for _ in range(_AT_ONCE):
            frames = try_receive(self.acks)
            if frames is None:
                return
            try:
                ack, _ = decode(frames[1:])
            except WireError:
                self._counters.add("refused_acks")
                continue
            if isinstance(ack, Ack):
                yield ack
            else:
                self._counters.add("refused_acks")

    def close(self) -> None:
        """Closes the sockets; what the learner has not received is announced to its next incarnation."""
        self._push.close(linger=0)
        self.acks.close(linger=0)
