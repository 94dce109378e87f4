"""Stage and replay on every kind of ring: the same batches from all, and nothing but real rows in any of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from protocol.config.run import IQN, PPO, parse_run
from protocol.errors import Timeout
from protocol.experience.ring_buffer import Records, Ring
from protocol.memory import shared_file
from protocol.memory.shared_file import Counters
from protocol.spaces import World
from protocol.weights.manifest import Version
from tests.faults import raises
from tests.workers import scripted
from workers.algorithms.common.batches import SegmentBatch, TransitionBatch
from workers.learning.buffers.batch_assembler import BatchAssembler
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.planning.policy_plan import plan_policies
from workers.rollout.agent_collector import AgentCollector

MODES: dict[str, dict[str, Any]] = {
    "lock_free": {"checksums": False},
    "locked": {"checksums": False, "lock_timeout": 0.1},
    "checksums": {"checksums": True},
}
modes = pytest.mark.parametrize("mode", MODES)
NOW = Version(1, 4)
STREAM = scripted.config(PPO())
REPLAY = scripted.config(IQN(batch_size=4, learning_starts=1, frames=2, n_step=2, buffer_capacity=1_000_000))


class Bench:
    """A seat of two copies that writes a ring, and the same file attached by the one who reads it."""

    def __init__(self, policy: Any, mode: str, blocks: int) -> None:
        layout = scripted.layout_of(policy)
        self.sender = scripted.Sender(layout, 2, blocks)
        path = shared_file.memory_dir() / "rookery-bench.ring"
        self.written = self.sender.ring = Ring.create(path, layout, 2 * blocks, **MODES[mode])
        self.read = Ring.attach(path, layout)
        self.clock = 0.0
        self.source = scripted.Source()
        self.counters: Counters = scripted.counters()
        noise = np.random.default_rng(0)
        performer: Any = scripted.Performer()
        self._seat = AgentCollector(
            "one", performer, self.sender, range(2), noise, flush_after=5.0, clock=lambda: self.clock
        )
        self._turn = 0

    def act(self, turns: int, pause: bool = False) -> None:
        """So many turns; after a pause the segment at hand is shipped short."""
        for _ in range(turns):
            self._seat.act(scripted.present(self._turn, 2), scripted.never)
            self._turn += 1
        if pause:
            self.clock += 6.0
            self._seat.flush(scripted.never)

    def arrive(self) -> None:
        """What was finished is announced."""
        while self.sender.finished:
            self.source.arrive(self.read, self.sender.finished.pop(0))

    def stage(self, segments: int) -> BatchAssembler:
        """The stream mode's reader."""
        context = BufferContext("one", self.read.layout, self.source, self.counters)
        return BatchAssembler(context, scripted.Performer().interface, segments)

    def replay(self, kept: int = 1_000_000) -> ReplayBuffer:
        """The replay mode's reader."""
        assert isinstance(REPLAY.algorithm, IQN)
        context = BufferContext("one", self.read.layout, self.source, self.counters)
        form = context, scripted.Performer().interface, REPLAY.algorithm, ReplayRoom(1_000_000, kept)
        return ReplayBuffer(*form, scripted.unpaced(100.0, 1, 4, 1_000), 0)

    def close(self) -> None:
        self.source.queue.clear()
        self.read.close()
        self.written.remove()


@contextmanager
def bench(policy: Any, mode: str, blocks: int = 8) -> Iterator[Bench]:
    """Closed at the end."""
    made = Bench(policy, mode, blocks)
    try:
        yield made
    finally:
        made.close()


def arrays(batch: SegmentBatch | TransitionBatch) -> dict[str, NDArray]:
    """Its fields as arrays."""
    fields = {name: getattr(batch, name) for name in type(batch).__dataclass_fields__}
    return {name: tensor.numpy().copy() for name, tensor in fields.items() if tensor is not None}


def test_F1_ring_checksums_and_lock_timeout_are_what_the_configuration_says(memory_dir: Path) -> None:
    """F1: by policy, and for everyone who attaches."""
    run = parse_run(
        {
            "policy": {"checksums": False},
            "policies": {"one": {"ring": "locked", "checksums": True}},
            "agents": {"one": "one"},
            "lock_timeout": 0.25,
        }
    )
    other = World(id="scripted", agents=(scripted.AGENT, scripted.AGENT.model_copy(update={"name": "two"})))
    one, two = (plan.ring(memory_dir / f"rookery-{plan.name}", None) for plan in plan_policies(run, other).values())
    assert (one.locked, one.checksums, two.locked, two.checksums) == (True, True, False, False)
    assert one.path is not None
    attached = Ring.attach(one.path, one.layout)
    start = time.monotonic()
    with attached.reading(), raises(Timeout, "region_lock_timeout", seconds=0.25, key="policy.ring"):
        one.begin(slice(0, 1))
    assert time.monotonic() - start >= 0.25
    attached.close()
    for ring in (one, two):
        ring.remove()


def test_every_kind_of_ring_gives_the_same_batches(memory_dir: Path) -> None:
    """X1: the locked ring is the reference of the lock-free one."""
    found: dict[str, list[dict[str, NDArray]]] = {mode: [] for mode in MODES}
    for mode in MODES:
        with bench(STREAM, mode) as streams:
            streams.act(9)
            streams.arrive()
            stage = streams.stage(4)
            assert stage.fill(NOW)
            found[mode].append(arrays(stage.take_batch()))
        with bench(REPLAY, mode) as replays:
            replays.act(17)
            replays.arrive()
            replay = replays.replay()
            replay.fill()
            for _ in range(5):
                batch = replay.next_batch(NOW)
                assert batch is not None
                found[mode].append(arrays(batch))
    for mode in ("locked", "checksums"):
        for mine, reference in zip(found[mode], found["lock_free"], strict=True):
            for name, array in reference.items():
                np.testing.assert_array_equal(mine[name], array)


