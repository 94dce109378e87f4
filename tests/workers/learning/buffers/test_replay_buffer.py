"""Replay: when it is ready, what it draws from, what it forgets."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.config.run import IQN
from protocol.experience.receiver import Arrival
from protocol.experience.ring_buffer import Records
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from tests.workers import scripted
from workers.learning.buffers.replay_buffer import ReplayBuffer, ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.diagnostics.refused_batches import Origin
from workers.planning.rate_limiter import RateLimiter

NOW = Version(1, 2)
LENGTH = 4


def replay_of(
    batch: int = 4,
    start: int = 1,
    capacity: int = 1_000_000,
    frames: int = 1,
    ratio: float = 100.0,
    ring_blocks: int = 1_000_000,
    block: int = 1,
    pace: RateLimiter | None = None,
) -> tuple[ReplayBuffer, scripted.Source, Counters]:
    """A replay whose rate_limiter, unless it is `pace`, hardly ever says no."""
    config = IQN(batch_size=batch, learning_starts=1, frames=frames, n_step=1, buffer_capacity=1_000_000)
    source, counters = scripted.Source(), scripted.counters()
    context = BufferContext("one", scripted.layout_of(scripted.config(config, LENGTH)), source, counters)
    limiter, room = pace or scripted.unpaced(ratio, start, batch, 1_000), ReplayRoom(capacity, ring_blocks, block)
    return ReplayBuffer(context, scripted.Performer().interface, config, room, limiter, 0), source, counters


def arrive(source: scripted.Source, sender: scripted.Sender, actor: str = "actor-0", owned: bool = False) -> None:
    """All that was finished, one announcement for each block."""
    for records in sender.finished:
        source.arrive(sender.ring, records, owned, actor)


def acted(segments: int, copies: int = 1, frames: int = 1, blocks: int | None = None) -> scripted.Sender:
    """Segments of `LENGTH` steps for replay."""
    policy = scripted.config(IQN(frames=frames, buffer_capacity=1_000_000), LENGTH)
    return scripted.acted(policy, segments, copies, blocks)


def steps_of(batch: object) -> list[int]:
    """The step numbers of a batch's transitions."""
    return [int(t) for t in batch.observation[:, -1, 1]]  # type: ignore[attr-defined]


def test_too_little_data_is_not_ready_and_one_row_more_is_B3_U8() -> None:
    """The boundary of the batch size itself, approached from below."""
    for batch in (LENGTH - 1, LENGTH, LENGTH + 1):
        replay, source, _ = replay_of(batch=batch)
        assert replay.next_batch(NOW) is None
        sender = acted(2)
        for records in sender.finished:
            source.arrive(sender.ring, records)
            replay.fill()
            drawn = replay.next_batch(NOW)
            assert (drawn is None) == (replay.rows < batch)


def test_the_governor_decides_when_enough_rows_are_there() -> None:
    replay, source, _ = replay_of(batch=2, start=LENGTH + 1, ratio=1.0)
    sender = acted(2)
    source.arrive(sender.ring, sender.finished[0])
    replay.fill()
    assert replay.next_batch(NOW) is None
    source.arrive(sender.ring, sender.finished[1])
    replay.fill()
    assert replay.next_batch(NOW) is not None
    assert replay.next_batch(NOW) is None  # 2 of (8 - 5) * 1 rows are drawn


@pytest.mark.parametrize("batch", [3, 10, 12])
def test_a_row_is_drawn_once_in_a_batch_B7(batch: int) -> None:
    """Few of many, and nearly all of them."""
    replay, source, _ = replay_of(batch=batch)
    arrive(source, acted(3))
    replay.fill()
    for _ in range(50):
        steps = steps_of(replay.next_batch(NOW))
        assert len(set(steps)) == batch


def test_every_valid_row_is_drawn_and_no_other() -> None:
    replay, source, _ = replay_of(batch=2)
    sender = acted(3)
    records = np.concatenate(sender.finished)
    records["valid"] = [4, 1, 3]
    source.arrive(sender.ring, records)
    replay.fill()
    assert replay.rows == 8
    drawn = {t for _ in range(200) for t in steps_of(replay.next_batch(NOW))}
    assert drawn == {0, 1, 2, 3, 4, 8, 9, 10}


