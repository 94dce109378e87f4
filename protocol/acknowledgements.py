"""Acknowledgements from a learner to the actors that listen: cumulative, repeated, never waited for.

In flows: what is settled and announced of each actor incarnation, subscriptions. Out flow: `Ack` messages on an XPUB
socket, one topic for each actor incarnation and policy.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import zmq

from protocol.codec import encode
from protocol.counters import Counters
from protocol.messages import Ack
from protocol.sockets import arrived

__all__ = ["AckSender", "Key", "ack_topic"]

Key = tuple[str, int]
"""(actor, incarnation)."""

_TOPIC = re.compile(rb"a/([\w.-]{1,128})/(\w[\w.-]{0,127})/([1-9][0-9]{0,17})/")
_BEACON_SECONDS = 1.0
_AT_ONCE = 1000


def ack_topic(policy: str, actor: str, incarnation: int) -> bytes:
    """The topic of one actor incarnation's acknowledgements."""
    return f"a/{policy}/{actor}/{incarnation}/".encode()


class AckSender:
    """The learner's end. `state(policy, key)` tells (settled, announced), or None for a policy that is not served.

    A queue to one actor holds one message for each of its own that was settled and one a second besides; should it
    fill all the same, the message is not lost silently but counted (`acks_full`), and the next beacon says the same.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        incarnation: int,
        state: Callable[[str, Key], tuple[int, int] | None],
        counters: Counters,
    ) -> None:
        self._socket, self._incarnation, self._state, self._counters = socket, incarnation, state, counters
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._beacon_at = 0.0
        self.listeners: dict[str, dict[Key, int]] = {}
        """policy -> actor incarnations that are listened for, and by how many: its actor, a relay, or both; and for a
        moment once more by one that connects anew, whose old connection may end after the new one began."""

    def send(self, policy: str, key: Key) -> None:
        """Tells one actor incarnation how far its segments of `policy` are."""
        state = self._state(policy, key)
        assert state is not None
        ack = Ack(
            policy=policy,
            learner_incarnation=self._incarnation,
            actor=key[0],
            incarnation=key[1],
            settled=state[0],
            announced=state[1],
        )
        try:
            self._socket.send_multipart([ack_topic(policy, *key), encode(ack)], zmq.NOBLOCK)
        except zmq.Again:
            self._counters.add("acks_full")

    def beacon(self, now: float) -> None:
        """Once a second repeats every listener's acknowledgement, so that a lost one stalls nobody."""
        self.subscriptions()
        if now - self._beacon_at < _BEACON_SECONDS:
            return
        self._beacon_at = now
        for policy, listeners in self.listeners.items():
            for key in listeners:
                self.send(policy, key)

    def subscriptions(self) -> None:
        """A new subscriber gets its current acknowledgement at once; what is no topic of ours is counted."""
        for _ in range(_AT_ONCE):
            frames = arrived(self._socket)
            if frames is None:
                return
            event = frames[0]
            topic = _TOPIC.fullmatch(event, 1)
            policy = topic[1].decode() if topic is not None else ""
            key = (topic[2].decode(), int(topic[3])) if topic is not None else ("", 0)
            if topic is None or event[:1] not in (b"\0", b"\1") or self._state(policy, key) is None:
                self._counters.add("strange_subscriptions")
            elif event[:1] == b"\1":
                listeners = self.listeners.setdefault(policy, {})
                listeners[key] = listeners.get(key, 0) + 1
                self.send(policy, key)
            else:
                self._leave(self.listeners.get(policy, {}), key)

    def _leave(self, listeners: dict[Key, int], key: Key) -> None:
        left = listeners.pop(key, 0) - 1
        if left > 0:
            listeners[key] = left
