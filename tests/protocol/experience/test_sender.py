"""Experience from actor to learner: nothing lost silently, nothing twice, nothing believed unchecked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from protocol.errors import WireError
from protocol.experience import ack_publisher, receiver, sender
from protocol.experience.ack_publisher import ack_topic
from protocol.experience.flow_control import Block
from protocol.experience.layout import Field, Layout
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.ring_buffer import FINISHED, FREE, RECORD, WRITING, Ring
from protocol.experience.validation import ActionCheck
from protocol.memory.shared_file import files
from protocol.messages.codec import encode
from protocol.messages.core import Ack, Refusal, Segments
from protocol.spaces import Agent, Box, Discrete, World
from protocol.transport.byte_guard import ByteGuard
from protocol.transport.sockets import connect
from tests.faults import kinds_in
from tests.protocol.parts import (
    BLOCK,
    LAYOUT,
    LEARNER_COUNTERS,
    POLICY,
    RUN,
    Actor,
    Clock,
    Learner,
    closing,
    content,
    identity,
    line,
    python,
    write,
)
from tests.waiting import until

PATHS = pytest.mark.parametrize("inline", [False, True], ids=["memory", "inline"])
RING = "rookery-run1-actor-0.1-gem.ring"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost headers are missed sooner, so that the tests are short."""
    monkeypatch.setattr(sender, "_RESEND_AFTER", 0.3)


@pytest.fixture
def quick_beacons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beacons at every call."""
    monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 0.0)


def _numbers(learner: Learner, actor: str = "actor-0", incarnation: int = 1) -> list[int]:
    return [number for name, inc, number in learner.got if (name, inc) == (actor, incarnation)]


def _counted(learner: Learner) -> float:
    """All that its counters say."""
    return sum(learner.counters.snapshot().values())


def _waiting(learner: Learner) -> int:
    """Segments received and not settled."""
    return sum(len(arrival.records) for arrival in learner.receiver.arrivals(POLICY))


def _deliver(learner: Learner, *actors: Actor) -> None:
    """Runs both ends until everything finished is settled."""

    def step() -> bool:
        learner.use()
        for actor in actors:
            actor.sender.pump()
        return all(actor.sender._credit.idle for actor in actors)

    until(step)


@PATHS
def test_segments_arrive_whole_in_order_and_once_Z5(memory_dir: Path, inline: bool) -> None:
    """Z5: by memory and by TCP the same bytes, which follow from a segment's number."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        for _ in range(20):
            actor.write()
            _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, 41))
        assert learner.wrong == 0
        assert actor.counters[f"produced.{POLICY}"] == 40
        assert actor.counters[f"flight.{POLICY}"] == actor.counters[f"resent.{POLICY}"] == 0
        assert learner.counters.snapshot() == dict.fromkeys(LEARNER_COUNTERS, 0)


def test_A8_on_one_node_only_headers_travel(memory_dir: Path) -> None:
    """A8: the memory path sends a header and records, however large segments are."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        actor.write()
        frames = _raw(learner)
        assert len(frames) == 2
        assert len(frames[1]) == BLOCK * RECORD.itemsize


def _raw(learner: Learner) -> list[bytes]:
    """Takes the next message from under the receiver."""
    pull = learner.ports.sockets[1]
    assert pull.poll(60_000)
    return pull.recv_multipart()


@pytest.mark.usefixtures("quick_beacons")
def test_an_exhausted_pool_parks_what_arrives_and_recovers(memory_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The learner is busy for long: nothing is lost, nothing sent again meanwhile, no queue grows."""
    clock = Clock()
    monkeypatch.setattr(sender, "time", clock)
    actors = [Actor(None, f"actor-{i}") for i in range(2)]
    learner = Learner(pool=2 * BLOCK)
    with closing(*actors, learner):
        for actor in actors:
            actor.sender.route(learner.route, inline=True)
            actor.write(3)
        intake = learner.receiver._intakes[POLICY]
        until(lambda: learner.listen() or len(intake.waiting_for_room) == 4)
        for _ in range(100):  # four times as long as a lost header is waited for
            clock.now += 0.1
            for actor in actors:
                acks = actor.sender._acks
                assert acks is not None
                until(lambda: learner.listen() or acks.poll(0))  # noqa: B023
                actor.sender.pump()
        assert sum(len(arrival.records) for arrival in learner.receiver.arrivals(POLICY)) == 2 * BLOCK
        assert len(intake.waiting_for_room) == 4
        assert learner.counters[f"waiting_for_room.{POLICY}"] == 4 * BLOCK
        assert [actor.counters[f"resent.{POLICY}"] for actor in actors] == [0, 0]
        _deliver(learner, *actors)
        for i in range(2):
            assert _numbers(learner, f"actor-{i}") == list(range(1, 7))
        assert learner.wrong == 0
        assert not intake.waiting_for_room
        assert intake.pool.free == 2 * BLOCK


