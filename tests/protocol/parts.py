"""What several tests of the protocol need: a small layout, self-describing segments, real processes, both ends."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import zmq
from zmq.utils.garbage import gc as garbage_collector

from protocol.experience.ack_publisher import Window
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.layout import Field, Layout
from protocol.experience.proof import ActorIdentity, proof_of
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import Arrival, ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import Counters
from protocol.messages.core import Route
from protocol.transport.byte_guard import experience_limits
from protocol.transport.sockets import SUBSCRIPTIONS, Ports
from tests.tools import ROOT

LAYOUT = Layout(
    (
        Field("observation", "<f4", (3,)),
        Field("action", "<i8"),
        Field("reward", "<f4"),
        Field("terminated", "|b1"),
        Field("final_row", "<i4", (2,), "slot"),
    ),
    length=4,
    before=1,
)
BLOCK = 2
"""Segments of a message."""
RUN, POLICY, SECRET = "run1", "gem", "0123456789abcdef"
LEARNER_COUNTERS = [
    "quarantined_messages",
    "repeated_headers",
    "out_of_order",
    "recovered",
    "invalid_subscriptions",
    "acks_full",
    f"waiting_for_room.{POLICY}",
]


def identity(actor: str = "actor-0", incarnation: int = 1) -> ActorIdentity:
    """As the coordinator would welcome it."""
    return ActorIdentity(RUN, actor, incarnation, proof_of(SECRET, RUN, actor, incarnation))


def a_route(**changes: Any) -> Route:
    """To a learner of POLICY, which is nowhere but where `changes` say."""
    ways = dict.fromkeys(("experience", "weights", "acknowledgements"), "tcp://127.0.0.1:1")
    return Route(**{"policy": POLICY, "learner": "learner-gem", "incarnation": 1, **ways, **changes})


@contextmanager
def python(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `code` with `arguments` in sys.argv[1:]; killed at the end if it still lives."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(60)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()


class Clock:
    """In place of a module's `time`: it goes on when somebody sleeps by it, or is told to."""

    now = 1_000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def line(process: subprocess.Popen[str]) -> str:
    """The next line that the process says."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def content(layout: Layout, number: int) -> dict[str, np.ndarray]:
    """What segment `number` holds: a pure function of its number."""
    rng = np.random.default_rng(number)
    columns: dict[str, np.ndarray] = {}
    for field in layout.fields:
        shape = layout.shape(field, 1)[1:]
        if field.name == "final_row":
            columns[field.name] = rng.integers(-1, layout.length, shape).astype(field.dtype)
        else:
            columns[field.name] = rng.integers(0, 2 if field.dtype == "|b1" else 100, shape).astype(field.dtype)
    return columns


def write(sender: ExperienceSender, number: int, on_wait: Callable[[], None] = lambda: None) -> None:
    """One block, whose first segment gets `number`."""
    slots = sender.take(on_wait)
    for offset in range(slots.stop - slots.start):
        for name, value in content(sender.ring.layout, number + offset).items():
            sender.ring.columns[name][slots.start + offset] = value
    sender.ring.table["stream"][slots] = np.arange(slots.stop - slots.start)
    sender.finish(slots, sender.ring.layout.length, min(1, sender.ring.layout.before))


def right(arrival: Arrival) -> bool:
    """Whether every announced segment holds what its number says."""
    ring = arrival.ring
    return all(
        np.array_equal(ring.columns[name][record["slot"]], value)
        for record in arrival.records
        for name, value in content(ring.layout, int(record["number"])).items()
    )


def sender_counters(path: Path | None = None, policies: Sequence[str] = (POLICY,)) -> Counters:
    """The counters that senders keep."""
    kinds = ("produced", "resent", "refused_messages", "backlog", "flight", "dropped.overwritten", "dropped.no_credit")
    names = [f"{kind}.{policy}" for kind in kinds for policy in policies]
    waits = [f"waits.{kind}.{policy}" for kind in ("credit", "drain") for policy in policies]
    return Counters(path, ["push_full", "refused_acks", *names], waits)


class Actor:
    """A sender with its own context."""

    def __init__(
        self,
        path: Path | None,
        name: str = "actor-0",
        incarnation: int = 1,
        blocks: int = 6,
        credits: int = 3,
        flow: str = "block",
        layout: Layout = LAYOUT,
    ) -> None:
        self.context = zmq.Context(1)
        self.ring = Ring.create(path, layout, blocks * BLOCK)
        credit = CreditWindow(blocks, credits, 1, "stream", flow)  # type: ignore[arg-type]
        self.counters = sender_counters()
        connections = ConnectionPool(self.context)
        self.sender = ExperienceSender(
            connections, identity(name, incarnation), POLICY, self.ring, credit, self.counters
        )
        self.written = 0

    def write(self, blocks: int = 1) -> None:
        """Writes blocks; while one waits for credit nothing else happens, so the caller sees to it that none does."""
        for _ in range(blocks):
            write(self.sender, self.written + 1, self._refuse)
            self.written += BLOCK

    def _refuse(self) -> None:
        raise AssertionError("had to wait for credit")

    def close(self) -> None:
        self.sender.close()
        self.ring.remove()
        self.context.destroy(linger=0)
        garbage_collector.stop()  # pyzmq's, which it starts for frames that are sent without a copy


class Learner:
    """A receiver with its own context and sockets, at ports that may be given; it settles whatever arrives."""

    def __init__(
        self,
        ledger: Path | None = None,
        incarnation: int = 1,
        base: int = 0,
        pool: int = 12,
        layout: Layout = LAYOUT,
        check: ActionCheck | None = None,
        window: Window = Window(),  # noqa: B008 - frozen
    ) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", base)
        limits = {1: experience_limits(layout.offsets(pool)[1]), 3: SUBSCRIPTIONS}
        self.addresses = self.ports.bind({1: zmq.PULL, 3: zmq.XPUB}, bytes_waiting=limits)
        self.counters = Counters(None, LEARNER_COUNTERS)
        self.incarnation = incarnation
        self.receiver = ExperienceReceiver(
            self.ports.sockets[1],
            self.ports.sockets[3],
            RUN,
            SECRET,
            incarnation,
            self.counters,
            guard=self.ports.guard,
        )
        self.receiver.add_policy(POLICY, layout, ReceiptLog(ledger), pool, check, window)
        self.got: list[tuple[str, int, int]] = []
        self.columns: dict[int, dict[str, np.ndarray]] = {}
        self.wrong = 0

    @property
    def route(self) -> Route:
        ways = {"experience": self.addresses[1], "acknowledgements": self.addresses[3]}
        return a_route(incarnation=self.incarnation, **ways)

    def listen(self) -> bool:
        """Takes in what is there, and says the second's beacon; False, so that `until` goes on."""
        self.receiver.receive()
        self.receiver.beacon(time.monotonic())
        return False

    def uses(self, count: int) -> bool:
        """Uses what is there; whether it has got `count` segments by now."""
        self.use()
        return len(self.got) >= count

    def use(self) -> int:
        """Copies, checks and settles everything that arrived; how many segments these were."""
        self.listen()
        used = 0
        arrivals = self.receiver.arrivals(POLICY)
        while arrivals:
            arrival = arrivals.popleft()
            self.wrong += not right(arrival)
            for record in arrival.records:
                self.got.append((arrival.actor, arrival.incarnation, int(record["number"])))
                columns = arrival.ring.columns
                self.columns[int(record["number"])] = {n: c[record["slot"]].copy() for n, c in columns.items()}
            assert arrival.ring.intact(arrival.records).all()
            used += len(arrival.records)
            if arrival.owned:
                self.receiver.release(POLICY, arrival.records["slot"])
            self.receiver.acknowledge(POLICY, arrival, int(arrival.records["number"][-1]), len(arrival.records))
        return used

    def close(self) -> None:
        self.receiver.close()
        self.ports.close()
        self.context.destroy(linger=0)


@contextmanager
def closing(*things: Actor | Learner) -> Iterator[None]:
    """Closes them all, whatever happens."""
    try:
        yield
    finally:
        for thing in things:
            thing.close()
