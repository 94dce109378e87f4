"""What all agents see in common reaches updates: the same batches from memory, over the network and sequentially."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

from protocol.config.run import IQN, PPO
from protocol.experience.connections import ConnectionPool
from protocol.experience.flow_control import CreditWindow
from protocol.experience.receipt_log import ReceiptLog
from protocol.experience.receiver import ExperienceReceiver
from protocol.experience.ring_buffer import Ring
from protocol.experience.sender import ExperienceSender
from protocol.experience.shared_obs import COMMON, SharedObs, SharedObsWriter
from protocol.memory.shared_file import PREFIX, Counters
from protocol.messages.core import Route
from protocol.transport.sockets import Ports
from protocol.weights.manifest import Version
from tests.protocol.parts import RUN, SECRET, identity
from tests.waiting import until
from tests.workers import scripted
from tests.workers.learning.buffers.test_ring_table import arrays
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.report import LearnerReport
from workers.rollout.agent_collector import AgentCollector
from workers.rollout.report import ActorReport

LENGTH, COPIES, TURNS = 4, 2, 25
STREAM = scripted.config(PPO(), LENGTH)
REPLAY = scripted.config(
    IQN(batch_size=16, learning_starts=1, frames=3, n_step=2, buffer_capacity=1_000, gamma=0.5), LENGTH
)
NOW = Version(1, 4)


class Line:
    """A seat that acts in the world with a common observation, and the way from it to a source of segments."""

    def __init__(self, policy: Any, memory_dir: Path, way: str) -> None:
        self.way = way
        layout = scripted.layout_of(policy, scripted.SHARING)
        near = way == "memory"
        path = memory_dir / f"{PREFIX}{RUN}-actor-0.1"
        self.common = scripted.common_of(COPIES, 12, LENGTH)
        if near:
            ring = Ring.create(Path(f"{path}-{COMMON}.ring"), self.common.ring.layout, 12)
            self.common = SharedObsWriter(ring, turns=1)
        self.counters = Counters(None, *ActorReport.names(["one"]))
        self.learner_counters = Counters(None, *LearnerReport.names(["one"]))
        self.context = zmq.Context(1)
        self.ports = Ports(self.context, "127.0.0.1", 0)
        addresses = self.ports.bind({1: zmq.PULL, 3: zmq.XPUB})
        self.receiver = ExperienceReceiver(
            self.ports.sockets[1], self.ports.sockets[3], RUN, SECRET, 1, self.learner_counters
        )
        self.receiver.add_common(self.common.ring.layout, 40)
        self.receiver.add_policy("one", layout, ReceiptLog(None), 40)
        self.sender: Any = scripted.Sender(layout, COPIES, 10)
        if way != "sequential":
            self.sender = ExperienceSender(
                ConnectionPool(self.context),
                identity(),
                "one",
                Ring.create(Path(f"{path}-one.ring") if near else None, layout, 10 * COPIES),
                CreditWindow(10, 8, 1, "stream", "block"),
                self.counters,
                common=self.common,
            )
            learner = Route(
                policy="one",
                learner="l",
                incarnation=1,
                experience=addresses[1],
                weights="tcp://127.0.0.1:1",
                acknowledgements=addresses[3],
            )
            self.sender.route(learner, inline=not near)
        noise: Any = np.random.default_rng(0)
        performer: Any = scripted.Performer(scripted.SHARING)
        self.seat = AgentCollector("one", performer, self.sender, range(COPIES), noise, common=self.common)
        self.source: Any = scripted.Source() if way == "sequential" else self.receiver

    def act(self) -> None:
        """Some turns, in which episodes end in both ways; then everything is where the learner finds it."""
        for t in range(TURNS):
            scripted.tell(self.common, t)
            present = scripted.present(t, COPIES, [0] if t in (7, 8) else [], [1] if t in (6, 11, 12) else [])
            if len(present.final_index):
                present.final_common = (1000 * present.final_index + t - 1)[:, None].astype(np.int32)
            self.seat.act(present, scripted.never)
        segments = (TURNS - 1) // LENGTH * COPIES
        if self.way == "sequential":
            common = SharedObs(self.common.ring)
            for records in self.sender.finished:
                self.source.arrive(self.sender.ring, records, common=common)
            return
        until(lambda: self.receiver.receive() >= 0 and sum(len(a.records) for a in self.arrivals) == segments)

    @property
    def arrivals(self) -> Any:
        """What waits to be used."""
        return self.receiver.arrivals("one")

    def stage(self, segments: int) -> BatchAssembler:
        """The stream mode's reader."""
        return BatchAssembler(self._context, scripted.Performer(scripted.SHARING).interface, segments)

    def replay(self) -> ReplayBuffer:
        """The replay mode's reader."""
        assert isinstance(REPLAY.algorithm, IQN)
        form = self._context, scripted.Performer(scripted.SHARING).interface, REPLAY.algorithm
        return ReplayBuffer(*form, ReplayRoom(1_000, 1_000), scripted.unpaced(100.0, 1, 16, 1_000), 0)

    @property
    def _context(self) -> BufferContext:
        return BufferContext("one", self.sender.ring.layout, self.source, self.learner_counters)

    def close(self) -> None:
        self.receiver.close()
        if self.way != "sequential":
            self.sender.close()
        self.common.ring.remove()
        self.ports.close()
        self.context.destroy(linger=0)


