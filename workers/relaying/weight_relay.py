"""One policy's weights on their way through a relay: taken once from a learner elsewhere, read by a whole node.

In flow: beacons and snapshots of the learner. Out flow: a mailbox in this node's memory, and beacons of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import WireError
from protocol.memory.shared_file import Counters
from protocol.messages.core import Beacon, Route, Weights
from protocol.weights.manifest import NOTHING, Manifest, Version
from protocol.weights.publisher import WeightPublisher, WeightSubscriber
from protocol.weights.subscription import Subscription
from workers.planning.policy_plan import TrainingPlan


class WeightRelay:
    """The weights of `plan.name`, published by `publisher` under the versions they have; `path` is their mailbox.

    The first snapshot tells what the network is; from then on the classes of any actor and learner do the work.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        plan: TrainingPlan,
        path: Path,
        publisher: WeightPublisher,
        counters: Counters,
    ) -> None:
        self._context, self._plan, self._path = context, plan, path
        self._publisher, self._counters = publisher, counters
        self._route: Route | None = None
        self._first = Subscription(context, plan.name, 0)
        self._known = False
        """Whether the learner has told how large its weights are."""
        self._subscriber: WeightSubscriber | None = None
        self._flat: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._version: Version = NOTHING

    @property
    def ready(self) -> bool:
        """Whether there is something to pass on."""
        return self._subscriber is not None

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return (self._first if self._subscriber is None else self._subscriber).sockets

    def follow(self, route: Route) -> None:
        """Where the learner is now."""
        if self._subscriber is not None:
            self._subscriber.route(route)
        elif route != self._route:
            self._known = False
            self._first.connect(route.weights)
        self._route = route

    def turn(self) -> bool:
        """Takes and publishes what is new, never waits; whether there was something."""
        if self._subscriber is None:
            return self._meet()
        version = self._subscriber.adopt(self._flat, self._version)
        return version is not None and self._publish(version)

    def close(self) -> None:
        """Closes the sockets; the mailbox is the publisher's."""
        self._first.close()
        if self._subscriber is not None:
            self._subscriber.close()

    def _meet(self) -> bool:
        for message, frames in self._first.messages():
            if isinstance(message, Weights):
                return self._begin(message, frames)
            if isinstance(message, Beacon) and message.version:
                self._ask(message)
        return False

    def _ask(self, beacon: Beacon) -> None:
        """For the first snapshot, over a connection that takes in no more than its size."""
        assert self._route is not None
        if not self._known:
            self._first.close()
            self._first = Subscription(self._context, self._plan.name, beacon.nbytes)
            self._first.connect(self._route.weights)
            self._known = True
        if not self._first.asked:
            self._first.ask()

    def _begin(self, header: Weights, frames: Sequence[zmq.Frame]) -> bool:
        assert self._route is not None
        manifest = Manifest.parse(header.entries)
        if manifest.hash != header.manifest or len(frames) != 1:
            raise WireError("weights_differ_from_manifest", policy=self._plan.name)
        data = np.frombuffer(frames[0].buffer, np.uint8)
        if zlib.crc32(data.data) != header.crc:
            self._first.refusals.tell("weights_damaged", "crc", "their CRC is wrong", policy=self._plan.name)
            return False
        name, config = self._plan.name, self._plan.config
        self._flat = np.array(manifest.unpack(data, header.wire))
        self._publisher.add_policy(name, manifest, self._path, config.publish_mode)
        self._subscriber = WeightSubscriber(self._context, name, manifest, "tcp")
        self._subscriber.route(self._route)
        self._first.close()
        return self._publish(Version(header.incarnation, header.version))

    def _publish(self, version: Version) -> bool:
        self._version = version
        self._publisher.publish(self._plan.name, self._flat, version)
        self._counters.add(f"weights_relayed.{self._plan.name}")
        return True
