"""What peers may have waiting at a bound socket has a bound in bytes; those who keep to their credit never meet it."""

from __future__ import annotations

import psutil

from protocol.transport.byte_guard import experience_limits
from protocol.transport.sockets import poll
from tests.chaos.attacks import Peer
from tests.protocol.parts import LAYOUT, Learner, closing, line, python
from tests.waiting import until

LEARNER = """
from protocol.transport.sockets import poll
from tests.protocol.parts import Learner
learner = Learner()
print(learner.addresses[1], learner.addresses[3], flush=True)
while True:
    learner.use()
    poll(learner.receiver.sockets, 10)
"""
UNFINISHED, TOPICS = 300 * 2**20, 200_000
PART = bytes(2**16)


def resident(process: psutil.Process) -> float:
    """MiB."""
    return float(process.memory_info().rss / 2**20)


def subscriptions(first: int, count: int) -> bytes:
    """To topics of their own, as ZMTP frames."""
    events = [b"\1a/gem/actor-%d/1/" % number for number in range(first, first + count)]
    return b"".join(b"\0" + bytes([len(event)]) + event for event in events)


def test_neither_unfinished_messages_nor_ever_new_topics_fill_memory() -> None:
    with python(LEARNER) as process:
        experience, acks = line(process).split()
        learner = psutil.Process(process.pid)
        before, most = resident(learner), 0.0
        peer = Peer(experience, "PUSH")
        for at in range(UNFINISHED // len(PART)):
            peer.send(PART, more=True)
            most = max(most, resident(learner)) if at % 100 == 0 else most
        peer.close()
        peer = Peer(acks, "SUB")
        for first in range(0, TOPICS, 1000):
            peer.raw(subscriptions(first, 1000))
            most = max(most, resident(learner))
        until(lambda: resident(learner) < before + 60, what="memory is given back")
        peer.close()
        assert most < before + 250


def test_whole_messages_that_are_read_are_never_counted_however_many_there_are() -> None:
    learner = Learner()
    with closing(learner):
        peer, sent = Peer(learner.addresses[1], "PUSH"), 0
        _, limit = experience_limits(LAYOUT.offsets(12)[1])
        while sent < 3 * limit:
            for size in (0, 1, 255, 256, 2**16):
                peer.send(PART[:size], PART[:size])
                sent += 2 * size
            learner.receiver.receive()
        until(lambda: learner.receiver.receive() or not poll([learner.ports.sockets[1]], 1000))
        peer.send(PART, more=True)
        peer.send(b"")
        refused = learner.counters["quarantined_messages"]
        until(lambda: learner.receiver.receive() or learner.counters["quarantined_messages"] > refused)
        assert not learner.ports.guard.cut
        peer.close()