@contextmanager
def line(policy: Any, memory_dir: Path, way: str) -> Iterator[Line]:
    """Closed at the end."""
    made = Line(policy, memory_dir, way)
    try:
        yield made
    finally:
        made.close()


def of_each_way(policy: Any, memory_dir: Path, batch: Callable[[Line], Any]) -> list[dict[str, np.ndarray]]:
    """The batch that each way gives."""
    found = []
    for way in ("sequential", "memory", "inline"):
        with line(policy, memory_dir, way) as made:
            made.act()
            found.append(arrays(batch(made)))
    return found


def same(batches: list[dict[str, np.ndarray]]) -> None:
    """All of them, bit by bit."""
    for other in batches[1:]:
        for name, column in batches[0].items():
            np.testing.assert_array_equal(other[name], column)


def test_segments_show_own_and_common_observation_alike_on_every_way_J9_Z5(memory_dir: Path) -> None:
    """J9 Z5: columns are (copy, t, 1000 * copy + t), with what was seen last where an episode was truncated."""

    def batch(made: Line) -> SegmentBatch:
        stage = made.stage(12)
        assert stage.fill(NOW)
        return stage.take_batch()

    batches = of_each_way(STREAM, memory_dir, batch)
    same(batches)
    observation = batches[0]["observation"]
    assert observation.shape == (12, LENGTH + 1, 3)
    assert observation.dtype == np.float32
    np.testing.assert_array_equal(observation[..., 2], 1000 * observation[..., 0] + observation[..., 1])
    assert sorted(set(observation[..., 1].ravel())) == list(range(TURNS))
    final = batches[0]["final_observation"][batches[0]["final_row"] >= 0]
    np.testing.assert_array_equal(final, [[1, 5.5, 1005], [1, 10.5, 1010], [1, 11.5, 1011]])


def test_transitions_stack_own_and_common_observation_alike_on_every_way_J9_Z5(memory_dir: Path) -> None:
    def batch(made: Line) -> TransitionBatch:
        replay = made.replay()
        replay.fill(everything=True)
        found = replay.next_batch(NOW)
        assert found is not None
        return found

    batches = of_each_way(REPLAY, memory_dir, batch)
    same(batches)
    for name in ("observation", "next_observation"):
        frames = batches[0][name]
        assert frames.shape == (16, 3, 3)
        last = frames[:, -1, 1] % 1 == 0.5  # an episode's true last observation
        np.testing.assert_array_equal(frames[~last][..., 2], 1000 * frames[~last][..., 0] + frames[~last][..., 1])
        np.testing.assert_array_equal(frames[last, -1, 2], 1000 * frames[last, -1, 0] + frames[last, -1, 1] - 0.5)
    assert not batches[0]["observation"][:, -1, 1].max() % 1


@pytest.mark.parametrize("moment", [2**63, 10**9])
def test_a_segment_that_refers_to_nothing_is_damaged_and_counted_B13_J9(memory_dir: Path, moment: int) -> None:
    """In memory nobody looks before the learner does; it trains on all others."""
    with line(STREAM, memory_dir, "memory") as made:
        made.act()
        made.sender.ring.columns["moment"][made.arrivals[0].records["slot"][1], 2] = moment
        stage = made.stage(12)
        assert not stage.fill(NOW)
        assert stage.count == 11
        assert made.learner_counters["torn.one"] == made.learner_counters["dropped.recycled.one"] == 1
    with line(REPLAY, memory_dir, "memory") as made:
        made.act()
        damaged = made.arrivals[0].records["slot"][1]
        made.sender.ring.columns["moment"][damaged] = moment
        replay = made.replay()
        replay.fill(everything=True)
        for _ in range(20):
            found = replay.next_batch(NOW)
            assert found is None or np.isfinite(found.observation.numpy()).all()
        assert made.learner_counters["torn.one"] > 0
        assert replay.next_batch(NOW) is not None
