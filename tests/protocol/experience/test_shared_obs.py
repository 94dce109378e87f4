"""What agents see in common: one ring and one transfer for all policies, kept as long as a segment refers to it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from zmq.utils.garbage import gc as garbage_collector

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.experience import ack_publisher
from protocol.experience import sender as sending
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.layout import Field, Layout, common_layout, common_of
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import Arrival, ExperienceReceiver
from protocol.experience.recovery import resend_predecessor
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.experience.shared_obs import COMMON, SharedObs, SharedObsWriter
from protocol.memory.shared_file import PREFIX, Counters, files
from protocol.memory.shared_obs_store import SharedObsStore
from protocol.messages.codec import encode
from protocol.messages.core import CommonRows, Route, Segments
from protocol.spaces import Agent, Box, Component, DictPopulation, Discrete, Observation, World
from protocol.transport.sockets import Ports
from tests.faults import raises
from tests.protocol.parts import LEARNER_COUNTERS, RUN, SECRET, a_route, identity, line, python, sender_counters
from tests.waiting import until

POLICIES = ("gem", "food", "bone", "wall")
LENGTH, COPIES, NUMBERS = 4, 2, 500
LAYOUT = Layout((Field("observation", "<f4", (2,)), Field("moment", "<u8")), LENGTH)
BOX = Box(shape=(NUMBERS,))
MOMENTS = common_layout(BOX, COPIES, LENGTH)
ROW = COPIES * NUMBERS * 4
"""Bytes of a moment."""
KEY = ("actor-0", 1)


def value(moment: int) -> np.ndarray:
    """[E, NUMBERS]: what is seen in a moment."""
    return (moment * 10 + np.arange(COPIES)[:, None] + np.arange(NUMBERS) / NUMBERS).astype(np.float32)


class Writers:
    """An actor with a sender for each of four policies, all of which act in every turn."""

    def __init__(self, memory_dir: Path, blocks: int = 6, credits: int = 3, flow: str = "block", moments: int = 12):
        self.context = zmq.Context(1)
        path = memory_dir / f"{PREFIX}{RUN}-{KEY[0]}.{KEY[1]}"
        self.common = SharedObsWriter(Ring.create(Path(f"{path}-{COMMON}.ring"), MOMENTS, moments))
        connections = ConnectionPool(self.context)
        self.counters = sender_counters(policies=POLICIES)
        self.senders = {}
        for name in POLICIES:
            ring = Ring.create(Path(f"{path}-{name}.ring"), LAYOUT, blocks * COPIES)
            credit = CreditWindow(blocks, credits, 1, "stream", flow)  # type: ignore[arg-type]
            self.senders[name] = ExperienceSender(
                connections, identity(*KEY), name, ring, credit, self.counters, common=self.common
            )

    def write(self, only: tuple[str, ...] = POLICIES) -> None:
        """One block of each policy; its five moments are those of its four rows and of the one behind them."""
        slots = {}
        for name in only:
            sender = self.senders[name]
            slots[name] = sender.take(self._refuse)
            self.common.hold((sender.ring.nonce, slots[name].start), self.common.moment + 1)
        for row in range(LENGTH + 1):
            self.common.write(value(self.common.moment + 1))
            for name in only:
                self.senders[name].ring.columns["moment"][slots[name], row] = self.common.moment
        for name in only:
            sender = self.senders[name]
            sender.ring.columns["observation"][slots[name]] = 0
            sender.ring.table["stream"][slots[name]] = np.arange(COPIES)
            self.common.close((sender.ring.nonce, slots[name].start))
            sender.finish(slots[name], LENGTH, 0)

    def route(self, learner: Reader, inline: bool) -> None:
        """All policies are learned there."""
        for name, sender in self.senders.items():
            sender.route(learner.route(name), inline)

    def pump(self) -> bool:
        """What can be done without waiting; whether everything is settled."""
        for sender in self.senders.values():
            sender.pump()
        return all(sender._credit.idle for sender in self.senders.values())

    def _refuse(self) -> None:
        raise AssertionError("had to wait for credit")

    def close(self) -> None:
        for sender in self.senders.values():
            sender.close()
        self.common.ring.remove()
        self.context.destroy(linger=0)


class Reader:
    """A learner of all four policies, which looks up every moment."""

    def __init__(self, folder: Path | None = None, incarnation: int = 1, blocks: int = 40) -> None:
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        self.addresses = self.ports.bind({1: zmq.PULL, 3: zmq.XPUB})
        names = [name for name in LEARNER_COUNTERS if "." not in name]
        self.counters = Counters(None, [*names, *(f"waiting_for_room.{name}" for name in POLICIES)])
        self.incarnation = incarnation
        self.receiver = ExperienceReceiver(
            self.ports.sockets[1], self.ports.sockets[3], RUN, SECRET, incarnation, self.counters
        )
        self.receiver.add_common(MOMENTS, blocks)
        for name in POLICIES:
            self.receiver.add_policy(name, LAYOUT, ReceiptLog(folder / name if folder else None), 12)
        self.got: dict[str, list[int]] = {name: [] for name in POLICIES}
        self.stopped: tuple[str, ...] = ()
        """Policies whose segments are left lying."""

    def route(self, policy: str) -> Route:
        """Where `policy` is learned."""
        ways = {"experience": self.addresses[1], "acknowledgements": self.addresses[3]}
        return a_route(policy=policy, incarnation=self.incarnation, **ways)

    def use(self) -> int:
        """Looks up and settles what arrived; how many segments these were."""
        self.receiver.receive()
        self.receiver.beacon(time.monotonic())
        used = 0
        for name in POLICIES:
            arrivals = self.receiver.arrivals(name)
            while arrivals and name not in self.stopped:
                used += self._use(name, arrivals.popleft())
        return used

    def _use(self, name: str, arrival: Arrival) -> int:
        records = arrival.records
        assert arrival.common is not None
        place, there = arrival.common.rows(arrival.ring.columns["moment"][records["slot"]], records["stream"])
        assert there.all()
        for record, rows in zip(records, place, strict=True):
            moments = arrival.ring.columns["moment"][record["slot"]]
            expected = [value(int(moment))[int(record["stream"]) % COPIES] for moment in moments]
            np.testing.assert_array_equal(arrival.common.values[rows], expected)
        assert arrival.ring.intact(records).all()
        self.got[name] += records["number"].tolist()
        if arrival.owned:
            self.receiver.release(name, records["slot"])
        self.receiver.acknowledge(name, arrival, int(records["number"][-1]), len(records))
        return len(records)

    def close(self) -> None:
        self.receiver.close()
        self.ports.close()
        self.context.destroy(linger=0)


@contextmanager
def closing(*things: Writers | Reader) -> Iterator[None]:
    """Closes them all, whatever happens."""
    with ExitStack() as stack:
        for thing in things:
            stack.callback(thing.close)
        yield


def through(reader: Reader, writers: Writers, seconds: float = 10.0) -> None:
    """Until everything that was written is settled."""

    def step() -> bool:
        reader.use()
        return writers.pump()

    until(step, seconds)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every frame of experience that is sent from now on."""
    sizes: list[int] = []
    original = sending.send_nowait

    def send(socket: Any, frames: list[Any], copy: bool) -> None:
        sizes.extend(memoryview(frame).nbytes for frame in frames)
        original(socket, frames, copy)

    monkeypatch.setattr(sending, "send_nowait", send)
    return sizes


