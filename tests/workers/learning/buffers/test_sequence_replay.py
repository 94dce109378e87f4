"""Replay of whole segments: each is what an actor saw and did, with the state that it began in, and zeros behind."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.config.run import DQN, Network, PolicyConfig
from protocol.memory.shared_file import Counters
from protocol.weights.manifest import Version
from tests.workers import scripted
from workers.learning.buffers.replay_buffer import ReplayRoom
from workers.learning.buffers.segment_check import BufferContext
from workers.learning.buffers.sequence_replay import SequenceReplay

NOW = Version(1, 2)
LENGTH = 4
ENDS = {3: "terminated", 6: "truncated", 8: "truncated"}
"""Turn -> how the episode before it ended."""


class Remembering(scripted.Performer):
    """Counts the turns of its episode."""

    def __init__(self) -> None:
        super().__init__()
        self.state = 2

    def act(
        self, observation: NDArray, noise: object, *rest: Any, state: Any = None, **more: Any
    ) -> dict[str, NDArray]:
        return {**super().act(observation, noise), "state": state + np.array([1, 10], np.float32)}


def replay_of(batch: int) -> tuple[SequenceReplay, Counters]:
    """After three segments of one copy, the last of which has two rows that count."""
    policy = PolicyConfig(
        algorithm=DQN(batch_size=batch, learning_starts=1),
        model_config=Network.model_validate({"core": {"name": "gru", "size": 2}}),
        segment_length=LENGTH,
    )
    source, counters = scripted.Source(), scripted.counters()
    layout, performer = scripted.layout_of(policy), Remembering()
    sender = scripted.Sender(layout, 1, 8)
    chair = scripted.seat(sender, performer, 1)
    for t in range(3 * LENGTH + 1):
        ended = {ENDS[t]: [0]} if t in ENDS else {}
        chair.act(scripted.present(t, 1, **ended), scripted.never)
    context = BufferContext("one", layout, source, counters)
    limiter = scripted.unpaced(100.0, 1, batch, 1_000)
    algorithm = policy.algorithm
    assert isinstance(algorithm, DQN)
    replay = SequenceReplay(context, performer.interface, algorithm, ReplayRoom(1_000, 1_000), limiter, 0)
    records = np.concatenate(sender.finished)
    records["valid"][-1] = 2
    source.arrive(sender.ring, records)
    replay.fill()
    return replay, counters


def test_a_segment_is_drawn_whole_with_the_state_that_it_began_in() -> None:
    replay, _ = replay_of(2 * LENGTH)
    begun = {0: 0, 4: 1, 8: 0}
    """First turn of a segment -> turns of its episode before it."""
    seen = set()
    for _ in range(40):
        batch = replay.next_batch(NOW)
        assert batch is not None
        assert len(batch.valid) == 2
        for i in range(2):
            first, valid = int(batch.observation[i, 0, 1]), int(batch.valid[i])
            seen.add(first)
            assert valid == (2 if first == 8 else LENGTH)
            turns = np.arange(first, first + valid)
            np.testing.assert_array_equal(batch.observation[i, : valid + 1, 1], [*turns, first + valid])
            np.testing.assert_array_equal(batch.action[i, :valid], turns % 5)
            np.testing.assert_array_equal(batch.reward[i, :valid], turns)
            for kind in ("terminated", "truncated"):
                expected = [ENDS.get(int(turn) + 1) == kind for turn in turns]
                assert getattr(batch, kind)[i, :valid].tolist() == expected
            for column in (
                batch.observation[i, valid + 1 :],
                *(one[i, valid:] for one in (batch.action, batch.reward)),
            ):
                assert not column.any()
            assert batch.state[i].tolist() == [begun[first], 10 * begun[first]]
            finals = {int(row): last for row, last in zip(batch.final_row[i], batch.final_observation[i], strict=True)}
            finals.pop(-1, None)
            cut = {int(turn - first): float(turn) + 0.5 for turn in turns if ENDS.get(int(turn) + 1) == "truncated"}
            assert {row: float(last[1]) for row, last in finals.items()} == cut
    assert seen == set(begun)


def test_as_many_segments_are_drawn_as_make_a_batch_where_they_are_full() -> None:
    for batch, expected in ((1, 1), (LENGTH, 1), (2 * LENGTH + 1, 2)):
        replay, counters = replay_of(batch)
        drawn = replay.next_batch(NOW)
        assert drawn is not None
        assert len(drawn.valid) == expected
        assert 1 <= counters["trained.one"] <= expected


def test_what_paces_replay_counts_the_rows_that_are_drawn() -> None:
    """Not those of `batch_size`, whether segments are longer or have fewer."""
    replay, _ = replay_of(1)
    drawn, short = 0, False
    for _ in range(20):
        batch = replay.next_batch(NOW)
        assert batch is not None
        drawn, short = drawn + batch.rows, short or batch.rows == 2
        assert replay.state(0)["governor"][1] == drawn
    assert short