def test_B13_a_changed_byte_is_counted_as_torn_and_never_staged() -> None:
    with bench(STREAM, "checksums") as b:
        b.act(9)
        b.arrive()
        b.written.columns["reward"][1].view(np.uint8)[2] ^= 1
        stage = b.stage(4)
        assert not stage.fill(NOW)
        assert (stage.count, b.counters["torn.one"], b.counters["dropped.recycled.one"]) == (3, 1, 1)
        assert sum(count for _, count in b.source.settled) == 4


def test_B13_a_changed_byte_is_counted_as_torn_and_never_drawn_from_replay() -> None:
    """Before it was admitted, and after; everything else is still drawn."""
    with bench(REPLAY, "checksums") as b:
        b.act(17)
        b.arrive()
        b.written.columns["action"][0, 2] ^= 1
        replay = b.replay()
        replay.fill()
        assert (replay.rows, b.counters["torn.one"]) == (28, 1)
        b.written.columns["reward"][5, 3] = 1e9
        drawn = []
        for _ in range(60):
            batch = replay.next_batch(NOW)
            assert batch is not None
            assert batch.reward.abs().max() < 1e6
            drawn += [(int(o[-1, 0]), int(o[-1, 1])) for o in batch.observation]
        assert 2 <= b.counters["torn.one"] <= 5  # once, however many rows of that batch lay in it
        gone = {(0, t) for t in range(4)} | {(1, t) for t in range(8, 12)}
        assert set(drawn) == {(c, t) for c in range(2) for t in range(16)} - gone


@pytest.mark.parametrize("policy", [STREAM, REPLAY], ids=["stream", "replay"])
def test_in_a_locked_ring_no_slot_is_taken_while_it_is_copied(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer tries between copying and asking, and has to wait; in a lock-free one it goes ahead."""
    for mode in ("locked", "lock_free"):
        with bench(policy, mode) as b:
            b.act(9)
            b.arrive()
            real = b.read.intact
            tried: list[str] = []

            def intact(records: Records, b: Bench = b, real: Any = real, tried: list[str] = tried) -> NDArray:
                try:
                    b.written.begin(slice(0, 8))
                    tried.append("taken")
                except Timeout:
                    tried.append("waited")
                return np.asarray(real(records))

            if policy is STREAM:
                stage = b.stage(4)
                monkeypatch.setattr(b.read, "intact", intact)
                stage.fill(NOW)
                got = stage.count
            else:
                replay = b.replay()
                replay.fill()
                monkeypatch.setattr(b.read, "intact", intact)
                got = 0 if replay.next_batch(NOW) is None else 4
            assert set(tried) == {"waited" if mode == "locked" else "taken"}
            assert got == (4 if mode == "locked" else 0)
            b.written.begin(slice(0, 8))  # afterwards it may


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=12),
    mode=st.sampled_from(list(MODES)),
)
def test_no_valid_row_of_a_batch_ever_holds_poison_or_an_earlier_use(turns: list[tuple[int, bool]], mode: str) -> None:
    """Through segments of any length in slots that were used before: rows follow each other, and all are real."""
    with bench(STREAM, mode, blocks=2) as b:
        stage = b.stage(2)
        expected = 0
        for count, pause in turns:
            for _ in range(count):
                b.act(1)
                expected = follow(b, stage, expected)
            b.act(0, pause)
            expected = follow(b, stage, expected)


def follow(b: Bench, stage: BatchAssembler, expected: int) -> int:
    """Checks what has been finished since: it goes on at step `expected`."""
    b.arrive()
    while stage.fill(NOW):
        batch = arrays(stage.take_batch())
        for i, valid in enumerate(batch["valid"].tolist()):
            steps = np.arange(expected, expected + valid)
            copy = batch["observation"][i, 0, 0]
            np.testing.assert_array_equal(batch["observation"][i, :valid, 1], steps)
            np.testing.assert_array_equal(batch["action"][i, :valid], steps % 5)
            np.testing.assert_array_equal(batch["reward"][i, :valid], 10 * copy + steps)
            np.testing.assert_array_equal(batch["value"][i, :valid], 2 * steps)
            if valid < 4:
                assert np.isnan(batch["reward"][i, valid:]).all()
                assert np.isnan(batch["observation"][i, valid + 1 :]).all()
        expected += int(batch["valid"][0])
    return expected


@settings(max_examples=40, deadline=None)
@given(
    turns=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=12),
    mode=st.sampled_from(list(MODES)),
)
def test_no_transition_from_replay_ever_holds_poison(turns: list[tuple[int, bool]], mode: str) -> None:
    """n-step returns, stacks and successors of segments of any length, some of which were overwritten."""
    with bench(REPLAY, mode, blocks=4) as b:
        replay = b.replay(kept=6)
        for count, pause in turns:
            b.act(count, pause)
            b.arrive()
            replay.fill()
            batch = replay.next_batch(NOW)
            if batch is not None:
                for name, array in arrays(batch).items():
                    assert np.isfinite(array).all(), name
                assert (batch.observation[:, -1, 1].long() % 5 == batch.action).all()
                assert (batch.reward.abs() < 200).all()