@pytest.fixture
def quick_beacons(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is lost is noticed soon."""
    monkeypatch.setattr(ack_publisher, "_BEACON_SECONDS", 0.0)
    monkeypatch.setattr(sending, "_RESEND_AFTER", 0.3)


@pytest.mark.parametrize("inline", [False, True])
def test_all_policies_find_what_their_agents_saw_J9(memory_dir: Path, inline: bool) -> None:
    writers, reader = Writers(memory_dir), Reader()
    with closing(writers, reader):
        writers.route(reader, inline)
        for _ in range(20):
            writers.write()
            through(reader, writers)
        assert reader.got == {name: list(range(1, 20 * COPIES + 1)) for name in POLICIES}
        assert writers.counters["push_full"] == 0


def test_what_four_policies_see_in_common_crosses_once_J9(memory_dir: Path, sent: list[int]) -> None:
    """J9: counted in the frames that are sent. Each moment once, however many policies refer to it; and in memory the
    moments lie in one ring, which is where all the bytes are."""
    writers, reader = Writers(memory_dir), Reader()
    with closing(writers, reader):
        writers.route(reader, inline=True)
        for _ in range(10):
            writers.write()
            through(reader, writers)
        moments = 10 * (LENGTH + 1)
        assert sum(size for size in sent if size >= ROW) == moments * ROW
        assert sum(size for size in sent if size < ROW) < 0.12 * moments * ROW  # headers, records and small columns
        policies = sum(sender.ring.nbytes for sender in writers.senders.values())
        assert writers.common.ring.nbytes >= 12 * LENGTH * ROW
        assert policies < 0.5 * writers.common.ring.nbytes


def test_on_one_node_nothing_of_it_is_sent_at_all_J9(memory_dir: Path, sent: list[int]) -> None:
    writers, reader = Writers(memory_dir), Reader()
    with closing(writers, reader):
        writers.route(reader, inline=False)
        writers.write()
        through(reader, writers)
        assert sum(sent) < ROW


def test_a_segment_whose_moments_were_lost_is_taken_when_they_have_come_J9(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch, quick_beacons: None
) -> None:
    """The message of the first policy brings them for all four. Without it nobody is trained on half of what was seen,
    and everybody gets everything once."""
    writers, reader = Writers(memory_dir), Reader()
    original = sending.send_nowait
    lost: list[Any] = []

    def send(socket: Any, frames: list[Any], copy: bool) -> None:
        if len(lost) < 1:
            lost.append(frames)
        else:
            original(socket, frames, copy)

    monkeypatch.setattr(sending, "send_nowait", send)
    with closing(writers, reader):
        writers.route(reader, inline=True)
        writers.write()
        until(lambda: reader.use() or reader.counters["out_of_order"] == 3 * COPIES)
        assert reader.got == {name: [] for name in POLICIES}
        through(reader, writers)
        writers.write()
        through(reader, writers)
        assert reader.got == {name: [1, 2, 3, 4] for name in POLICIES}


def test_a_learner_that_returns_gets_all_that_is_unsettled_and_what_it_refers_to_J9(
    memory_dir: Path, tmp_path: Path, sent: list[int]
) -> None:
    writers, first = Writers(memory_dir), Reader(tmp_path)
    with closing(writers):
        with closing(first):
            writers.route(first, inline=True)
            writers.write()
            through(first, writers)
            first.stopped = POLICIES
            writers.write()
            until(lambda: first.use() or all(first.receiver.arrivals(name) for name in POLICIES))
        writers.write()
        del sent[:]
        second = Reader(tmp_path, incarnation=2)
        with closing(second):
            writers.route(second, inline=True)
            through(second, writers)
            assert second.got == {name: [3, 4, 5, 6] for name in POLICIES}
            assert 10 * ROW <= sum(sent) < 1.2 * 10 * ROW


def settled(reader: Reader, writers: Writers) -> bool:
    """Whether all of the policies whose learner is at work is settled."""
    reader.use()
    writers.pump()
    return all(sender._credit.idle for name, sender in writers.senders.items() if name not in reader.stopped)


@pytest.mark.parametrize(("flow", "inline"), [("drop_oldest", True), ("drop_newest", False)])
def test_moments_of_what_is_in_flight_are_kept_for_a_learner_that_stalls_J9(
    memory_dir: Path, flow: str, inline: bool
) -> None:
    """While one policy's learner does nothing the others go on; then it finds what it was told of."""
    writers, reader = Writers(memory_dir, flow=flow, moments=40), Reader(blocks=60)
    with closing(writers, reader):
        writers.route(reader, inline)
        reader.stopped = ("bone",)
        for _ in range(30):
            writers.write()
            until(lambda: settled(reader, writers))
        assert reader.got["bone"] == []
        reader.stopped = ()
        through(reader, writers)
        bone = reader.got["bone"]
        assert bone == sorted(set(bone))
        assert bone[: 3 * COPIES] == list(range(1, 3 * COPIES + 1))
        dropped = writers.counters["dropped.overwritten.bone"] + writers.counters["dropped.no_credit.bone"]
        assert len(bone) + dropped == 30 * COPIES


KILLED = """
import os, sys, time
from pathlib import Path
from tests.protocol.experience.test_shared_obs import Writers
writers = Writers(Path(sys.argv[1]), flow="drop_oldest")
for _ in range(3):
    writers.write()
print("written", flush=True)
time.sleep(60)
"""


def test_a_dead_actors_moments_are_found_with_its_segments_J9(memory_dir: Path) -> None:
    """kill -9 before anything was announced: all finished segments are taken from memory, then every file is gone."""
    reader = Reader()
    with closing(reader), python(KILLED, memory_dir) as process:
        assert line(process) == "written"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(60)
        reader.receiver.living(set())
        assert reader.use() == 0, "it may be about to join"
        reader.receiver.living(set())
        reader.use()
        assert reader.got == {name: list(range(1, 3 * COPIES + 1)) for name in POLICIES}
        assert reader.counters["recovered"] == 4 * 3 * COPIES
        for name in POLICIES:
            reader.receiver.let_go(name, lambda ring: False)
        assert list(memory_dir.iterdir()) == []


@pytest.mark.parametrize("lost", [False, True])
def test_a_dead_actors_segments_are_sent_by_its_successor_with_their_moments_J9_G2(
    memory_dir: Path, lost: bool
) -> None:
    """What lies on another node than the learner; where the moments are lost, so are the segments, and it is told."""
    reader = Reader()
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context(1)
    names = sorted(POLICIES)
    with closing(reader):
        with python(KILLED, memory_dir) as process:
            assert line(process) == "written"
            os.kill(process.pid, signal.SIGKILL)
            process.wait(60)
        if lost:
            ring = Ring.attach(memory_dir / f"{PREFIX}{RUN}-{KEY[0]}.1-{COMMON}.ring", MOMENTS)
            ring.table["state"] = 0
            ring.close()
        counters = sender_counters(policies=POLICIES)
        for name in names:
            given = (
                *(made, identity(KEY[0], 2), reader.route(name), LAYOUT, COPIES, counters, 10.0),
                lambda: [reader.use()],
            )
            count = resend_predecessor(*given, common=MOMENTS)  # type: ignore[arg-type]
            assert count == (0 if lost else 3 * COPIES)
        assert all(reader.got[name] == ([] if lost else list(range(1, 3 * COPIES + 1))) for name in names)
        assert [path.name for path in memory_dir.iterdir()] == [f"{PREFIX}{RUN}-{KEY[0]}.1-{COMMON}.ring"]
    (memory_dir / f"{PREFIX}{RUN}-{KEY[0]}.1-{COMMON}.ring").unlink()
    made.destroy(linger=0)
    garbage_collector.stop()


def test_of_a_relay_that_was_started_again_moments_stay_while_a_segment_refers_to_them_B11(memory_dir: Path) -> None:
    """And no longer: each start would leave a ring of them behind in memory."""
    layout = common_layout(Box(shape=(1,), dtype="int32"), 2, 4)
    shelf, key, paths = (
        SharedObsStore(RUN),
        ("actor-0", 1),
        [memory_dir / f"rookery-run1-relay-0.{i}-x" for i in range(3)],
    )
    shelf.expect(layout, 4)
    found = []
    for path in paths:
        ring = Ring.create(path, layout, 4)
        found.append(shelf.near(key, CommonRows(ring=str(path), nonce=ring.nonce)))
        ring.remove()  # it dies; what the learner holds stays
        shelf.living({key})
    assert sorted(files()) == paths
    del found[1]
    shelf.living({key})
    assert sorted(files()) == [paths[0], paths[2]]
    assert found[0] is not None
    assert len(found[0].ring.table) == 4
    found.clear()
    shelf.forget(key)
    assert list(files()) == []
    shelf.close()


def test_what_nobody_refers_to_is_written_over_and_nothing_else() -> None:
    """Blocks of four moments; three fit."""
    common = SharedObsWriter(Ring.create(None, MOMENTS, 3))
    reader = SharedObs(common.ring)
    for _ in range(8):
        common.write(value(common.moment + 1))
    common.hold("a", 5)  # block 1
    common.close("a")
    assert common.held("a") == (5, 7)
    common.hold("b", 8)
    for _ in range(8):
        common.write(value(common.moment + 1))
    place, there = reader.rows(np.array([[5, 7], [0, 15]], np.uint64), np.array([0, 1], np.uint64))
    assert there.tolist() == [[True, True], [False, True]]
    np.testing.assert_array_equal(reader.values[place[0]], [value(5)[0], value(7)[0]])
    np.testing.assert_array_equal(reader.values[place[1, 1]], value(15)[1])
    common.close("b")
    common.hold("c", 15)
    assert common.blocks() == [(1, 3)]
    with raises(EnvironmentFault, "common_moments_used_up", count=12):
        common.write(value(16))
    common.release("b")
    common.write(value(16))
    common.close("c")
    assert common.blocks() == [(1, 1), (3, 4)]


@settings(max_examples=50, deadline=None)
@given(moment=st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), stream=st.integers(0, 2**64 - 1))
def test_no_reference_leads_beyond_the_memory(moment: list[int], stream: int) -> None:
    """B13 J9: whatever a segment says, its place is one that is there, or it is told that it is not."""
    common = SharedObsWriter(Ring.create(None, MOMENTS, 2))
    for _ in range(6):
        common.write(value(common.moment + 1))
    reader = SharedObs(common.ring)
    place, there = reader.rows(np.array([[*moment, 5]], np.uint64), np.array([stream], np.uint64))
    assert (place >= 0).all()
    assert (place < len(reader.values)).all()
    assert there.tolist()[0] == [m < 8 for m in moment] + [True]


