"""Weights from learner to actors: a mailbox for processes of the same node, snapshots on request for all others.

A beacon at each publication and once a second tells the newest version. Who shares the learner's memory copies from the
mailbox; anybody else asks, by a subscription to a topic of its own, and is sent the newest snapshot once. Nothing is
ever pushed to a subscriber that does not take it in, and weights that did not change cost nothing.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import zmq
from numpy.typing import NDArray

from protocol.errors import SharedMemoryError, WireError
from protocol.memory import futex
from protocol.memory.shared_file import Counters
from protocol.messages.core import Beacon, Route, Weights
from protocol.transport.byte_guard import ByteGuard
from protocol.weights.manifest import NOTHING, Manifest, Version, Wire
from protocol.weights.publisher_thread import Publication, Published
from protocol.weights.shared_snapshot import SharedSnapshot
from protocol.weights.subscription import Subscription

WeightSource = NDArray[np.uint8] | Callable[[], NDArray[np.uint8]]
"""Flat weights [nbytes]: in host memory, or a function that waits for them to come from a device."""

_LOOK_SECONDS = 0.05
"""Longest sleep of one that waits, between two looks at what else is to be done."""


class WeightPublisher:
    """A learner's end, for all policies it serves. `socket` belongs to its thread from now on, until `close`."""

    COUNTERS = ("weights_answered", "weights_bytes", "weights_deferred", "weights_refused", "weights_superseded")
    """Requests answered, bytes sent for them, answers put off for the next publication, subscriptions refused, and
    publications from a device that a newer one replaced before they arrived."""

    def __init__(self, socket: zmq.Socket[bytes], counters: Counters, guard: ByteGuard | None = None) -> None:
        self._counters = counters
        self._policies: dict[str, Published] = {}
        self._publication = Publication(socket, self._policies, counters, guard or ByteGuard())
        self._newest: dict[str, Version] = {}

    def add_policy(
        self,
        policy: str,
        manifest: Manifest,
        path: Path | None,
        mode: Literal["double_buffer", "snapshot"],
        wire: Wire = "float32",
    ) -> tuple[Version, NDArray[np.uint8] | None]:
        """Opens the policy's mailbox (`path` None: a private one, all subscribers are remote).

        A mailbox that a dead learner left is adopted, and its inactive copy started from the active one: returns its
        version and weights, else version (0, 0) and None.
        """
        version, found = NOTHING, None
        if path is not None and path.exists():
            mailbox = SharedSnapshot.attach(path, manifest.hash, manifest.nbytes)
            found = np.empty(manifest.nbytes, np.uint8)
            adopted = mailbox.read(found, 0.1)
            version, found = (adopted, found) if adopted else (mailbox.version, None)
            mailbox.warm()
        else:
            mailbox = SharedSnapshot.create(path, manifest.nbytes, manifest.hash, mode)
        self._newest[policy] = version
        self._policies[policy] = Published(policy, manifest, mailbox, wire, version)
        return version, found

    def publish(self, policy: str, weights: WeightSource, version: Version) -> None:
        """Makes `weights` the newest; ValueError unless `version` grows.

        Costs the caller one copy of host memory, or, for weights on their way from a device, nothing. All publications
        of a policy come the same way.
        """
        self.check()
        if version <= self._newest[policy]:
            raise ValueError(f"version {version} is not newer than {self._newest[policy]}")
        entry = self._policies[policy]
        if callable(weights):
            if entry.staged:
                self._counters.add("weights_superseded")
            entry.staged.append((weights, version))
        else:
            entry.mailbox.write(weights, version)
            entry.version = version
        self._newest[policy] = version
        self._publication.wake()

    def last(self, policy: str) -> NDArray[np.uint8] | None:
        """A copy of the newest weights of `policy` that lie whole in its mailbox; None before the first."""
        entry = self._policies[policy]
        found = np.empty(entry.manifest.nbytes, np.uint8)
        return None if entry.mailbox.read(found) is None else found

    def check(self) -> None:
        """Raises what ended the publication's thread, if something did; to be called once in a while."""
        self._publication.check()

    def close(self) -> None:
        """Ends the thread, and removes the mailboxes unless others still hold them; the socket is the caller's again.

        Raises Timeout if the thread does not end in time.
        """
        self._publication.close()
        for entry in self._policies.values():
            entry.mailbox.remove()
        self._policies.clear()


