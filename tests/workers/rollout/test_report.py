"""What an actor tells of its episodes: each once, and so that what is told again is known."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from protocol.memory.shared_file import Counters
from workers.rollout.report import ActorReport
from workers.rollout.segment_block import Index
from workers.rollout.stream_state import EpisodeReturns


class Ended(EpisodeReturns):
    """Of which `count` have ended since it was last asked."""

    count = 0

    def take(self) -> tuple[int, float, int]:
        count, self.count = self.count, 0
        return count, 1.5 * count, 7 * count


class Seat:
    """Of one stream."""

    def __init__(self) -> None:
        self.episodes = Ended(1)


def test_entries_of_a_policy_have_more_steps_each() -> None:
    """Also where episodes ended between two looks without a step."""
    seats = [Seat(), Seat(), Seat()]
    report = ActorReport(
        Counters(None, *ActorReport.names(["gem", "shell"])),
        10**6,
        {},
        {},
        cast("Any", {"gem": seats[:2], "shell": seats[2:]}),
    )
    report.count(10, 40)
    for ended in ((1, 2, 0), (0, 1, 1), (0, 0, 0)):
        for seat, count in zip(seats, ended, strict=True):
            seat.episodes.count = count
        report.collect()
    report.count(10, 40)
    seats[0].episodes.count = 1
    report.collect()
    assert report.snapshot().episodes == [
        ("gem", 40, 3, 4.5, 21),
        ("gem", 41, 1, 1.5, 7),
        ("shell", 41, 1, 1.5, 7),
        ("gem", 80, 1, 1.5, 7),
    ]


def test_episodes_that_began_in_the_opening_are_told_apart_however_late_they_end() -> None:
    """Of three streams one ends at once, and again; one long after; one comes later, and is none of the first."""
    episodes = EpisodeReturns(3)
    both, never = np.array([0, 1]), np.zeros(2, np.bool_)
    episodes.add(both, np.zeros(2, np.float32), never)
    episodes.add(both, np.ones(2, np.float32), np.array([True, False]))
    episodes.add(both, np.ones(2, np.float32), np.array([True, False]))
    assert episodes.first == (1, 2, 2.0)
    episodes.add(both, np.ones(2, np.float32), never)
    episodes.close_opening()
    episodes.add(slice(None), np.ones(3, np.float32), np.array([True, False, True]))
    episodes.add(slice(None), np.ones(3, np.float32), np.array([True, False, True]))
    assert episodes.first == (1, 3, 4.0), "of stream 0 the third as well, and no fourth"
    episodes.add(slice(None), np.ones(3, np.float32), np.array([True, True, True]))
    assert episodes.first == (0, 4, 10.0)


def test_the_length_of_an_episode_is_how_often_its_agent_acted() -> None:
    """In all streams at once or in some, whatever else arrives between its turns; nothing of the episode before."""
    episodes = EpisodeReturns(3)

    def told(streams: Index, *done: bool) -> None:
        episodes.add(streams, np.zeros(len(done), np.float32), np.array(done))

    for last in (False, False, True):
        episodes.act(slice(None))
        told(slice(None), last, False, last)
    assert episodes.take() == (2, 0.0, 6)
    episodes.act(np.array([0, 1]))  # stream 2 is away
    told(np.array([1]), False)  # a reward between two turns
    told(np.array([0, 1]), True, True)
    assert episodes.take() == (2, 0.0, 1 + 4)
    episodes.act(slice(None))
    told(slice(None), False, True, True)
    assert episodes.take() == (2, 0.0, 2)
    episodes.act(slice(None))
    told(slice(None), True, False, False)
    assert episodes.take() == (1, 0.0, 2)


def test_the_opening_is_the_first_twentieth_of_a_quota_and_over_for_who_comes_later() -> None:
    for first, going in ((True, 1), (False, 0)):
        seat = Seat()
        counters = Counters(None, *ActorReport.names(["gem"]))
        report = ActorReport(counters, 1_000, {}, {}, cast("Any", {"gem": [seat]}))
        report.begin(first)
        for made, steps in ((40, 40), (20, 60), (20, 80)):
            seat.episodes.add(slice(None), np.ones(1, np.float32), np.array([steps == 80]))
            report.count(made, made)
            assert counters["first_going.gem"] == (going if steps < 80 else 0)
        assert counters["first_ended.gem"] == going
        assert not seat.episodes._opening