def replays_on(*devices: torch.device, **keys: float) -> list[tuple[ReplayBuffer, scripted.Source, Counters]]:
    """Of the same configuration, as one with priorities if `keys` say so, and the same five segments."""
    config = IQN(batch_size=LENGTH, learning_starts=1, n_step=1, **keys)  # type: ignore[arg-type] # of one kind
    layout, interface = scripted.layout_of(scripted.config(config, LENGTH)), scripted.Performer().interface
    found = []
    for device in devices:
        source, rate_limiter, counters = scripted.Source(), scripted.unpaced(1e6, 1, LENGTH, 1_000), scripted.counters()
        context = BufferContext("one", layout, source, counters, device)
        replay = ReplayBuffer(context, interface, config, ReplayRoom(1_000, 1_000), rate_limiter, 0)
        found.append((replay, source, counters))
        arrive(source, acted(5))
        found[-1][0].fill()
    return found


def test_batches_are_on_the_learners_device_and_what_they_are_elsewhere_E9(cuda: torch.device) -> None:
    """Several of them, before any is looked at; those that are drawn ahead, too."""
    drawn = []
    for number, (replay, _, counters) in enumerate(replays_on(torch.device("cpu"), cuda)):
        batches, origins = [], []
        for _ in range(4):
            batches.append(replay.next_batch(NOW))
            trained = counters["trained.one"]
            before = replay.provenance()
            replay.prepare(NOW)
            replay.prepare(NOW)
            assert replay.provenance() == before, "of the batch that is trained on"
            assert counters["trained.one"] == trained, "what is drawn ahead has taught nothing yet"
            assert (replay._ahead is not None) == bool(number)
            origins.append(before)
        drawn.append((batches, origins))
    (here, of_here), (there, of_there) = drawn
    assert of_here == of_there
    for one, other in zip(here, there, strict=True):
        assert one is not None
        assert other is not None
        for name in ("observation", "action", "reward", "discount", "next_observation"):
            assert getattr(other, name).device.type == "cuda"
            assert torch.equal(getattr(one, name), getattr(other, name).cpu()), name
    assert len({tuple(steps_of(batch)) for batch in here}) == 4


def test_what_was_drawn_ahead_is_in_no_checkpoint_and_lags_when_it_is_trained_on(cuda: torch.device) -> None:
    """A run that goes on from it draws that batch as its next."""
    found = []
    for replay, _, counters in replays_on(torch.device("cpu"), cuda):
        for turn in range(3):
            assert replay.next_batch(Version(1, 10 + turn)) is not None
            replay.prepare(NOW)
        state = replay.state(1_000)
        lags = counters["lag_rows.one"], counters["lag_sum.one"], counters["trained.one"], counters["held.one"]
        found.append((state["governor"].tolist(), state["random"].tolist(), lags))
    assert found[0] == found[1]


def test_what_is_admitted_and_forgotten_meanwhile_changes_nothing_of_what_was_drawn_ahead(cuda: torch.device) -> None:
    """Though places of records move when the oldest are forgotten."""
    ((replay, source, _),) = replays_on(cuda)
    assert replay.next_batch(NOW) is not None
    replay.prepare(NOW)
    assert replay._ahead is not None
    expected = [(origin.number, origin.row) for origin in origins_of(replay)]
    arrive(source, acted(700))
    replay.fill()
    batch = replay.next_batch(NOW)
    assert batch is not None
    assert [(origin.number, origin.row) for origin in replay.provenance()] == expected
    assert [LENGTH * (number - 1) + (row or 0) for number, row in expected] == steps_of(batch)


def origins_of(replay: ReplayBuffer) -> list[Origin]:
    """Of the batch that was drawn ahead."""
    assert replay._ahead is not None
    actors, records, row, ends = replay._ahead.origins
    return [Origin.of(*one) for one in zip(actors, records, row.tolist(), ends, strict=True)]


