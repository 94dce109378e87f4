"""The ends of the wire, alive in this process, that take in whatever they are sent.

In flow: frames. Nothing but a `RookeryError` may come out of an end, and that it takes in the next message as before.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import zmq

from protocol.config.run import EnvironmentConfig
from protocol.control.server import ControlServer
from protocol.errors import RookeryError, WireError
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.proof import ActorIdentity
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.experience.validation import ActionCheck, read_columns, read_records
from protocol.memory.shared_file import Counters
from protocol.messages.codec import decode, encode
from protocol.messages.core import Segments
from protocol.messages.simulator import Hello
from protocol.refusal_log import RefusalLog
from protocol.transport.ports import HTTP
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Entry, Manifest, Version
from protocol.weights.publisher import WeightSubscriber
from tests.fuzz.mutations import GATE, GATES
from tests.protocol.golden_vectors import (
    ACTOR,
    LAYOUT,
    MANIFEST,
    POLICY,
    PROOF,
    ROUTE,
    RUN,
    SECRET,
    WORLD,
    flat_weights,
    write_ring,
)
from tests.protocol.parts import LEARNER_COUNTERS
from workers.environments.registry import make
from workers.environments.simulators.endpoint import SimulatorEndpoint
from workers.environments.simulators.environment import SimulatorEnvironment
from workers.environments.simulators.quarantine import Quarantine
from workers.rollout.report import ActorReport
from workers.runtime.http_server import HttpServer, Response

__all__ = ["Ends"]

Frames = Sequence[bytes]
_ASKED = b"POST /%b HTTP/1.1\r\nHost: localhost\r\nX: %b\r\nContent-Length: 20\r\n\r\n%b"


class Ends:
    """A receiver and a sender of experience, a coordinator's end, a subscriber of weights, an actor's end for
    simulators, a worker's page, and the codec that they use."""

    def __init__(self, folder: Path) -> None:
        with ExitStack() as stack:
            self._context = zmq.Context(1)
            stack.callback(self._context.destroy, linger=0)
            self._ports = Ports(self._context, "127.0.0.1", 0)
            stack.callback(self._ports.close)
            kinds: dict[int, int] = {0: zmq.ROUTER, 1: zmq.PULL, 2: zmq.XPUB, 3: zmq.XPUB, 4: zmq.XPUB}
            addresses = self._ports.bind(kinds, http=True)
            sockets = self._ports.sockets
            self._ring = write_ring(folder / f"rookery-{RUN}-fuzz.1-{POLICY}.ring")
            stack.callback(self._ring.remove)
            self.ring_name = str(self._ring.path)
            self._receiver = ExperienceReceiver(
                sockets[1], sockets[3], RUN, SECRET, 1, Counters(None, LEARNER_COUNTERS)
            )
            stack.callback(self._receiver.close)
            self._receiver.add_policy(POLICY, LAYOUT, ReceiptLog(None), 6, ActionCheck(WORLD.places[0]))
            self._receiver.add_policy("gate", GATE, ReceiptLog(None), 6, ActionCheck(GATES.places[0]))
            self._server = ControlServer(sockets[0])
            self._publisher = sockets[2]
            self._subscriber = self._subscribe(addresses[2])
            stack.callback(lambda: self._subscriber.close())
            self._push = self._to(stack, zmq.PUSH, addresses[1])
            self._worker = self._to(stack, zmq.DEALER, addresses[0])
            ring = Ring.create(None, LAYOUT, 12)
            counters = Counters(None, *ActorReport.names([POLICY]))
            credit = CreditWindow(6, 5, 1, "stream", "block")
            me = ActorIdentity(RUN, ACTOR, 1, PROOF)
            self._sender = ExperienceSender(ConnectionPool(self._context), me, POLICY, ring, credit, counters)
            stack.callback(self._sender.close)
            nowhere = {"experience": "tcp://127.0.0.1:1", "acknowledgements": addresses[4]}
            self._sender.route(ROUTE.model_copy(update=nowhere), inline=True)
            assert sockets[4].poll(60_000)
            sockets[4].recv()
            outside = SimulatorEndpoint(self._context, "127.0.0.1", 0, "", RUN, ACTOR, 0, None)
            settings = {"world": WORLD.model_dump(mode="json")}
            external = make(EnvironmentConfig(id="external", copies=2, settings=settings), outside=outside)
            assert isinstance(external, SimulatorEnvironment)
            stack.callback(external.close)
            self._external = external
            self._simulator = self._to(stack, zmq.DEALER, external.address)
            self._refusals, (_, self._page) = RefusalLog(), addresses[HTTP].split("//")
            assert self._ports.http is not None
            routes = {("POST", "/"): lambda request: Response(request.body)}
            stack.callback(HttpServer(self._ports.http, routes, self._refusals).close)
            self._close = stack.pop_all()
        self.ways: list[Callable[[Frames], None]] = [
            *(self.codec, self.learner, self.coordinator, self.actor),
            *(self.sender, self.simulators, self.page),
        ]

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
        assert not self._receiver.arrivals("gate"), "an action that its mask forbids was taken"
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

    def sender(self, frames: Frames) -> None:
        """Through a SUB socket, as acknowledgements."""
        acks = self._sender._acks
        assert acks is not None
        if max(map(len, frames)) > int(acks.getsockopt(zmq.MAXMSGSIZE)):
            return  # which costs the connection before it is read
        self._ports.sockets[4].send_multipart([f"a/{POLICY}/{ACTOR}/1/".encode(), *frames])
        assert acks.poll(60_000)
        self._sender._receive_acks(0)

    def simulators(self, frames: Frames) -> None:
        """Through a ROUTER socket of an actor, from one that was let in. Quarantine would spare it the most."""
        server, validator = self._external._server, self._external._validator
        assert server is not None
        server._quarantine = Quarantine(server._clock)
        if max(map(len, frames)) > server._terms.admit.largest:
            return  # which costs the connection before it is read
        for said in ([encode(Hello(name="robot-1", token="t"))], frames):
            self._simulator.send_multipart(said)
            while not server.receive(60_000):
                pass
        for guest in [*server.guests.values()]:
            for fault in validator.listen(guest):
                server.report_fault(guest, fault)
        validator.take()
        validator.requests.clear()
        while self._simulator.poll(0):
            decode(self._simulator.recv_multipart())

    def page(self, frames: Frames) -> None:
        """In the path, a header or the body of what is asked over HTTP; no answer fails."""
        parts = [b"", b"", bytes(20)]
        parts[len(frames[0]) % 3] = frames[0]
        host, port = self._page.rsplit(":", 1)
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=60) as asking:
            asking.sendall(_ASKED % tuple(parts))
            asking.shutdown(socket.SHUT_WR)
            while asking.recv(1 << 16):
                pass
        failed = [name for name in self._refusals.counters() if "http_failed" in name]
        assert not failed, failed

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