@PATHS
def test_repeated_headers_are_dropped_and_counted(
    memory_dir: Path, inline: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_vain = list[zmq.Frame]()
    monkeypatch.setattr(ByteGuard, "in_vain", lambda _, frame: in_vain.append(frame))
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        actor.write(2)
        for block in actor.sender._credit.flight:
            actor.sender._send([(block, block)], resent=True)
        until(lambda: learner.listen() or learner.counters["repeated_headers"] == 2 * BLOCK)
        _deliver(learner, actor)
        for again in ((0, 1, 2), (1, 3, 4)):  # also what is settled already
            actor.sender._send([(Block(*again), Block(*again))], resent=True)
        until(lambda: learner.listen() or learner.counters["repeated_headers"] == 4 * BLOCK)
        assert learner.use() == 0
        assert _numbers(learner) == [1, 2, 3, 4]
        assert learner.counters["quarantined_messages"] == 0
        assert len(in_vain) == (4 if inline else 0)


@PATHS
def test_a_new_learner_incarnation_gets_the_unsettled_again_and_nothing_twice(
    memory_dir: Path, tmp_path: Path, inline: bool
) -> None:
    actor, first = Actor(memory_dir / RING), Learner(tmp_path / "ledger")
    with closing(actor):
        with closing(first):
            actor.sender.route(first.route, inline)
            actor.write(2)
            _deliver(first, actor)
            actor.write(3)
            until(lambda: first.listen() or _waiting(first) == 3 * BLOCK)  # received, not settled
            with pytest.raises(AssertionError, match="wait for credit"):
                actor.write(2)
        second = Learner(tmp_path / "ledger", incarnation=2)
        with closing(second):
            actor.sender.route(second.route, inline)
            assert actor.counters[f"resent.{POLICY}"] == 3 * BLOCK  # at once, not when somebody misses them
            _deliver(second, actor)
            actor.write(1)
            _deliver(second, actor)
            assert _numbers(first) == [1, 2, 3, 4]
            assert _numbers(second) == list(range(5, 15))
            assert first.wrong + second.wrong == 0
            assert actor.counters[f"resent.{POLICY}"] == 3 * BLOCK
    assert ReceiptLog(tmp_path / "ledger").entries() == {("actor-0", 1): 14}
    assert ReceiptLog(tmp_path / "ledger").counts() == {("actor-0", 1): 14}


def test_settled_but_unanswered_segments_are_not_received_again_by_the_next_learner(
    memory_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learner dies between its ledger and the acknowledgement."""
    actor, first = Actor(memory_dir / RING), Learner(tmp_path / "ledger")
    with closing(actor):
        with closing(first), monkeypatch.context() as patch:
            patch.setattr(first.receiver._acks, "send", lambda *_: None)
            actor.sender.route(first.route, inline=False)
            actor.write(2)
            until(lambda: first.uses(4))
        second = Learner(tmp_path / "ledger", incarnation=2)
        with closing(second):
            actor.sender.route(second.route, inline=False)
            _deliver(second, actor)
            assert second.got == []
            actor.write(1)
            _deliver(second, actor)
            assert _numbers(second) == [5, 6]


@pytest.mark.usefixtures("quick_beacons")
def test_a_lost_acknowledgement_is_made_good_by_the_beacon(memory_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        with monkeypatch.context() as patch:
            patch.setattr(learner.receiver._acks, "send", lambda *_: None)
            actor.write(3)
            until(lambda: learner.uses(6))
            actor.sender.pump()
            assert not actor.sender._credit.idle
        _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, 7))
        assert actor.counters[f"resent.{POLICY}"] == 0


@pytest.mark.usefixtures("quick_beacons")
@pytest.mark.parametrize(("inline", "lost"), [(False, 0), (True, 1)])
def test_a_lost_header_is_announced_again(memory_dir: Path, inline: bool, lost: int) -> None:
    """Also the very first one, when the learner has never heard of this actor."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline)
        actor.write(lost)
        if lost:
            _deliver(learner, actor)
        actor.write(1)
        _raw(learner)
        _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, BLOCK * (lost + 1) + 1))
        assert actor.counters[f"resent.{POLICY}"] == BLOCK


