"""What an actor's earlier incarnation finished: sent by its successor, once and in order, or left where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq
from zmq.utils.garbage import gc as garbage_collector

from protocol.experience import ack_publisher, sender
from protocol.experience.recovery import resend_predecessor, rings_before
from protocol.memory.shared_file import files
from protocol.messages.core import Route
from tests.protocol.parts import BLOCK, LAYOUT, POLICY, Actor, Learner, closing, identity, sender_counters

RING = "rookery-run1-actor-0.1-gem.ring"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost messages are missed sooner, so that the tests are short."""
    monkeypatch.setattr(sender, "_RESEND_AFTER", 0.3)
    monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 0.1)


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    """The successor's."""
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    yield made
    made.destroy(linger=0)
    garbage_collector.stop()


def _leave(memory_dir: Path, blocks: int) -> None:
    """Incarnation 1 dies with so many blocks that no learner ever heard of."""
    actor = Actor(memory_dir / RING, blocks=6, credits=1, flow="drop_oldest")
    actor.write(blocks)
    actor.ring.close()
    actor.context.destroy(linger=0)


def _deliver(
    context: zmq.Context[zmq.Socket[bytes]], route: Route, seconds: float, on_wait: Callable[[], object]
) -> int:
    """As incarnation 2."""

    def waiting() -> None:
        on_wait()

    return resend_predecessor(
        context, identity(incarnation=2), route, LAYOUT, BLOCK, sender_counters(), seconds, waiting
    )


def test_all_that_was_finished_is_delivered_and_its_memory_goes(
    memory_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """G2, B11."""
    learner = Learner()
    _leave(memory_dir, 3)
    with closing(learner):
        assert _deliver(context, learner.route, 10, learner.use) == 3 * BLOCK
        assert learner.got == [("actor-0", 1, number) for number in range(1, 7)]
        assert learner.wrong == 0
        assert list(files()) == []


@pytest.mark.parametrize("answers", [False, True])
def test_what_no_learner_takes_stays_for_the_next_incarnation(
    memory_dir: Path, context: zmq.Context[zmq.Socket[bytes]], answers: bool
) -> None:
    """G2: a learner that is away, or that says what it has and takes nothing; the next one gets everything."""
    learner, later = Learner(), Learner()
    _leave(memory_dir, 2)
    with closing(learner, later):
        acks = learner.receiver._acks.subscriptions if answers else (lambda: None)
        assert _deliver(context, learner.route, 0.5, acks) == 0
        assert [path.name for path in files()] == [RING]
        assert _deliver(context, later.route, 10, later.use) == 2 * BLOCK
        assert later.got == [("actor-0", 1, number) for number in range(1, 5)]
        assert rings_before(identity(incarnation=2), POLICY) == []


def test_what_overtakes_a_lost_message_is_not_taken_before_it(
    memory_dir: Path, context: zmq.Context[zmq.Socket[bytes]]
) -> None:
    """G2: the first message is lost with its connection; the second one does not make it look settled."""
    learner = Learner()
    _leave(memory_dir, 3)
    lost: list[object] = []

    def use() -> None:
        if lost:
            learner.use()
            return
        learner.receiver._acks.subscriptions()
        if learner.ports.sockets[1].poll(0):
            lost.append(learner.ports.sockets[1].recv_multipart())

    with closing(learner):
        assert _deliver(context, learner.route, 10, use) == 3 * BLOCK
        assert learner.got == [("actor-0", 1, number) for number in range(1, 7)]
        assert learner.counters["out_of_order"] > 0
