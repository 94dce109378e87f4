"""Seats write exactly the rows that happened, into the slots that were taken."""

from __future__ import annotations

import numpy as np

from protocol.config.run import IQN, PPO
from protocol.errors import EnvironmentFault
from protocol.spaces import World
from protocol.weights.manifest import Version, pack
from tests.faults import raises
from tests.workers import scripted
from workers.environments.base import AgentTimeStep

LENGTH = 4


def play(
    turns: int,
    copies: int = 2,
    frames: int = 1,
    terminated: dict[int, list[int]] | None = None,
    truncated: dict[int, list[int]] | None = None,
    versions: dict[int, int] | None = None,
    first_stream: int = 0,
) -> tuple[scripted.Sender, scripted.Performer]:
    """Acts on observations 0..turns-1; the dicts say at which observation an episode of which copies had ended."""
    policy = scripted.config(IQN(frames=frames) if frames > 1 else PPO(), LENGTH)
    sender, performer = scripted.Sender(scripted.layout_of(policy), copies, 8), scripted.Performer()
    seat = scripted.seat(sender, performer, copies, first_stream)
    for t in range(turns):
        if versions and t in versions:
            performer.packed_version = np.uint64(pack(Version(1, versions[t])))
        turn = scripted.present(t, copies, (terminated or {}).get(t, []), (truncated or {}).get(t, []))
        seat.act(turn, scripted.never)
    return sender, performer


def test_a_row_holds_observation_action_and_the_reward_that_this_action_brought() -> None:
    sender, _ = play(LENGTH + 1)
    (records,) = sender.finished
    columns = sender.ring.columns
    for copy in range(2):
        slot = records["slot"][copy]
        np.testing.assert_array_equal(columns["observation"][slot], [[copy, t] for t in range(LENGTH + 1)])
        np.testing.assert_array_equal(columns["action"][slot, :LENGTH], [0, 1, 2, 3])
        np.testing.assert_array_equal(columns["reward"][slot, :LENGTH], [10 * copy + t for t in range(LENGTH)])
        np.testing.assert_array_equal(columns["log_probability"][slot, :LENGTH], [0, -1, -2, -3])
        np.testing.assert_array_equal(columns["value"][slot, :LENGTH], [0, 2, 4, 6])
        assert not columns["terminated"][slot, :LENGTH].any()
        assert not columns["truncated"][slot, :LENGTH].any()


def test_the_end_of_an_episode_stands_on_its_last_row_and_the_segment_goes_on_D7_K5_U7() -> None:
    sender, _ = play(LENGTH + 1, terminated={2: [1]}, truncated={3: [0]})
    columns, records = sender.ring.columns, sender.finished[0]
    first, second = records["slot"]
    np.testing.assert_array_equal(columns["terminated"][second, :LENGTH], [False, True, False, False])
    np.testing.assert_array_equal(columns["truncated"][first, :LENGTH], [False, False, True, False])
    assert not columns["terminated"][first, :LENGTH].any()
    assert not columns["truncated"][second, :LENGTH].any()
    np.testing.assert_array_equal(columns["observation"][second, :, 1], [0, 1, 2, 3, 4])
    assert records["valid"].tolist() == [LENGTH, LENGTH]


def test_a_truncated_row_keeps_its_true_last_observation_aside_X17_X22() -> None:
    sender, _ = play(LENGTH + 1, terminated={1: [0]}, truncated={2: [0, 1], 4: [1]})
    columns = sender.ring.columns
    first, second = sender.finished[0]["slot"]
    assert columns["final_row"][first].tolist() == [1, -1, -1, -1]
    assert columns["final_row"][second].tolist() == [1, 3, -1, -1]
    assert columns["final_observation"][first, 0].tolist() == [0, 1.5]
    assert columns["final_observation"][second, :2].tolist() == [[1, 1.5], [1, 3.5]]