@pytest.mark.usefixtures("quick_beacons")
def test_what_overtook_a_lost_header_is_not_taken_before_it(memory_dir: Path) -> None:
    """As after a cut, when what the kernel held is lost and what the queue held arrives: nothing is skipped."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=True)
        actor.write(1)
        _deliver(learner, actor)
        actor.write(3)
        _raw(learner)
        until(lambda: learner.listen() or learner.counters["out_of_order"] == 2 * BLOCK)
        assert learner.use() == 0
        _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, 4 * BLOCK + 1))
        assert actor.counters[f"resent.{POLICY}"] == 3 * BLOCK
        assert learner.wrong == 0


def test_a_learner_without_a_ledger_goes_on_where_the_actor_is(memory_dir: Path) -> None:
    """What came before was settled by another, which this one cannot know."""
    actor, first = Actor(memory_dir / RING), Learner()
    with closing(actor):
        with closing(first):
            actor.sender.route(first.route, inline=False)
            actor.write(2)
            _deliver(first, actor)
            actor.write(2)
        second = Learner(incarnation=2)
        with closing(second):
            actor.sender.route(second.route, inline=False)
            _deliver(second, actor)
            assert _numbers(second) == [5, 6, 7, 8]
            assert second.counters["out_of_order"] == 0


@pytest.mark.usefixtures("quick_beacons")
def test_announcing_again_fills_no_queue_and_gives_a_slow_network_time(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Acknowledgements come and nothing arrives: each time the actor waits twice as long, and its queue holds what is
    in flight, once."""
    clock = Clock()
    monkeypatch.setattr(sender, "time", clock)
    monkeypatch.setattr(sender, "_RESEND_AFTER", 0.05)
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        route = learner.route.model_copy(update={"experience": "tcp://127.0.0.1:1"})  # nobody is there
        actor.sender.route(route, inline=False)
        actor.write(3)
        times, acks = [clock.now], actor.sender._acks
        assert acks is not None
        for _ in range(100):
            clock.now += 0.01
            until(lambda: learner.listen() or acks.poll(0), what="an acknowledgement")
            before = actor.counters[f"resent.{POLICY}"]
            actor.sender.pump()
            if actor.counters[f"resent.{POLICY}"] > before:
                times.append(clock.now)
        assert np.diff(times) == pytest.approx([0.05, 0.1, 0.2, 0.4], abs=0.011)
        assert actor.counters[f"resent.{POLICY}"] == 3 * BLOCK * 4
        assert actor.sender._outlet is not None
        actor.sender._outlet._address = learner.route.experience
        learner.got.clear()
        clock.now += 1.0
        _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, 3 * BLOCK + 1))
        assert learner.counters["repeated_headers"] == 0


@pytest.mark.usefixtures("quick_beacons")
def test_a_receiver_that_was_away_and_came_back_gets_everything_once(
    memory_dir: Path, tmp_path: Path, free_port_block: int
) -> None:
    """At the same address, and the actor is told nothing."""
    actor, first = Actor(memory_dir / RING), Learner(tmp_path / "ledger", base=free_port_block)
    with closing(actor):
        with closing(first):
            actor.sender.route(first.route, inline=True)
            actor.write(2)
            _deliver(first, actor)
        actor.write(2)  # into the void
        time.sleep(0.2)
        second = Learner(tmp_path / "ledger", base=free_port_block)
        with closing(second):
            _deliver(second, actor)
            actor.write(2)
            _deliver(second, actor)
            assert _numbers(first) == [1, 2, 3, 4]
            assert _numbers(second) == list(range(5, 13))
            assert second.wrong == 0


def test_the_same_actor_name_in_its_next_incarnation_begins_anew(memory_dir: Path) -> None:
    first, second = Actor(memory_dir / RING), Actor(memory_dir / RING.replace(".1", ".2"), incarnation=2)
    learner = Learner()
    with closing(first, second, learner):
        for actor in (first, second):
            actor.sender.route(learner.route, inline=False)
            actor.write()
            _deliver(learner, actor)
        assert learner.got == [("actor-0", 1, 1), ("actor-0", 1, 2), ("actor-0", 2, 1), ("actor-0", 2, 2)]


KILLED = """
import sys
from pathlib import Path
from protocol.messages.core import Route
from protocol.spaces import Agent, Box, Discrete, World
from tests.protocol.parts import Actor
actor = Actor(Path(sys.argv[1]), blocks=6, credits=1, flow="drop_oldest")
actor.sender.route(Route.model_validate_json(sys.argv[2]), inline=False)
actor.write(3)                       # one is announced, two wait for credit
actor.sender.take(lambda: None)      # one is begun
print("ready", flush=True)
sys.stdin.readline()
"""


def test_G2_finished_segments_of_a_killed_actor_are_taken_from_its_ring(memory_dir: Path) -> None:
    """G2: only what it had not finished is lost; and its memory goes when it is no longer needed (B11)."""
    learner = Learner()
    with closing(learner):
        with python(KILLED, memory_dir / RING, learner.route.model_dump_json()) as process:
            assert line(process) == "ready"
            until(lambda: learner.listen() or learner.receiver.arrivals(POLICY))
            learner.receiver.living({("actor-0", 1)})
            process.kill()
            process.wait(60)
        assert sum(len(arrival.records) for arrival in learner.receiver.arrivals(POLICY)) == BLOCK
        table = learner.receiver._intakes[POLICY].rings["actor-0", 1].table
        begun = np.flatnonzero(table["state"] == WRITING)
        assert len(begun) == BLOCK
        table["state"][begun], table["number"][begun] = FINISHED, [7, 8]  # its death came between two stores
        table["slot"] = 4_000_000  # nobody reads where a slot believes itself to be
        learner.receiver.living(set())
        learner.use()
        assert _numbers(learner) == [1, 2, 3, 4, 5, 6]
        assert learner.wrong == 0
        assert learner.counters["recovered"] == 2 * BLOCK
        learner.receiver.living({("actor-1", 1)})
        learner.receiver.living(set())
        assert learner.use() == 0
        assert ("actor-0", 1) not in learner.receiver._roll
        assert [path.name for path in files()] == [RING]
        learner.receiver.forget(POLICY, "actor-0", 1)
        assert list(files()) == []


