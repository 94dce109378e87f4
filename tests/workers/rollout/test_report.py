"""What an actor tells of its episodes: each once, and so that what is told again is known."""

from __future__ import annotations

from typing import Any, cast

from protocol.memory.counters import Counters
from workers.rollout.report import ActorReport


class Seat:
    """One that has ended `count` episodes since it was last asked."""

    def __init__(self) -> None:
        self.count = 0

    def take_episodes(self) -> tuple[int, float]:
        count, self.count = self.count, 0
        return count, 1.5 * count


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
            seat.count = count
        report.collect()
    report.count(20, 80)
    seats[0].count = 1
    report.collect()
    assert report.snapshot().episodes == [
        ("gem", 40, 3, 4.5),
        ("gem", 41, 1, 1.5),
        ("shell", 41, 1, 1.5),
        ("gem", 80, 1, 1.5),
    ]
