"""Who hangs: missing in the coordinator's table for long enough, and nobody else."""

from __future__ import annotations

import platform
from typing import Any

from launch.local.hang_detector import HangDetector, SilenceWatch

ME = {"name": "actor-0", "incarnation": 1, "pid": 7, "host": platform.node(), "silent": 1.0}


def view(*workers: dict[str, Any], stage: str = "running", left: tuple[list[Any], ...] = ()) -> dict[str, Any]:
    """What the coordinator sees."""
    return {"workers": list(workers), "stage": stage, "left": list(left)}


def test_a_worker_that_vanished_hangs_after_a_while_and_one_never_seen_does_not() -> None:
    presence = HangDetector(3.0, to_join=20.0)
    assert presence.hanging(view(), {7, 8}, 0.0) == []
    assert presence.hanging(view(ME), {7, 8}, 1.0) == []
    assert presence.hanging(view(), {7, 8}, 2.0) == []
    assert presence.hanging(view(), {7, 8}, 4.9) == []
    assert presence.hanging(view(), {7, 8}, 5.0) == [(7, 5.0)]


def test_one_that_left_in_order_or_came_back_or_died_does_not_hang() -> None:
    for between in (view(ME), view(left=(["actor-0", 1],)), view(stage="actors_draining"), {}):
        presence = HangDetector(3.0, to_join=20.0)
        presence.hanging(view(ME), {7}, 0.0)
        presence.hanging(view(), {7}, 1.0)
        presence.hanging(between, {7}, 3.0)
        assert presence.hanging(view(), {7}, 5.0) == []
    presence = HangDetector(3.0, to_join=20.0)
    presence.hanging(view(ME), {7}, 0.0)
    presence.hanging(view(), set(), 1.0)
    assert presence.hanging(view(), {7}, 9.0) == []  # another process that was given the same number


def test_workers_of_other_machines_are_not_ours_to_kill() -> None:
    presence = HangDetector(3.0, to_join=20.0)
    presence.hanging(view({**ME, "host": "elsewhere"}), {7}, 0.0)
    presence.hanging(view(), {7}, 1.0)
    assert presence.hanging(view(), {7}, 9.0) == []


def test_one_that_never_joined_hangs_after_its_own_while_U13() -> None:
    presence = HangDetector(3.0, to_join=20.0)
    assert presence.hanging(view(ME), {7, 8}, 0.0) == []
    assert presence.hanging(view(ME), {7, 8}, 19.0) == []
    assert presence.hanging(view(ME), {7, 8}, 20.0) == [(8, 20.0)]
    assert presence.hanging({}, {7, 8, 9}, 30.0) == []  # the coordinator is away: nobody can join
    assert presence.hanging(view(ME), {7, 8}, 49.0) == []
    assert presence.hanging(view(ME), {7, 8}, 69.0) == [(8, 20.0)]


def test_silence_counts_only_while_somebody_listens() -> None:
    silence = SilenceWatch()
    silence.poll(5.0, 5.0)
    for tenths in range(51, 81):
        said = silence.poll(5.0, tenths / 10)
    assert 2.9 < said < 3.1
    assert silence.poll(5.0, 1_000.0) < 4.1  # the supervisor was stopped
    assert silence.poll(1_000.1, 1_000.1) == 0.0