@PATHS
def test_an_actor_that_was_taken_for_dead_goes_on_behind_what_was_read_in_its_memory(
    memory_dir: Path, inline: bool
) -> None:
    """Its network was cut: the learner has read what it had finished and not announced, and acknowledges that."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=inline)
        until(lambda: learner.listen() or learner.receiver._acks.listeners.get(POLICY))
        actor.write(4)  # one more than its credit
        until(
            lambda: learner.listen() or sum(len(one.records) for one in learner.receiver.arrivals(POLICY)) == 3 * BLOCK
        )
        for living in ({("actor-0", 1)}, set[tuple[str, int]](), {("actor-0", 1)}):
            learner.receiver.living(living)
        learner.use()
        assert learner.counters["recovered"] == BLOCK
        _deliver(learner, actor)
        actor.write(2)
        _deliver(learner, actor)
        assert _numbers(learner) == [*range(1, 6 * BLOCK + 1)]
        assert actor.counters["refused_acks"] == learner.counters["quarantined_messages"] == 0


def test_what_a_dead_actor_left_is_checked_like_everything_else(memory_dir: Path) -> None:
    agent = Agent(name="a", observation=Box(shape=(1,)), action=Discrete(n=100))
    actor = Actor(memory_dir / RING, credits=1, flow="drop_oldest")
    learner = Learner(check=ActionCheck(World(id="w", agents=(agent,)).places[0]))
    with closing(actor, learner):
        actor.write(3)
        actor.ring.columns["action"][np.flatnonzero(actor.ring.table["number"] == 4)] = 60_000
        for _ in range(2):
            learner.receiver.living(set())
        assert learner.use() == 0
        assert learner.counters["recovered"] == 0
        assert learner.counters["quarantined_messages"] == 1


@PATHS
def test_slots_without_a_row_are_no_segments_and_a_block_of_them_is_free_again(memory_dir: Path, inline: bool) -> None:
    learner, actor = Learner(), Actor(memory_dir / RING)
    with closing(learner, actor):
        actor.sender.route(learner.route, inline)
        table = actor.ring.table
        for name, value in content(LAYOUT, 1).items():
            actor.ring.columns[name][:] = value
        for valid in (np.zeros(BLOCK, np.int64), 0):
            slots = actor.sender.take(lambda: None)
            assert (table["state"][slots] == WRITING).all()
            actor.sender.finish(slots, valid, 0)
            assert (table["state"] == FREE).all()
        for valid in (np.array([0, 3]), np.array([2, 0])):
            slots = actor.sender.take(lambda: None)
            actor.sender.finish(slots, valid, 0)
            assert (table["state"][slots] == np.where(valid > 0, FINISHED, FREE)).all()
        actor.write()
        _deliver(learner, actor)
        assert _numbers(learner) == [1, 2, 3, 4]


def test_no_credit_makes_a_blocking_actor_wait_audibly_and_interruptibly(memory_dir: Path) -> None:
    actor = Actor(memory_dir / RING)
    with closing(actor):
        with pytest.raises(AssertionError, match="wait for credit"):
            actor.write(5)  # no learner is known: all is kept, then it waits
        assert actor.counters[f"waits.credit.{POLICY}"] > 0.03
        assert actor.counters[f"backlog.{POLICY}"] == BLOCK
        assert actor.sender.drain(0.1, lambda: None) is False
        assert actor.counters[f"waits.drain.{POLICY}"] > 0.09


@pytest.mark.parametrize(("flow", "inline"), [("drop_oldest", True), ("drop_newest", False)])
def test_Z2_Z3_a_dropping_actor_never_waits_for_a_learner_that_is_away(
    memory_dir: Path, free_port_block: int, flow: str, inline: bool
) -> None:
    """Z2, Z3, J4: every dropped segment is counted, and what was kept arrives later, unharmed: nothing that travels is
    overwritten, though it is sent from where it lies."""
    actor = Actor(memory_dir / RING, blocks=6, credits=2, flow=flow)
    learner = Learner(base=free_port_block)
    route = learner.route
    learner.close()
    with closing(actor):
        actor.sender.route(route, inline)
        actor.write(30)  # fails where it would wait
        cause = {"drop_oldest": "overwritten", "drop_newest": "no_credit"}[flow]
        dropped = actor.counters[f"dropped.{cause}.{POLICY}"]
        kept = actor.counters[f"flight.{POLICY}"] + actor.counters[f"backlog.{POLICY}"]
        assert dropped == 30 * BLOCK - kept > 0
        learner = Learner(base=free_port_block)
        with closing(learner):
            _deliver(learner, actor)
            assert len(learner.got) == kept
            expected = [1, 2, 3, 4, 53, 54] if flow == "drop_oldest" else [1, 2, 3, 4, 5, 6]
            assert _numbers(learner)[:6] == expected
            assert learner.wrong == 0


def test_large_segments_are_sent_from_where_they_lie_and_are_not_overwritten_while_they_travel(
    memory_dir: Path, free_port_block: int
) -> None:
    """Frames of this size are not copied; the actor goes on writing all around them before anybody takes them."""
    layout = Layout(
        (Field("observation", "<f4", (9_000,)), Field("final_row", "<i4", (2,), "slot")), length=4, before=1
    )
    actor = Actor(None, blocks=6, credits=3, flow="drop_oldest", layout=layout)
    learner = Learner(base=free_port_block, layout=layout)
    route = learner.route
    learner.close()
    with closing(actor):
        actor.sender.route(route, inline=True)
        for number in range(1, 41, BLOCK):
            write(actor.sender, number)
        learner = Learner(base=free_port_block, layout=layout)
        with closing(learner):
            _deliver(learner, actor)
            assert _numbers(learner)[:6] == [1, 2, 3, 4, 5, 6]
            assert len(learner.got) > 6
            assert learner.wrong == 0


def test_a_block_is_announced_when_it_is_finished_if_credit_came_back_meanwhile(memory_dir: Path) -> None:
    """Not only when the next one is taken: an actor may wait for the learner's answer to it before that."""
    actor, learner = Actor(memory_dir / RING, credits=1), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        actor.write(1)
        slots = actor.sender.take(lambda: None)
        for offset, (name, value) in ((i, item) for i in range(BLOCK) for item in content(LAYOUT, 3 + i).items()):
            actor.ring.columns[name][slots.start + offset] = value
        heard = time.monotonic() + 2.5  # by then it is acknowledged, and the next beacon has said so again
        until(lambda: learner.uses(BLOCK) and time.monotonic() > heard, what="the acknowledgement is there")
        actor.sender.finish(slots, LAYOUT.length, 1)
        until(lambda: learner.uses(2 * BLOCK))
        assert _numbers(learner) == [1, 2, 3, 4]