def test_where_nothing_could_be_drawn_ahead_a_batch_is_told_of_with_its_own_origins(
    cuda: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((replay, _, _),) = replays_on(cuda)
    assert replay.next_batch(NOW) is not None
    with monkeypatch.context() as closed:
        closed.setattr(replay._rate_limiter, "sampled", 10**9)
        replay.prepare(NOW)
    assert replay._ahead is None
    batch = replay.next_batch(NOW)
    told = [LENGTH * (origin.number - 1) + (origin.row or 0) for origin in replay.provenance()]
    assert told == steps_of(batch)


def test_where_the_errors_of_a_batch_decide_on_the_next_one_none_is_drawn_ahead(cuda: torch.device) -> None:
    ((replay, _, _),) = replays_on(cuda, priority_alpha=0.5)
    assert replay.next_batch(NOW) is not None
    replay.prepare(NOW)
    assert replay._ahead is None


@settings(max_examples=40, deadline=None)
@given(
    blocks=st.integers(2, 6),
    segments=st.integers(1, 20),
    copies=st.integers(1, 3),
    frames=st.integers(1, 4),
    seed=st.integers(0, 1_000),
)
def test_no_sample_crosses_the_write_head_at_any_fill_B6_U9(
    blocks: int, segments: int, copies: int, frames: int, seed: int
) -> None:
    """The ring is written on and on while it is sampled; every successor drawn is the step after, of the same copy."""
    policy = scripted.config(IQN(frames=frames, n_step=1, buffer_capacity=1_000_000), LENGTH)
    replay, source, counters = replay_of(batch=2, frames=frames)
    sender = scripted.Sender(scripted.layout_of(policy), copies, blocks)
    chair = scripted.seat(sender, scripted.Performer(), copies)
    announced = 0
    for t in range(segments * LENGTH + 1):
        chair.act(scripted.present(t, copies), scripted.never)
        if (t + seed) % 3 == 0:
            for records in sender.finished[announced:]:
                source.arrive(sender.ring, records)
            announced = len(sender.finished)
            replay.fill()
        batch = replay.next_batch(NOW)
        if batch is None:
            continue
        observed, following = batch.observation[:, -1], batch.next_observation[:, -1]
        assert (following[:, 0] == observed[:, 0]).all()
        assert (following[:, 1] == observed[:, 1] + 1).all()
        assert (batch.reward == 10 * observed[:, 0] + observed[:, 1]).all()
        assert (observed[:, 1] <= t).all()
        oldest = max(0, (len(sender.finished) - blocks + 1) * LENGTH)
        assert (observed[:, 1] >= oldest).all()
    assert counters["torn.one"] == counters["dropped.recycled.one"]  # none while it copied


def test_what_was_overwritten_before_it_was_admitted_is_dropped_and_counted() -> None:
    replay, source, counters = replay_of(batch=1)
    sender = acted(5, blocks=3)
    arrive(source, sender)
    replay.fill()
    assert counters["dropped.recycled.one"] == counters["torn.one"] == 3
    assert counters["received.one"] == 2
    assert sum(count for _, count in source.settled) == 5
    assert {t for _ in range(100) for t in steps_of(replay.next_batch(NOW))} == set(range(3 * LENGTH, 5 * LENGTH))


def test_of_each_ring_only_what_its_actor_surely_keeps_is_drawn_B13() -> None:
    """Two actors at different paces: the older part of the faster one's ring is left alone, though still whole."""
    replay, source, _ = replay_of(batch=4, ring_blocks=2)
    slow, fast = acted(1), acted(6)
    source.arrive(slow.ring, slow.finished[0], actor="actor-0")
    arrive(source, fast, "actor-1")
    replay.fill()
    drawn = {t for _ in range(200) for t in steps_of(replay.next_batch(NOW))}
    assert drawn == set(range(LENGTH)) | set(range(4 * LENGTH, 6 * LENGTH))


def test_of_each_ring_blocks_are_kept_however_few_segments_are_in_them_B13() -> None:
    """Blocks of two slots of which one is a segment: two blocks are two segments, and not the four that fit."""
    (replay, source, _), sender = replay_of(ring_blocks=2, block=2), acted(6, copies=2)
    for records in sender.finished:
        source.arrive(sender.ring, records[:1])
    replay.fill()
    drawn = {t for _ in range(200) for t in steps_of(replay.next_batch(NOW))}
    assert drawn == set(range(4 * LENGTH, 6 * LENGTH))


def test_too_little_that_is_usable_is_not_ready_either_B3() -> None:
    """More rows than a batch were admitted, but of a single actor's ring only a part counts."""
    replay, source, _ = replay_of(batch=3 * LENGTH, ring_blocks=2)
    sender = acted(6)
    for records in sender.finished:
        source.arrive(sender.ring, records)
    other = acted(1)
    source.queue.appendleft(Arrival("actor-1", 1, other.ring, other.finished[0], owned=False))
    replay.fill()
    assert len(set(steps_of(replay.next_batch(NOW)))) == 3 * LENGTH
    replay, source, _ = replay_of(batch=3 * LENGTH + 1, ring_blocks=2)
    source.arrive(other.ring, other.finished[0])
    arrive(source, sender)
    replay.fill()
    assert replay.next_batch(NOW) is None


def test_the_capacity_forgets_the_oldest_and_gives_pool_slots_back_B2() -> None:
    replay, source, _ = replay_of(batch=1, capacity=2 * LENGTH)
    sender = acted(5)
    arrive(source, sender, owned=True)
    replay.fill()
    assert replay.rows == 2 * LENGTH
    assert source.given_back == [0, 1, 2]
    assert replay.uses(sender.ring)
    assert {t for _ in range(100) for t in steps_of(replay.next_batch(NOW))} == set(range(3 * LENGTH, 5 * LENGTH))


def _of_one_row(records: Records) -> Records:
    short = records.copy()
    short["valid"] = 1
    return short


def test_short_segments_take_no_more_pool_slots_than_full_ones_B2() -> None:
    """The pool is planned for full ones: with all of it lent to short ones nothing could arrive any more."""
    replay, source, _ = replay_of(batch=1, capacity=2 * LENGTH)
    sender = acted(5)
    for records in sender.finished:
        source.arrive(sender.ring, _of_one_row(records), owned=True)
    replay.fill()
    assert source.given_back == [0, 1, 2]
    assert {t for _ in range(100) for t in steps_of(replay.next_batch(NOW))} == {3 * LENGTH, 4 * LENGTH}


def test_segments_too_short_for_a_batch_stop_neither_side_for_good() -> None:
    """The rate limiter waits for a batch that these rows do not make: later ones, which are longer, still come in."""
    pace = RateLimiter(1, LENGTH, LENGTH, LENGTH)
    replay, source, _ = replay_of(LENGTH, capacity=2 * LENGTH, ring_blocks=2, pace=pace)
    sender = acted(40)
    for at, records in enumerate(sender.finished):
        source.arrive(sender.ring, _of_one_row(records) if at < 39 else records)
    drawn = []
    for _ in range(40):
        replay.fill()
        drawn.append(replay.next_batch(NOW))
    assert not source.queue
    assert any(batch is not None for batch in drawn)


def test_a_segment_counts_as_trained_once_however_often_it_is_drawn() -> None:
    replay, source, counters = replay_of(batch=LENGTH)
    sender = acted(1)
    source.arrive(sender.ring, sender.finished[0])
    replay.fill()
    assert (counters["held.one"], counters["trained.one"]) == (1, 0)
    for _ in range(3):
        replay.next_batch(NOW)
    assert (counters["held.one"], counters["trained.one"]) == (0, 1)


def test_arrivals_wait_while_the_governor_paces_but_not_at_the_end() -> None:
    replay, source, counters = replay_of(1, pace=RateLimiter(0.25, 1, 1, LENGTH))
    arrive(source, acted(6))
    replay.fill()
    waiting = len(source.queue)
    assert 0 < waiting < 6
    assert counters["rate_limited.one"] == waiting  # the wait has a name
    replay.fill(everything=True)
    assert len(source.queue) == counters["rate_limited.one"] == 0


def test_what_was_written_over_while_the_learner_was_away_is_made_up_for_without_pacing_A2() -> None:
    """A2: else the few rows that are left would be replayed until the rate limiter lets in more."""
    replay, source, _ = replay_of(1, pace=RateLimiter(1, 4 * LENGTH, 1, LENGTH))
    sender = acted(20)
    arrive(source, sender)
    replay.fill()
    paced = 20 - len(source.queue)
    assert 4 <= paced < 10
    sender.ring.begin(slice(0, paced - 1))  # its actor went on
    for _ in range(2):
        assert replay.next_batch(NOW) is not None
        replay.fill()
    assert replay.rows >= min(4, paced // 2) * LENGTH
    assert replay.next_batch(NOW) is not None


def test_a_replay_whose_rows_are_all_overwritten_while_it_copies_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """U8: whatever the actor does meanwhile, too little data is no exception."""
    replay, source, _ = replay_of(batch=2)
    sender = acted(1)
    source.arrive(sender.ring, sender.finished[0])
    replay.fill()

    def overwritten(index: object, row: object) -> None:
        sender.ring.begin(slice(0, sender.ring.slots))

    monkeypatch.setattr(replay, "_copy", overwritten)
    assert replay.next_batch(NOW) is None
    assert replay.rows == 0