class WeightSubscriber:
    """An actor's (or relay's) end for one policy: knows the newest version and copies it on demand."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        policy: str,
        manifest: Manifest,
        transport: Literal["auto", "memory", "tcp"],
    ) -> None:
        self._policy, self._manifest = policy, manifest
        self._transport = transport
        self._route: Route | None = None
        self._subscription = Subscription(context, policy, manifest.nbytes)
        self._mailbox: SharedSnapshot | None = None
        self._remote = False
        self._pending: tuple[Version, NDArray[np.uint8]] | None = None
        self.newest = NOTHING
        self.torn = 0
        """Reads from the mailbox that the publisher overtook, and snapshots that arrived damaged; none was adopted."""

    @property
    def same_node(self) -> bool | None:
        """Whether the learner's memory can be seen from here; None until its first beacon. A relay's is not its."""
        if self._route is not None and self._route.weights_relay:
            return False
        if self._mailbox is not None:
            return True
        return False if self._remote else None

    @property
    def requests(self) -> int:
        """Snapshots asked for."""
        return self._subscription.requests

    @property
    def repeated(self) -> int:
        """Requests whose answer got lost."""
        return self._subscription.repeated

    @property
    def refused(self) -> int:
        """Messages that were none, and damaged weights."""
        return self._subscription.refusals.total

    @property
    def sockets(self) -> list[zmq.Socket[bytes]]:
        """What to wait on."""
        return self._subscription.sockets

    def route(self, route: Route) -> None:
        """Where the weights come from now: the learner, or a relay on this node."""
        if self._route is None or _source(route) != _source(self._route):
            self.close()
            self._subscription.connect(route.weights, "relay" if route.weights_relay else "learner")
        self._route = route

    def adopt(self, out: NDArray[np.uint8], have: Version) -> Version | None:
        """Copies weights newer than `have` to `out` [nbytes]; None if there are none yet.

        Never waits: where newer ones have to be asked for, a later call finds the answer; where the mailbox is just
        being overwritten, a later call finds it whole.
        """
        if self._mailbox is None:
            self._listen()
        else:
            self._subscription.drain()  # first: a beacon that is thrown away tells of nothing that is not read now
        mailbox = self._mailbox
        if mailbox is None:
            return self._take_pending(out, have)
        if not mailbox.whole:  # until its learner publishes again what is here is as good as any
            fault = SharedMemoryError("shared_memory_truncated", file=mailbox.path)
            self._subscription.refusals.tell("weights_damaged", fault.kind, fault.coded, policy=self._policy)
            return None
        if (there := mailbox.version) <= have:
            return None
        self.newest = max(self.newest, there)
        version = mailbox.read(out, 0)
        self.torn += version is None
        return version

    def wait(
        self, out: NDArray[np.uint8], seconds: float, on_wait: Callable[[], None], have: Version = NOTHING
    ) -> Version | None:
        """Weights newer than `have`, the first ones by default; None when none came in `seconds`."""
        end = time.monotonic() + seconds
        version = self.adopt(out, have)
        while version is None and (left := end - time.monotonic()) > 0:
            on_wait()
            left = min(_LOOK_SECONDS, left)
            if self._mailbox is not None and futex.AVAILABLE:
                self._mailbox.wait(have, left)
            else:
                self._subscription.wait(left)
            version = self.adopt(out, have)
        return version

    def close(self) -> None:
        """Closes socket and mailbox."""
        self._subscription.close()
        if self._mailbox is not None:
            if self._route is not None and self._route.weights_relay:
                self._mailbox.remove()  # a relay that was killed cannot
            else:
                self._mailbox.close()  # never removed here: a learner that restarts continues from it
            self._mailbox = None
        self._remote = False

    def _listen(self) -> None:
        for message, frames in self._subscription.messages():
            if isinstance(message, Weights):
                self._snapshot(message, frames)
            elif isinstance(message, Beacon):
                self._beacon(message)

    def _take_pending(self, out: NDArray[np.uint8], have: Version) -> Version | None:
        version = None
        if self._pending is not None and self._pending[0] > have:
            version, weights = self._pending
            self._pending = None
            out[:] = weights
        if self._remote and self.newest > (version or have) and not self._subscription.asked:
            self._subscription.ask()
        return version

    def _beacon(self, beacon: Beacon) -> None:
        if beacon.manifest != self._manifest.hash or beacon.nbytes != self._manifest.nbytes:
            raise WireError("learner_of_another_network", policy=self._policy)
        self.newest = max(self.newest, Version(beacon.incarnation, beacon.version))
        if self._mailbox is not None or self._remote:
            return
        if self._transport != "tcp" and beacon.mailbox:
            self._attach(beacon)
        if self._mailbox is None and self._transport == "memory":
            raise SharedMemoryError("learner_memory_unreachable", policy=self._policy, key="transport")
        self._remote = self._mailbox is None

    def _attach(self, beacon: Beacon) -> None:
        path = Path(beacon.mailbox)
        if not os.path.exists(path):
            return
        mailbox = SharedSnapshot.attach(path, self._manifest.hash, self._manifest.nbytes)
        if mailbox.nonce >> 1 != beacon.nonce:  # another machine's file of the same name
            mailbox.close()
            return
        self._mailbox = mailbox
        if futex.AVAILABLE:  # the memory itself wakes us
            self._subscription.mute()

    def _snapshot(self, header: Weights, frames: Sequence[zmq.Frame]) -> None:
        if header.manifest != self._manifest.hash or len(frames) != 1:
            raise WireError("learner_of_another_network", policy=self._policy)
        data = np.frombuffer(frames[0].buffer, np.uint8)
        if zlib.crc32(data.data) != header.crc:
            self.torn += 1
            self._subscription.refusals.tell("weights_damaged", "crc", "their CRC is wrong", policy=self._policy)
            return
        version = Version(header.incarnation, header.version)
        self.newest = max(self.newest, version)
        if self._pending is None or version > self._pending[0]:
            self._pending = (version, self._manifest.unpack(data, header.wire))


def _source(route: Route) -> tuple[str, int, int]:
    """What tells one publisher from another; a relay goes on with the learner's next incarnation."""
    return route.weights, route.weights_relay, 0 if route.weights_relay else route.incarnation