def test_a_settled_number_never_goes_back(memory_dir: Path) -> None:
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        actor.write(3)
        _deliver(learner, actor)
        arrival = receiver.Arrival("actor-0", 1, actor.ring, actor.ring.table[:0].copy(), owned=False)
        learner.receiver.acknowledge(POLICY, arrival, 2, 0)
        intake = learner.receiver._intakes[POLICY]
        assert intake.settled["actor-0", 1] == intake.ledger.acknowledged("actor-0", 1) == 6


class Stranger:
    """Sends whatever it likes to a learner."""

    def __init__(self, learner: Learner, memory: Path) -> None:
        self.context = zmq.Context(1)
        self.push = connect(self.context, zmq.PUSH, learner.route.experience)
        self.ring = Ring.create(memory / "rookery-run1-stranger.ring", LAYOUT, 4)
        self.ring.begin(slice(0, 4))
        for slot in range(4):
            for name, value in content(LAYOUT, slot + 1).items():
                self.ring.columns[name][slot] = value
        self.ring.finish(slice(0, 4), np.arange(1, 5, dtype=np.uint64), LAYOUT.length, 1)

    def header(self, **changes: object) -> Segments:
        fields: dict[str, Any] = {
            "run": RUN,
            "actor": "stranger",
            "incarnation": 1,
            "proof": identity("stranger").proof,
            "policy": POLICY,
            "layout": LAYOUT.hash,
            "count": 4,
            "inline": False,
            "ring": str(self.ring.path),
            "nonce": self.ring.nonce,
        }
        return Segments(**fields).model_copy(update=changes)  # what we would refuse to make is sent all the same

    @property
    def records(self) -> np.ndarray:
        return self.ring.table.copy()

    @property
    def columns(self) -> list[bytes]:
        return [self.ring.columns[field.name].tobytes() for field in LAYOUT.fields]

    def send(self, *frames: bytes) -> None:
        self.push.send_multipart(list(frames))

    def close(self) -> None:
        self.context.destroy(linger=0)
        self.ring.remove()


@pytest.fixture
def stage(memory_dir: Path) -> Iterator[tuple[Stranger, Learner]]:
    """A learner and one who means it harm."""
    learner = Learner()
    stranger = Stranger(learner, memory_dir)
    try:
        yield stranger, learner
    finally:
        stranger.close()
        learner.close()


def _changed(records: np.ndarray, name: str, value: int, index: int = 1) -> bytes:
    records[name][index] = value
    return records.tobytes()


def _inline(s: Stranger, records: bytes | None = None, columns: list[bytes] | None = None, **changes: object) -> Any:
    header = encode(s.header(inline=True, ring="", nonce="", **changes))
    return [header, s.records.tobytes() if records is None else records, *(s.columns if columns is None else columns)]


def _final(s: Stranger, row: int) -> list[bytes]:
    return [*s.columns[:-1], np.full((4, 2), row, np.int32).tobytes()]