def test_episodes_span_segments_and_streams_are_numbered_K5() -> None:
    sender, _ = play(3 * LENGTH + 1, terminated={6: [0]}, first_stream=7)
    assert len(sender.finished) == 3
    columns = sender.ring.columns
    seen = np.concatenate([columns["observation"][records["slot"][1], :LENGTH, 1] for records in sender.finished])
    np.testing.assert_array_equal(seen, np.arange(3 * LENGTH))
    for sequence, records in enumerate(sender.finished):
        assert records["stream"].tolist() == [7, 8]
        assert records["stream_sequence"].tolist() == [sequence, sequence]
        assert records["number"].tolist() == [2 * sequence + 1, 2 * sequence + 2]
    assert columns["terminated"][sender.finished[1]["slot"][0], :LENGTH].tolist() == [False, True, False, False]


def test_every_row_carries_the_version_that_acted_it() -> None:
    sender, _ = play(2 * LENGTH + 1, versions={0: 3, 2: 4, 4: 9})
    first, second = (sender.ring.columns["version"][records["slot"][0], :LENGTH] for records in sender.finished)
    assert first.tolist() == [pack(Version(1, v)) for v in (3, 3, 4, 4)]
    assert second.tolist() == [pack(Version(1, 9))] * LENGTH
    bounds = [(int(records["version_min"][0]), int(records["version_max"][0])) for records in sender.finished]
    assert bounds == [(pack(Version(1, 3)), pack(Version(1, 4))), (pack(Version(1, 9)), pack(Version(1, 9)))]


def test_history_rows_repeat_the_last_rows_of_the_segment_before() -> None:
    sender, _ = play(2 * LENGTH + 1, frames=3, terminated={3: [1]})
    columns = sender.ring.columns
    assert [int(records["before"][0]) for records in sender.finished] == [0, 2]
    second = sender.finished[1]["slot"][1]
    np.testing.assert_array_equal(columns["observation"][second, :, 1], np.arange(LENGTH - 2, 2 * LENGTH + 1))
    assert columns["terminated"][second, :2].tolist() == [True, False]


def test_episode_returns_are_summed_per_copy_D9() -> None:
    policy = scripted.config(PPO(), LENGTH)
    sender, performer = scripted.Sender(scripted.layout_of(policy), 2, 8), scripted.Performer()
    seat = scripted.seat(sender, performer, 2)
    ends = {3: ([0], []), 4: ([], [1])}
    for t in range(6):
        seat.act(scripted.present(t, 2, *ends.get(t, ([], []))), scripted.never)
    assert seat.episodes.take() == (2, float((0 + 1 + 2) + (10 + 11 + 12 + 13)), 3 + 4)
    assert seat.episodes.take() == (0, 0.0, 0)
    assert seat.open_rows == 2


def test_observations_of_another_number_of_copies_are_told_in_one_sentence() -> None:
    policy = scripted.config(PPO(), LENGTH)
    seat = scripted.seat(scripted.Sender(scripted.layout_of(policy), 2, 2), scripted.Performer(), 2)
    with raises(EnvironmentFault, "observations_miscounted", agent="one", expected=2, count=1):
        seat.act(scripted.present(0, 1), scripted.never)


def test_where_episodes_are_shorter_than_episode_steps_says_segments_are_shorter_and_nothing_is_lost() -> None:
    """The side table of 4 rows has 1 entry; every turn but the first tells of a truncation."""
    world = World(id="hasty", agents=(scripted.AGENT,), episode_steps=100)
    policy = scripted.config(PPO(), LENGTH)
    layout = scripted.segment_layout(world, world.places[0], policy)
    sender = scripted.Sender(layout, 1, 8)
    seat = scripted.seat(sender, scripted.Performer(), 1)

    def turn(t: int) -> AgentTimeStep:
        return scripted.present(t, 1, truncated=[0] if t else [])

    for t in range(6):
        seat.act(turn(t), scripted.never)
    for t, records in enumerate(sender.finished):
        slot = records["slot"][0]
        assert records["valid"].tolist() == [1]
        assert sender.ring.columns["observation"][slot, 0].tolist() == [0, t]
        assert sender.ring.columns["reward"][slot, 0] == t
        assert sender.ring.columns["truncated"][slot, 0]
        assert sender.ring.columns["final_row"][slot].tolist() == [0]
        assert sender.ring.columns["final_observation"][slot, 0].tolist() == [0, t + 0.5]
    assert len(sender.finished) == 4
