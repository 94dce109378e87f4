"""Acknowledgements from a learner to the actors that listen: cumulative, repeated, never waited for.

In flows: what is settled and announced of each actor incarnation, subscriptions. Out flow: `Ack` messages on an XPUB
socket, one topic for each actor incarnation and policy.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field

import zmq

from protocol.errors import RookeryError
from protocol.memory.shared_file import Counters
from protocol.messages.codec import around, packed
from protocol.messages.core import Ack
from protocol.messages.versioning import OF_TOPICS
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import send_nowait, try_receive

Key = tuple[str, int]
"""(actor, incarnation)."""

_TOPIC = re.compile(rb"a/([\w.-]{1,128})/(\w[\w.-]{0,127})/([1-9][0-9]{0,17})/")
_BEACON_SECONDS = 1.0
_AT_MOST = 0.005
"""Seconds that an acknowledgement is owed, as long as nothing takes long meanwhile."""
_AT_ONCE = 1000
_MOST = 2**53
"""Refused messages that are counted: a relay, or who says that it is one, tells of many at once."""
_LONGEST = 400
"""Characters of a reason: an acknowledgement stays small."""


def ack_topic(policy: str, actor: str, incarnation: int) -> bytes:
    """The topic of one actor incarnation's acknowledgements."""
    return f"a/{policy}/{actor}/{incarnation}/".encode()


@dataclass(frozen=True, slots=True)
class Window:
    """What one actor may have in flight; all 0: nothing is known, and every settlement is told at once."""

    messages: int = 0
    segments: int = 0


@dataclass(slots=True)
class _Flight:
    """What one actor incarnation has in flight, as far as has been heard of it."""

    lasts: deque[int] = field(default_factory=deque)
    """The last number of each message that is not acknowledged."""
    told: int = 0
    """What was settled by the last acknowledgement."""
    owed_since: float = 0.0
    """When something was settled that is not told; 0: never since."""