HOSTILE: dict[str, Callable[[Stranger], list[bytes]]] = {
    "garbage": lambda s: [b"\xff\x00garbage"],
    "empty": lambda s: [b""],
    "another message": lambda s: [encode(Refusal(reason="no"))],
    "foreign run": lambda s: [encode(s.header(run="other")), s.records.tobytes()],
    "unknown policy": lambda s: [encode(s.header(policy="bone")), s.records.tobytes()],
    "foreign layout": lambda s: [encode(s.header(layout="f" * 16)), s.records.tobytes()],
    "no records": lambda s: [encode(s.header())],
    "frames too many": lambda s: [encode(s.header()), s.records.tobytes(), b"x"],
    "records too short": lambda s: [encode(s.header()), s.records.tobytes()[:-1]],
    "records for fewer": lambda s: [encode(s.header(count=3)), s.records.tobytes()],
    "no such ring": lambda s: [encode(s.header(ring="/dev/shm/rookery-none")), s.records.tobytes()],
    "ring is a secret": lambda s: [encode(s.header(ring="/etc/passwd")), s.records.tobytes()],
    "ring is a device": lambda s: [encode(s.header(ring="/dev/zero")), s.records.tobytes()],
    "ring has a nul": lambda s: [encode(s.header(ring="/dev/shm/rookery-\0")), s.records.tobytes()],
    "ring climbs": lambda s: [encode(s.header(ring="../../rookery-x")), s.records.tobytes()],
    "ring is a pipe": lambda s: [encode(s.header(ring=str(_pipe(s)))), s.records.tobytes()],
    "ring is a link": lambda s: [encode(s.header(ring=str(_link(s)))), s.records.tobytes()],
    "ring is no ring": lambda s: [encode(s.header(ring=str(_junk(s)))), s.records.tobytes()],
    "wrong nonce": lambda s: [encode(s.header(nonce="0" * 16)), s.records.tobytes()],
    "slot beyond the ring": lambda s: [encode(s.header()), _changed(s.records, "slot", 4)],
    "slot being written": lambda s: [encode(s.header()), _changed(s.records, "sequence", 3)],
    "too many rows": lambda s: [encode(s.header()), _changed(s.records, "valid", LAYOUT.length + 1)],
    "too much history": lambda s: [encode(s.header()), _changed(s.records, "before", LAYOUT.before + 1)],
    "number zero": lambda s: [encode(s.header()), _changed(s.records, "number", 0, 0)],
    "inline without columns": lambda s: _inline(s, columns=[]),
    "inline column missing": lambda s: _inline(s, columns=s.columns[:-1]),
    "inline column too many": lambda s: _inline(s, columns=[*s.columns, b""]),
    "inline column too short": lambda s: _inline(s, columns=[s.columns[0][:-1], *s.columns[1:]]),
    "inline final row": lambda s: _inline(s, columns=_final(s, LAYOUT.length)),
    "inline more than the pool": lambda s: _inline(s, np.repeat(s.records, 10).tobytes(), count=40),
    "final row in memory": lambda s: [encode(s.header(ring=str(_bad_ring(s).path))), s.records.tobytes()],
}


def _pipe(s: Stranger) -> Path:
    assert s.ring.path is not None
    path = s.ring.path.with_name("rookery-pipe")
    os.mkfifo(path)
    return path


def _link(s: Stranger) -> Path:
    assert s.ring.path is not None
    path = s.ring.path.with_name("rookery-link")
    path.symlink_to(s.ring.path)
    return path


def _junk(s: Stranger) -> Path:
    assert s.ring.path is not None
    path = s.ring.path.with_name("rookery-junk")
    path.write_bytes(b"ROOKRING" + b"\x10\0\0\0" + b"{" * 20_000)
    return path


def _bad_ring(s: Stranger) -> Ring:
    s.ring.columns["final_row"][1, 1] = 1_000_000
    return s.ring


def test_malformed_messages_are_refused_counted_and_harm_nobody(
    stage: tuple[Stranger, Learner], memory_dir: Path
) -> None:
    stranger, learner = stage
    actor = Actor(memory_dir / RING)
    with closing(actor):
        for number, (what, attack) in enumerate(HOSTILE.items(), 1):
            stranger.send(*attack(stranger))
            until(lambda: learner.listen() or learner.receiver.arrivals(POLICY) or _counted(learner) >= number)  # noqa: B023
            assert learner.counters["quarantined_messages"] == number, what
            assert not learner.receiver.arrivals(POLICY), what
        for inline in (False, True):
            actor.sender.route(learner.route, inline)
            actor.write(2)
            _deliver(learner, actor)
        assert _numbers(learner) == list(range(1, 9))
        assert learner.wrong == 0
        assert learner.receiver._intakes[POLICY].pool.free == 12, "no slot was lost to it"
    for name in ("rookery-pipe", "rookery-link", "rookery-junk"):
        (memory_dir / name).unlink()


