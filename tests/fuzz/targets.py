"""The ends of the wire, alive in this process, that take in whatever they are sent.

In flow: frames. Nothing but a `RookeryError` may come out of an end, and that it takes in the next message as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import zmq

from protocol.control.server import ControlServer
from protocol.errors import RookeryError, WireError
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.validation import read_columns, read_records
from protocol.memory.counters import Counters
from protocol.messages.codec import decode, encode
from protocol.messages.core import Segments
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Entry, Manifest
from protocol.weights.publisher import WeightSubscriber
from protocol.weights.version import Version
from tests.protocol.golden_vectors import LAYOUT, MANIFEST, POLICY, ROUTE, RUN, SECRET, flat_weights, write_ring
from tests.protocol.parts import LEARNER_COUNTERS

__all__ = ["Ends"]

Frames = Sequence[bytes]


class Ends:
    """A receiver of experience, a coordinator's end, a subscriber of weights, and the codec they all use."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as stack:
            self._context = zmq.Context(1)
            stack.callback(self._context.destroy, linger=0)
            self._ports = Ports(self._context, "127.0.0.1", 0)
            stack.callback(self._ports.close)
            addresses = self._ports.bind({0: zmq.ROUTER, 1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB})
            sockets = self._ports.sockets
            self._ring = write_ring(folder / f"rookery-{RUN}-fuzz.1-{POLICY}.ring")
            stack.callback(self._ring.remove)
            self.ring_name = str(self._ring.path)
            self._receiver = ExperienceReceiver(
                sockets[1], sockets[3], RUN, SECRET, 1, Counters(None, LEARNER_COUNTERS)
            )
            stack.callback(self._receiver.close)
            self._receiver.add_policy(POLICY, LAYOUT, ReceiptLog(None), 6)
            self._server = ControlServer(sockets[0])
            self._publisher = sockets[2]
            self._subscriber = self._subscribe(addresses[2])
            stack.callback(lambda: self._subscriber.close())
            self._push = self._to(stack, zmq.PUSH, addresses[1])
            self._worker = self._to(stack, zmq.DEALER, addresses[0])
            self._close = stack.pop_all()
        self.ways: list[Callable[[Frames], None]] = [self.codec, self.learner, self.coordinator, self.actor]

    def close(self) -> None:
        """Closes everything."""
        self._close.close()

    def codec(self, frames: Frames) -> None:
        """What is understood is said again in the same way."""
        try:
            message, rest = decode(frames)
        except WireError as fault:
            if len(str(fault)) > 500:
                raise ValueError(f"no sentence: {fault}") from None
            return
        again, _ = decode([encode(message)])
        assert again == message or "nan" in repr(message)
        if isinstance(message, Segments):
            try:
                read_records(rest[0] if rest else b"", message.count, LAYOUT)
                if message.inline and len(rest) == 1 + len(LAYOUT.fields):
                    read_columns(rest[1:], message.count, LAYOUT)
            except WireError:
                return

    def learner(self, frames: Frames) -> None:
        """Through a PULL socket; what arrives is given back."""
        self._push.send_multipart(frames)
        assert self._ports.sockets[1].poll(60_000)
        self._receiver.receive()
        arrivals = self._receiver.arrivals(POLICY)
        while arrivals:
            arrival = arrivals.popleft()
            assert len(arrival.records)
            if arrival.owned:
                self._receiver.release(POLICY, arrival.records["slot"])

    def coordinator(self, frames: Frames) -> None:
        """Through a ROUTER socket; requests are answered, the rest is refused. Quarantine would spare it the most."""
        self._server._faults.clear()
        self._server._spent.clear()
        self._worker.send_multipart(frames)
        for peer, message in self._server.requests(60_000):
            self._server.answer(peer, message)
        assert self._worker.poll(60_000)
        decode(self._worker.recv_multipart())

    def actor(self, frames: Frames) -> None:
        """Through a SUB socket, under a topic that it subscribed to."""
        self._publisher.send_multipart([f"b/{POLICY}/".encode(), *frames])
        out = flat_weights()
        self._subscriber._remote = False  # so that it looks for the beacon's mailbox again
        self._subscriber._subscription.wait(60)
        try:
            self._subscriber.adopt(out, Version(0, 0))
        except RookeryError:
            return

    def _subscribe(self, address: str) -> WeightSubscriber:
        entries = [Entry("policy_weight", "<f4", (2, 2), 0), Entry("policy_bias", "<f4", (2,), 64)]
        manifest = Manifest([*entries, Entry("returns.mean", "<f8", (), 128)])
        assert manifest.text == MANIFEST
        subscriber = WeightSubscriber(self._context, POLICY, manifest, "auto")
        subscriber.route(ROUTE.model_copy(update={"weights": address}))
        assert self._publisher.poll(60_000)
        self._publisher.recv()
        return subscriber

    def _to(self, stack: ExitStack, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        stack.callback(socket.close, linger=0)
        socket.setsockopt(zmq.SNDTIMEO, 5000)
        socket.connect(address)
        return socket