class AckSender:
    """The learner's end.

    A message costs both ends more than its bytes, so that what is settled is owed for a moment while the actor surely
    has credit left: as long as less than half of its window is in flight. Who waits for credit has all of its window in
    flight, and all of that has been or is being heard of: nobody waits for credit and for what is owed. Before anything
    that takes long `answer` tells all of it, and a beacon what is owed for more than 5 ms, to those who wait until
    everything is settled. A window of one or two messages is half used up by one: then nothing is ever owed.

    `state(policy, key)` tells (settled, announced), or None for a policy that is not served.

    A queue to one actor holds one message for each of its own that was settled and one a second besides; should it
    fill all the same, the message is not lost silently but counted (`acks_full`), and the next beacon says the same.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        incarnation: int,
        state: Callable[[str, Key], tuple[int, int] | None],
        counters: Counters,
        guard: ByteGuard,
    ) -> None:
        self._guard = guard
        self._socket, self._incarnation, self._state, self._counters = socket, incarnation, state, counters
        socket.setsockopt(zmq.XPUB_NODROP, 1)
        self._beacon_at = 0.0
        self._windows: dict[str, Window] = {}
        self._flights: dict[tuple[str, Key], _Flight] = {}
        self._owed: set[tuple[str, Key]] = set()
        self._said: dict[tuple[str, Key], tuple[bytes, bytes, bytes]] = {}
        """The topic, and what of a message comes before and behind the number of what is settled."""
        self._members: Set[Key] = frozenset()
        self._refused: dict[tuple[str, Key], tuple[int, str]] = {}
        """Messages of it that were refused, and why the newest was."""
        self.listeners: dict[str, dict[Key, int]] = {}
        """policy -> actor incarnations that are listened for, and by how many: its actor, a relay, or both; and for a
        moment once more by one that connects anew, whose old connection may end after the new one began."""

    def expect(self, policy: str, window: Window) -> None:
        """What an actor of `policy` may have in flight."""
        self._windows[policy] = window

    def came(self, policy: str, key: Key, lasts: Iterable[int]) -> None:
        """Messages came, which ended with these numbers."""
        if self._windows[policy].messages:
            self._flights.setdefault((policy, key), _Flight()).lasts.extend(lasts)

    def settled(self, policy: str, key: Key) -> None:
        """More of this actor incarnation is settled, and entered in the ledger: it is told, or owed for a moment."""
        flight, window = self._flights.get((policy, key)), self._windows[policy]
        if (
            flight is None
            or not flight.lasts
            or 2 * len(flight.lasts) >= window.messages
            or 2 * (flight.lasts[-1] - flight.told) >= window.segments
        ):
            self.send(policy, key)
        elif not flight.owed_since:
            flight.owed_since = time.monotonic()
            self._owed.add((policy, key))

    def refused(self, policy: str, key: Key, fault: RookeryError, count: int = 1) -> None:
        """`count` messages of this actor incarnation were refused, the newest for this `fault`: the next
        acknowledgement, a beacon at the latest, tells."""
        before, _ = self._refused.get((policy, key), (0, ""))
        self._refused[policy, key] = min(before + count, _MOST), f"{str(fault)[:_LONGEST]} [{fault.kind}]"
        self._said.pop((policy, key), None)

    def answer(self) -> None:
        """Tells what is owed: what comes next takes long."""
        for owed in list(self._owed):
            self.send(*owed)

    def forget(self, policy: str, key: Key) -> None:
        """This actor incarnation is gone."""
        self._flights.pop((policy, key), None)
        self._owed.discard((policy, key))
        self._refused.pop((policy, key), None)
        self._said.pop((policy, key), None)

    def living(self, actors: Set[Key]) -> None:
        """Who is a member now. Of who is none and does not listen only what is settled is of interest."""
        self._members = actors
        for policy, key in self._flights.keys() | self._refused.keys() | self._said.keys():
            if key not in actors and key not in self.listeners.get(policy, ()):
                self.forget(policy, key)

    def send(self, policy: str, key: Key) -> None:
        """Tells one actor incarnation how far its segments of `policy` are."""
        state = self._state(policy, key)
        assert state is not None
        flight = self._flights.get((policy, key))
        if flight is not None:
            flight.told, flight.owed_since = state[0], 0.0
            while flight.lasts and flight.lasts[0] <= state[0]:
                flight.lasts.popleft()
            self._owed.discard((policy, key))
        topic, start, rest = self._said.get((policy, key)) or self._describe(policy, key)
        message = start + packed(state[0]) + rest + packed(state[1])
        try:
            send_nowait(self._socket, (topic, message))
        except zmq.Again:  # somebody who hears it does not read: for that one alone it waits for the next beacon
            self._counters.add("acks_full")
            self._socket.setsockopt(zmq.XPUB_NODROP, 0)
            send_nowait(self._socket, (topic, message))
            self._socket.setsockopt(zmq.XPUB_NODROP, 1)

    def _describe(self, policy: str, key: Key) -> tuple[bytes, bytes, bytes]:
        refused, reason = self._refused.get((policy, key), (0, ""))
        ack = Ack(
            schema_number=OF_TOPICS,
            policy=policy,
            learner_incarnation=self._incarnation,
            actor=key[0],
            incarnation=key[1],
            refused=refused,
            reason=reason,
            acknowledged=0,
            announced=0,
        )
        start, rest = around(ack, "acknowledged")
        said = self._said[policy, key] = ack_topic(policy, *key), start, rest[: -len(packed(0))]  # `announced` is last
        return said

    def beacon(self, now: float) -> None:
        """Once a second repeats every listener's acknowledgement, so that a lost one stalls nobody."""
        self.subscriptions()
        if self._owed:
            for owed in [owed for owed in self._owed if now - self._flights[owed].owed_since > _AT_MOST]:
                self.send(*owed)
        if now - self._beacon_at < _BEACON_SECONDS:
            return
        self._beacon_at = now
        for policy, listeners in self.listeners.items():
            for key in listeners:
                self.send(policy, key)

    def subscriptions(self) -> None:
        """A new subscriber gets its current acknowledgement at once; what is no topic of ours is counted."""
        for _ in range(_AT_ONCE):
            frames = try_receive(self._socket, copy=False)
            if frames is None:
                return
            self._guard.subscription(frames[0])
            event = frames[0].bytes
            topic = _TOPIC.fullmatch(event, 1)
            policy = topic[1].decode() if topic is not None else ""
            key = (topic[2].decode(), int(topic[3])) if topic is not None else ("", 0)
            if topic is None or event[:1] not in (b"\0", b"\1") or self._state(policy, key) is None:
                self._counters.add("invalid_subscriptions")
                self._guard.in_vain(frames[0])
            elif event[:1] == b"\1":
                listeners = self.listeners.setdefault(policy, {})
                listeners[key] = listeners.get(key, 0) + 1
                self.send(policy, key)
            else:
                self._leave(policy, key)

    def _leave(self, policy: str, key: Key) -> None:
        listeners = self.listeners.get(policy, {})
        left = listeners.pop(key, 0) - 1
        if left > 0:
            listeners[key] = left
        elif key not in self._members:
            self._said.pop((policy, key), None)