@PATHS
def test_what_was_refused_may_be_sent_again_correctly(stage: tuple[Stranger, Learner], inline: bool) -> None:
    stranger, learner = stage
    good = _inline(stranger) if inline else [encode(stranger.header()), stranger.records.tobytes()]
    bad = [good[0], _changed(stranger.records, "valid", 0), *good[2:]]
    stranger.send(*bad)
    stranger.send(*good)
    until(lambda: learner.uses(1))
    assert [number for *_, number in learner.got] == [1, 2, 3, 4]
    assert learner.wrong == 0


def test_of_an_inline_message_with_known_numbers_only_the_rest_is_copied(stage: tuple[Stranger, Learner]) -> None:
    stranger, learner = stage
    stranger.send(
        *_inline(stranger, stranger.records[:2].tobytes(), [_half(column) for column in stranger.columns], count=2)
    )
    stranger.send(*_inline(stranger))
    until(lambda: learner.uses(4))
    assert [number for *_, number in learner.got] == [1, 2, 3, 4]
    assert learner.wrong == 0
    assert learner.counters["repeated_headers"] == 2


def test_what_waits_for_the_pool_is_not_overtaken(memory_dir: Path) -> None:
    """A later, smaller message would fit; but acknowledgements are cumulative, so the order must hold."""
    learner = Learner(pool=4)
    stranger = Stranger(learner, memory_dir)
    try:
        for first, count in ((1, 2), (3, 4), (7, 2)):
            records = stranger.records[:count]
            records["number"] = np.arange(first, first + count)
            columns = [stranger.ring.columns[field.name][:count].tobytes() for field in LAYOUT.fields]
            stranger.send(*_inline(stranger, records.tobytes(), columns, count=count))
        until(lambda: learner.listen() or len(learner.receiver._intakes[POLICY].waiting_for_room) == 2)
        until(lambda: learner.uses(8))
        assert [number for *_, number in learner.got] == list(range(1, 9))
    finally:
        stranger.close()
        learner.close()


def _half(column: bytes) -> bytes:
    return column[: len(column) // 2]


def test_a_ring_known_already_is_not_swapped_for_another(stage: tuple[Stranger, Learner]) -> None:
    stranger, learner = stage
    stranger.send(encode(stranger.header(count=2)), stranger.records[:2].tobytes())
    until(lambda: learner.uses(1))
    stranger.send(encode(stranger.header(count=2, nonce="1" * 16)), stranger.records[2:].tobytes())
    until(lambda: learner.listen() or learner.counters["quarantined_messages"])
    assert learner.use() == 0


TOPICS = [
    b"",
    b"a/gem/actor-0/1",
    b"a/gem/actor-0/0/",
    b"a/gem/actor-0/-1/",
    b"a/gem/actor-0/" + "²".encode() + b"/",
    b"a/gem/actor-0/" + b"9" * 19 + b"/",
    b"a/gem/" + b"x" * 129 + b"/1/",
    b"a/gem/\xff\xfe/1/",
    b"a/bone/actor-0/1/",
    b"b/gem/actor-0/1/",
    b"a/gem/actor-0/1/x/",
]


def test_strange_subscriptions_are_ignored(memory_dir: Path) -> None:
    learner, actor = Learner(), Actor(memory_dir / RING)
    with closing(learner, actor):
        subscriber = connect(actor.context, zmq.SUB, learner.route.acknowledgements)
        for topic in TOPICS:
            subscriber.setsockopt(zmq.SUBSCRIBE, topic)
        raw = connect(actor.context, zmq.XSUB, learner.route.acknowledgements)
        for event in (b"", b"\x02" + ack_topic(POLICY, "actor-9", 1), b"hello", b"\x01", b"\x00" + TOPICS[1]):
            raw.send(event)
        actor.sender.route(learner.route, inline=False)
        actor.write(2)
        _deliver(learner, actor)
        assert learner.receiver._acks.listeners[POLICY] == {("actor-0", 1): 1}
        until(lambda: learner.listen() or learner.counters["invalid_subscriptions"] >= len(TOPICS))
        actor.sender.disconnect()
        until(lambda: learner.listen() or not learner.receiver._acks.listeners.get(POLICY))


def test_who_stops_listening_leaves_the_beacons_to_others_who_listen_for_the_same_actor(
    memory_dir: Path, quick_beacons: None
) -> None:
    """G2: an actor and the relay on its way, or the old and the new connection of one that was led elsewhere."""
    learner, context = Learner(), zmq.Context(1)
    with closing(learner):
        both = [connect(context, zmq.SUB, learner.route.acknowledgements) for _ in range(2)]
        for subscriber in both:
            subscriber.setsockopt(zmq.SUBSCRIBE, ack_topic(POLICY, "actor-0", 1))
        until(lambda: learner.listen() or learner.receiver._acks.listeners.get(POLICY) == {("actor-0", 1): 2})
        both[0].close(linger=0)
        until(lambda: learner.listen() or learner.receiver._acks.listeners.get(POLICY) != {("actor-0", 1): 2})
        while both[1].poll(50):
            both[1].recv_multipart()
        until(lambda: learner.listen() or both[1].poll(0))
        both[1].close(linger=0)
        until(lambda: learner.listen() or not learner.receiver._acks.listeners[POLICY])
    context.destroy(linger=0)


def test_a_malformed_acknowledgement_costs_an_actor_nothing(memory_dir: Path) -> None:
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        until(lambda: learner.listen() or learner.receiver._acks.listeners.get(POLICY))
        topic = ack_topic(POLICY, "actor-0", 1)
        acks = learner.ports.sockets[3]
        actor.write()
        fields = {"policy": POLICY, "learner_incarnation": 1, "acknowledged": 99, "announced": 99}
        for frames in (
            [topic],
            [topic, b"\xc1"],
            [topic, encode(Refusal(reason="no"))],
            [topic, encode(Ack(actor="actor-1", incarnation=1, **fields))],  # type: ignore[arg-type]
            [topic, encode(Ack(actor="actor-0", incarnation=2, **fields))],  # type: ignore[arg-type]
        ):
            acks.send_multipart(frames)
        time.sleep(0.1)
        actor.sender.pump()
        assert not actor.sender._credit.idle
        _deliver(learner, actor)
        assert _numbers(learner) == [1, 2]


def test_an_acknowledgement_of_what_was_never_announced_frees_nothing(memory_dir: Path) -> None:
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=False)
        until(lambda: learner.listen() or learner.receiver._acks.listeners.get(POLICY))
        actor.write()
        lie = Ack(policy=POLICY, learner_incarnation=1, actor="actor-0", incarnation=1, acknowledged=3, announced=3)
        learner.ports.sockets[3].send_multipart([ack_topic(POLICY, "actor-0", 1), encode(lie)])

        def refused() -> bool:
            actor.sender.pump()
            return actor.counters["refused_acks"] == 1

        until(refused)
        assert actor.counters[f"flight.{POLICY}"] == BLOCK
        _deliver(learner, actor)
        assert _numbers(learner) == [1, 2]