def forged(header: dict[str, Any], moment: int, sent: list[bytes], common: dict[str, Any] | None) -> list[bytes]:
    """A message of one segment all of whose rows refer to `moment`."""
    ring = Ring.create(None, LAYOUT, 1)
    ring.begin(slice(0, 1))
    ring.columns["observation"][:] = 0
    ring.columns["moment"][:] = moment
    ring.finish(slice(0, 1), [1], LENGTH, 0)
    said = Segments(
        run=RUN, actor="actor-9", incarnation=1, proof=identity("actor-9").proof, policy="gem", layout=LAYOUT.hash,
        count=1, inline=True, common=None if common is None else CommonRows(**common), **header,
    )  # fmt: skip
    return [encode(said), ring.table.tobytes(), *(ring.columns[f.name].tobytes() for f in LAYOUT.fields), *sent]


GOOD = value(0).tobytes()
ALIVE = {"alive": [(0, 0)], "sent": [(0, 1)]}


@pytest.mark.parametrize(
    ("moment", "sent", "common", "counter"),
    [
        (0, [], None, "quarantined_messages"),
        (0, [GOOD], {"alive": [(0, 0)]}, "quarantined_messages"),
        (0, [], ALIVE, "quarantined_messages"),
        (0, [GOOD[:-1]], ALIVE, "quarantined_messages"),
        (0, [GOOD * 5], {"alive": [(0, 1)], "sent": [(0, 5)]}, "quarantined_messages"),
        (0, [GOOD], {"alive": [(1, 9)], "sent": [(0, 1)]}, "quarantined_messages"),
        (0, [b""], {"alive": [(0, 0)], "sent": [(0, 0)]}, "quarantined_messages"),
        (0, [GOOD] * 41, {"alive": [(0, 99)], "sent": [(4 * k, 1) for k in range(41)]}, "quarantined_messages"),
        (1, [GOOD], ALIVE, "out_of_order"),
        (2**63, [GOOD], ALIVE, "out_of_order"),
        (4, [], {"alive": [(0, 2**62)]}, "out_of_order"),
    ],
)
def test_moments_that_cannot_be_believed_are_refused_and_counted_J9(
    moment: int, sent: list[bytes], common: dict[str, Any] | None, counter: str
) -> None:
    """Nothing of such a message is used, and the next honest one is taken."""
    reader = Reader()
    with closing(reader):
        push = reader.context.socket(zmq.PUSH)
        push.connect(reader.addresses[1])
        push.send_multipart(forged({}, moment, sent, common))
        until(lambda: reader.use() or reader.counters[counter] > 0)
        assert not reader.receiver.arrivals("gem")
        push.send_multipart(forged({}, 0, [GOOD], ALIVE))
        until(lambda: reader.use() == 1)
        push.close(linger=0)


def test_a_common_observation_that_cannot_be_delivered_once_is_refused_in_one_sentence() -> None:
    agent = Agent(name="a", observation=Box(shape=(2,)), action=Discrete(n=2))
    other = agent.model_copy(update={"name": "b"})
    inner = DictPopulation(name="team", agents=(agent,), common=Box(shape=(1,)))
    hidden = Observation(components={"state": Component(space=Box(shape=(1,)), evaluation_only=True)})
    two = Observation(components={name: Component(space=Box(shape=(1,))) for name in ("x", "y")})
    for population in (
        DictPopulation(agents=(inner, other)),
        DictPopulation(agents=(agent,), common=Discrete(n=3)),
        DictPopulation(agents=(agent,), common=hidden),
        DictPopulation(agents=(agent,), common=two),
    ):
        with raises(ConfigurationError, "common_observations_not_one_box", environment="w"):
            common_of(World(id="w", population=population))
    assert common_of(World(id="w", population=DictPopulation(agents=(agent,), common=BOX))) == BOX
