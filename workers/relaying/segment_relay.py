"""Segments on their way through a relay: received once for its node, then only announced to the learners there.

In flows: inline segments of actors elsewhere, with the moments they refer to; acknowledgements of the learners. Out
flows: headers to the learners, one lane a policy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any

import zmq

from protocol.errors import WireError
from protocol.experience.ack_publisher import Key
from protocol.experience.proof import ProofCheck
from protocol.experience.shared_obs import COMMON
from protocol.memory.shared_file import Counters
from protocol.memory.shared_obs_store import SharedObsStore
from protocol.messages.codec import decode
from protocol.messages.core import Route, Segments
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import peer_host, try_receive
from workers.planning.policy_plan import TrainingPlan
from workers.planning.shared_observation_plan import SharedObservationPlan
from workers.relaying.learner_link import LearnerLink, place_of
from workers.relaying.policy_relay import PolicySegmentRelay

_AT_ONCE = 1000
_TELL_EVERY = 1.0
"""Seconds between words to a learner of what was refused: who sends much that is refused costs it little."""
_BYTES_AT_ONCE = 2**20
"""Bytes that are copied before acknowledgements and weights get their turn."""


class SegmentRelay:
    """For all policies whose learners are on this node. `pull` belongs to the caller; `path_of(policy)` names the file
    of a pool; `common` says what agents see in common, where they do."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        pull: zmq.Socket[bytes],
        run: str,
        secret: str,
        path_of: Callable[[str], Path],
        common: SharedObservationPlan | None,
        counters: Counters,
        guard: ByteGuard | None = None,
    ) -> None:
        self._guard = guard or ByteGuard()
        self._context, self._pull, self._path_of, self._proven = context, pull, path_of, ProofCheck(secret, run)
        self._counters = counters
        self._lanes: dict[str, PolicySegmentRelay] = {}
        self._shelf = SharedObsStore(run, path_of(COMMON))
        if common is not None:
            self._shelf.expect(common.layout, common.pool)
        self._untold: dict[tuple[str, str, int], tuple[Segments, int, WireError]] = {}
        """By actor incarnation and policy: the newest message that was refused, how many, and why it was."""
        self._told_at = 0.0

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return [self._pull, *(link.acks for link in self._links())]

    def follow(self, plan: TrainingPlan, route: Route) -> None:
        """Where the learner of `plan.name` is now."""
        links, lane = self._links(), self._lanes.get(plan.name)
        if lane is not None and lane.link.place == place_of(route):
            return
        link = next((known for known in links if known.place == place_of(route)), None)
        link = link or LearnerLink(self._context, route, self._counters)
        if lane is None:
            self._lanes[plan.name] = PolicySegmentRelay(
                plan, self._path_of(plan.name), self._shelf, link, self._counters
            )
            return
        lane.move(link)
        for gone in set(links) - set(self._links()):
            gone.close()

    def living(self, actors: Set[Key]) -> None:
        """Who is a member now."""
        self._shelf.living(actors)
        for lane in self._lanes.values():
            lane.living(actors)

    def turn(self) -> bool:
        """Takes in what has come, a bounded amount at once, never waits; whether there may be more."""
        for link in self._links():
            for ack in link.acknowledgements():
                if ack.policy in self._lanes:
                    self._lanes[ack.policy].settle(ack)
        self._tell_refusals()
        copied = sum(lane.retry() for lane in self._lanes.values())
        for _ in range(_AT_ONCE):
            frames = try_receive(self._pull, copy=False)
            if frames is None:
                return False
            self._guard.took(frames)
            header: Segments | None = None
            try:
                header, rest = self._open(frames)
                taken = self._lanes[header.policy].take(header, rest)
                if taken is None:
                    self._guard.in_vain(frames[0])
                copied += taken or 0
            except WireError as fault:
                self._quarantine(fault, peer_host(frames[0]), header)
                self._guard.in_vain(frames[0])
            if copied >= _BYTES_AT_ONCE:
                break
        return True

    def close(self) -> None:
        """Closes the sockets to learners and lets go of the pools."""
        for link in self._links():
            link.close()
        for lane in self._lanes.values():
            lane.close()
        self._lanes.clear()
        self._shelf.close()

    def _links(self) -> list[LearnerLink]:
        return list(dict.fromkeys(lane.link for lane in self._lanes.values()))

    def _open(self, frames: list[zmq.Frame]) -> tuple[Segments, Sequence[Any]]:
        """A header that its actor made, of a policy that is learned here, and what follows it."""
        header, rest = decode(frames)
        if not isinstance(header, Segments):
            raise WireError("message_not_segments", message=header.type)
        self._proven(header)
        if header.policy not in self._lanes:
            raise WireError("segments_for_other_node", policy=header.policy)
        return header, rest

    def _tell_refusals(self) -> None:
        """Once a second each learner, who tells its actors."""
        if (now := time.monotonic()) - self._told_at >= _TELL_EVERY:
            self._told_at = now
            for header, count, fault in self._untold.values():
                self._lanes[header.policy].link.refuse(header, count, fault)
            self._untold.clear()

    def _quarantine(self, fault: WireError, host: str, header: Segments | None) -> None:
        self._counters.add("quarantined_messages")
        if header is not None:
            who = header.policy, header.actor, header.incarnation
            self._untold[who] = header, self._untold[who][1] + 1 if who in self._untold else 1, fault
        self._guard.refusals.tell("message_refused", fault.kind, fault.coded, host=host)