def test_Z2_who_does_not_read_its_acknowledgements_keeps_them_from_nobody_else(memory_dir: Path) -> None:
    """Z2: what cannot be queued for it is counted and said again; XPUB would drop it in silence, or for all."""
    actor, learner = Actor(memory_dir / RING), Learner()
    with closing(actor, learner):
        silent = actor.context.socket(zmq.SUB)
        silent.set_hwm(1)
        silent.subscribe(ack_topic(POLICY, "actor-7", 1))
        acks = actor.context.socket(zmq.XPUB)
        acks.set_hwm(1)
        acks.setsockopt(zmq.XPUB_VERBOSER, 1)
        address = f"tcp://127.0.0.1:{acks.bind_to_random_port('tcp://127.0.0.1')}"
        silent.connect(address)
        sender = ack_publisher.AckSender(acks, 1, lambda *_: (5, 5), learner.counters, learner.ports.guard)

        def listened_to() -> bool:
            sender.subscriptions()
            return bool(sender.listeners)

        until(listened_to)

        def full() -> bool:
            for _ in range(1_000):
                sender.send(POLICY, ("actor-7", 1))
            return learner.counters["acks_full"] > 0

        until(full)
        reader = actor.context.socket(zmq.SUB)
        reader.subscribe(ack_topic(POLICY, "actor-7", 1))
        reader.connect(address)
        until(lambda: listened_to() and sender.listeners[POLICY]["actor-7", 1] == 2)
        before = learner.counters["acks_full"]

        def heard() -> bool:  # its own queue holds one, too
            sender.send(POLICY, ("actor-7", 1))
            return bool(reader.poll(10))

        for _ in range(3):
            until(heard)
            reader.recv_multipart()
        assert learner.counters["acks_full"] > before
        until(lambda: silent.poll(0))
        while silent.poll(100):
            silent.recv_multipart()
        sender.beacon(time.monotonic())
        assert silent.poll(60_000)
        for socket in (silent, reader, acks):
            socket.close(linger=0)


@pytest.mark.usefixtures("quick_beacons")
def test_an_actor_logs_once_why_its_segments_are_refused_and_counts_how_often(
    memory_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It announces them again, as they do not arrive; another learner counts anew."""

    def refuse(*_: object) -> None:
        raise WireError("segment_field_not_finite", field="reward")

    learner, actor = Learner(check=refuse), Actor(None)  # type: ignore[arg-type]
    with closing(actor, learner):
        actor.sender.route(learner.route, inline=True)
        actor.write()

        def told() -> bool:
            learner.listen()
            actor.sender.pump()
            return actor.counters[f"refused_messages.{POLICY}"] >= 2

        until(told)
        lines = [one.message for one in caplog.records if "event=segments_refused" in one.message]
        assert [kinds_in(one) for one in lines] == [["segment_field_not_finite"]]
        ack = Ack(policy=POLICY, learner_incarnation=2, actor="actor-0", incarnation=1, acknowledged=0, announced=0)
        before = actor.counters[f"refused_messages.{POLICY}"]
        for count in (1, 1, 3):
            actor.sender._note_refusals(ack.model_copy(update={"refused": count, "reason": lines[0]}))
        assert actor.counters[f"refused_messages.{POLICY}"] == before + 3
