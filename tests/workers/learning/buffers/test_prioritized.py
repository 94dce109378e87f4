"""Prioritised replay: exact sums under change, draws in proportion, weights by hand, and rings that are overwritten."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import IQN, SAC
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from tests.workers import scripted
from tests.workers.learning.buffers.test_replay_buffer import LENGTH, acted, arrive, steps_of
from workers.learning.buffers.prioritized import PrioritizedSampler, SumTree
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext

NOW = Version(1, 2)


@settings(max_examples=60, deadline=None)
@given(
    leaves=st.integers(1, 70),
    changes=st.lists(st.lists(st.tuples(st.integers(0, 69), st.floats(0, 1e6)), max_size=8), max_size=8),
)
def test_the_tree_holds_exact_sums_and_finds_every_weight(leaves: int, changes: list[list[tuple[int, float]]]) -> None:
    """Whatever was written before: every node is the sum of its children, and the middle of each weight leads to it."""
    tree, known = SumTree(leaves), np.zeros(leaves)
    for change in changes:
        leaf = np.array([at % leaves for at, _ in change], np.int64)
        weight = np.array([weight for _, weight in change])
        tree.set(leaf, weight)
        known[leaf] = weight
        np.testing.assert_array_equal(tree.weights(np.arange(leaves)), known)
    nodes = tree._nodes
    inner = np.arange(1, len(nodes) // 2)
    np.testing.assert_array_equal(nodes[inner], nodes[2 * inner] + nodes[2 * inner + 1])
    assert tree.total == pytest.approx(known.sum())
    large = np.flatnonzero(known > 1e-6 * known.sum())
    middle = (known.cumsum() - known / 2)[large]
    np.testing.assert_array_equal(tree.find(middle), large)
    if known.any():
        ends = tree.find(np.array([0.0, np.nextafter(tree.total, 0), tree.total]))
        assert (known[ends] > 0).all()


def filled(errors: list[float], alpha: float, length: int = 2) -> PrioritizedSampler:
    """Rows with these last errors."""
    segments = -(-len(errors) // length)
    priorities = PrioritizedSampler(segments, length, alpha)
    valid = np.minimum(len(errors) - length * np.arange(segments), length)
    priorities.sync(0, segments, valid.astype(np.uint16))
    rng = np.random.default_rng(0)
    drawn = priorities.draw(1, 0.0, rng)
    assert drawn is not None
    row = np.arange(len(errors))
    mine = drawn._replace(record=row // length, row=row % length)
    priorities.learn(mine, np.array(errors, np.float32))
    return priorities


@pytest.mark.parametrize(("alpha", "batch"), [(0.6, 1), (0.3, 16)])
def test_rows_are_drawn_in_proportion_to_a_power_of_their_error(alpha: float, batch: int) -> None:
    """Chi-square over 20 rows: 43.8 is exceeded by chance once in a thousand times."""
    errors = np.linspace(0.05, 3, 20)
    priorities, rng, counts = filled(errors.tolist(), alpha), np.random.default_rng(1), np.zeros(20)
    draws = 20_000 // batch if batch > 1 else 6_000
    for _ in range(draws):
        drawn = priorities.draw(batch, 0.4, rng)
        assert drawn is not None
        np.add.at(counts, drawn.record * 2 + drawn.row, 1)
    expected = errors**alpha / (errors**alpha).sum() * counts.sum()
    assert ((counts - expected) ** 2 / expected).sum() < 43.8


def test_weights_by_hand() -> None:
    """Errors 1, 2, 5 with alpha 1: chances 1/8, 2/8, 5/8; weights (3/8)^-b, (6/8)^-b, (15/8)^-b, over the first."""
    priorities, beta, seen = filled([1, 2, 5], 1.0), 0.4, {}
    drawn = priorities.draw(200, beta, np.random.default_rng(0))
    assert drawn is not None
    for record, row, weight in zip(*drawn, strict=True):
        seen[int(record) * 2 + int(row)] = float(weight)
    expected = {0: 1.0, 1: (6 / 8) ** -beta / (3 / 8) ** -beta, 2: (15 / 8) ** -beta / (3 / 8) ** -beta}
    assert seen == pytest.approx(expected, abs=1e-5)


def test_new_rows_have_the_greatest_priority_yet() -> None:
    priorities, valid = PrioritizedSampler(2, 2, 1.0), np.array([2, 2], np.uint16)
    priorities.sync(0, 1, valid[:1])
    assert priorities._tree.total == 2
    drawn = priorities.draw(1, 0.0, np.random.default_rng(0))
    assert drawn is not None
    priorities.learn(drawn, np.array([7.0], np.float32))
    priorities.sync(0, 2, valid)
    np.testing.assert_allclose(np.sort(priorities._tree.weights(np.arange(4))), [1, 7, 7, 7], atol=1e-5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 3)), max_size=20), st.integers(1, 6))
def test_what_may_be_drawn_is_what_is_there_whatever_comes_and_goes(
    moves: list[tuple[int, int, int]], segments: int
) -> None:
    """Records come and go, more of them at once than there is room for, and some in the middle are forgotten."""
    priorities, head = PrioritizedSampler(segments, 3, 0.5), 0
    valid: list[int] = []
    gone: set[int] = set()
    rng = np.random.default_rng(0)
    for come, leave, forget in moves:
        valid += [1 + (len(valid) + i) % 3 for i in range(come)]
        head = max(min(head + leave, len(valid)), len(valid) - segments)
        priorities.sync(head, len(valid), np.array(valid[head:], np.uint16))
        if forget and head < len(valid):
            record = head + forget % (len(valid) - head)
            gone.add(record)
            priorities.forget(np.array([record]))
        alive = {(n, row) for n in range(head, len(valid)) if n not in gone for row in range(valid[n])}
        assert priorities.rows == len(alive)
        drawn = priorities.draw(64, 0.5, rng)
        if drawn is None:
            assert not alive
            continue
        assert set(zip(drawn.record.tolist(), drawn.row.tolist(), strict=True)) <= alive
        if len(alive) <= 18:
            every = priorities.draw(2_000, 0.5, rng)
            assert every is not None
            assert len(set(zip(every.record.tolist(), every.row.tolist(), strict=True))) == len(alive)


def replay_of(algorithm: IQN | SAC, capacity: int = 100_000) -> tuple[ReplayBuffer, scripted.Source, Counters]:
    """A replay by priority whose rate_limiter hardly ever says no."""
    source, counters = scripted.Source(), scripted.counters()
    rate_limiter = scripted.unpaced(1e6, 1, algorithm.batch_size, 1_000)
    layout = scripted.layout_of(scripted.config(IQN(), LENGTH))
    interface = scripted.Performer().interface
    context, room = BufferContext("one", layout, source, counters), ReplayRoom(capacity, 1_000_000)
    replay = ReplayBuffer(context, interface, algorithm, room, rate_limiter, 0)
    return replay, source, counters


def prioritised(batch: int = 4, alpha: float = 1.0, beta: float = 0.4) -> IQN:
    """Single steps."""
    return IQN(batch_size=batch, learning_starts=1, n_step=1, priority_alpha=alpha, priority_beta=beta)


def test_rows_of_large_error_come_again_and_weights_make_up_for_it_by_the_end() -> None:
    """Row 3 had 9 times the error of the others; at the end of the run its weight is a 9th of theirs."""
    replay, source, _ = replay_of(prioritised(LENGTH, beta=0.0))
    sender = acted(1)
    source.arrive(sender.ring, sender.finished[0])
    replay.fill()
    for _ in range(30):
        batch = replay.next_batch(NOW)
        replay.learned(torch.tensor([9.0 if t == 3 else 1.0 for t in steps_of(batch)]))
    drawn = [t for _ in range(300) for t in steps_of(replay.next_batch(NOW))]
    assert drawn.count(3) / len(drawn) == pytest.approx(9 / 12, abs=0.02)
    for progress, weight in ((0.0, 1.0), (0.5, 1 / 3), (1.0, 1 / 9)):
        found: dict[int, float] = {}
        for _ in range(20):
            batch = replay.next_batch(NOW, progress)
            assert batch is not None
            assert batch.weight is not None
            if len(set(steps_of(batch))) > 1:  # or the only weight is 1
                found |= dict(zip(steps_of(batch), batch.weight.tolist(), strict=True))
        assert found[3] == pytest.approx(weight, rel=1e-4)
        assert {round(w, 4) for t, w in found.items() if t != 3} == {1.0}


def test_errors_reach_the_rows_they_are_of_with_several_actors() -> None:
    """A batch of two rings comes ring by ring: priorities follow the rows."""
    replay, source, _ = replay_of(prioritised(8))
    senders = [acted(2), acted(2, copies=2)]
    for number, sender in enumerate(senders):
        arrive(source, sender, f"actor-{number}")
    replay.fill()
    for _ in range(300):
        batch = replay.next_batch(NOW)
        assert batch is not None
        replay.learned(1 + batch.reward)
    tree = replay._priorities._tree  # type: ignore[union-attr]
    found = sorted(tree.weights(np.arange(6 * LENGTH)).tolist())
    rewards = [1.0 + t for t in range(2 * LENGTH)] * 2 + [11.0 + t for t in range(2 * LENGTH)]
    np.testing.assert_allclose(found, sorted(rewards), atol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, 1.0], ids=["uniform", "priority"])
def test_overwritten_segments_of_a_faster_actor_are_drawn_no_more(alpha: float) -> None:
    """The slow actor's segment stays the oldest; what the fast one overwrote lies behind it."""
    replay, source, counters = replay_of(prioritised(alpha=alpha))
    slow, fast = acted(1), scripted.Sender(scripted.layout_of(scripted.config(IQN(n_step=1), LENGTH)), 1, 3)
    source.arrive(slow.ring, slow.finished[0], actor="actor-0")
    chair = scripted.seat(fast, scripted.Performer(), 1)
    for t in range(20 * LENGTH + 1):
        chair.act(scripted.present(t, 1), scripted.never)
        if t and t % LENGTH == 0:
            source.arrive(fast.ring, fast.finished[-1], actor="actor-1")
            replay.fill()
            batch = replay.next_batch(NOW)
            assert batch is not None
            replay.learned(torch.ones(4))
    alive = set(range(18 * LENGTH, 20 * LENGTH)) | set(range(LENGTH))
    assert {t for _ in range(200) for t in steps_of(replay.next_batch(NOW))} == alive
    assert counters["torn.one"] == 0
    if replay._priorities is not None:
        assert replay._priorities.rows == 3 * LENGTH


def test_the_capacity_forgets_the_oldest_however_many_come_at_once() -> None:
    replay, source, _ = replay_of(prioritised(1), 2 * LENGTH)
    sender = acted(400)
    for at, records in enumerate(sender.finished):
        source.arrive(sender.ring, records)
        replay.fill()
        if at % 7 == 0:
            replay.next_batch(NOW)
    assert {t for _ in range(100) for t in steps_of(replay.next_batch(NOW))} == set(range(398 * LENGTH, 400 * LENGTH))
