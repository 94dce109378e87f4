"""Who hangs: missing in the coordinator"s table for long enough, and nobody else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from launch.local.hang_detector import HangDetector, SilenceWatch
from launch.local.process import end_all, start_process
from protocol.messages.core import Join
from tests.tools import PYTHON_PATH
from tests.workers.coordination.test_membership import admitted, join, members_of

ME = {"name": "actor-0", "incarnation": 1, "pid": 7, "process": "one", "silent": 1.0}


def view(*workers: dict[str, Any], stage: str = "running", left: tuple[list[Any], ...] = ()) -> dict[str, Any]:
    """What the coordinator sees."""
    return {"workers": list(workers), "stage": stage, "left": list(left)}


def test_a_worker_that_vanished_hangs_after_a_while_and_one_never_seen_does_not() -> None:
    presence = HangDetector(3.0, to_join=20.0)
    assert presence.hanging(view(), {7: "one", 8: "two"}, 0.0) == []
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 1.0) == []
    assert presence.hanging(view(), {7: "one", 8: "two"}, 2.0) == []
    assert presence.hanging(view(), {7: "one", 8: "two"}, 4.9) == []
    assert presence.hanging(view(), {7: "one", 8: "two"}, 5.0) == [(7, 5.0)]


def test_one_that_left_in_order_or_came_back_or_died_does_not_hang() -> None:
    for between in (view(ME), view(left=(["actor-0", 1],)), view(stage="actors_draining"), {}):
        presence = HangDetector(3.0, to_join=20.0)
        presence.hanging(view(ME), {7: "one"}, 0.0)
        presence.hanging(view(), {7: "one"}, 1.0)
        presence.hanging(between, {7: "one"}, 3.0)
        assert presence.hanging(view(), {7: "one"}, 5.0) == []
    presence = HangDetector(3.0, to_join=20.0)
    presence.hanging(view(ME), {7: "one"}, 0.0)
    presence.hanging(view(), {}, 1.0)
    assert presence.hanging(view(), {7: "one"}, 9.0) == []  # another process that was given the same number


def test_who_only_says_that_it_is_a_process_of_ours_neither_has_it_killed_nor_hides_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is starting, and another that has joined with its pid: on another machine, or with bad intent."""
    (tmp_path / "starts.py").write_text(
        "from protocol.control.heartbeat import introduction\n"
        "print(introduction('actor', '', '').model_dump_json(), flush=True)\ninput()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{PYTHON_PATH}")
    process = start_process("actor", ["starts"], tmp_path / "starts.out", pipe=True)
    assert process.popen.stdout is not None
    own = Join.model_validate_json(process.popen.stdout.readline())
    end_all([process], 60)
    running, presence = {own.pid: process.mark}, HangDetector(3.0, to_join=20.0)
    members = members_of(tmp_path, actors=2)

    def hanging(now: float) -> list[tuple[int, float]]:
        return presence.hanging(view(*members.table()), running, now)

    admitted(members, join("actor", "liar", pid=own.pid))
    assert hanging(0.0) == []
    assert members.expire(time.monotonic() + 1_000)
    assert hanging(1.0) == hanging(9.0) == []
    admitted(members, own)
    assert hanging(10.0) == []
    assert members.expire(time.monotonic() + 1_000)
    admitted(members, join("actor", "liar", name="actor-1", pid=own.pid))
    assert hanging(12.0) == []
    assert [pid for pid, _ in hanging(16.0)] == [own.pid]


def test_one_that_never_joined_hangs_after_its_own_while_U13() -> None:
    presence = HangDetector(3.0, to_join=20.0)
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 0.0) == []
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 19.0) == []
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 20.0) == [(8, 20.0)]
    assert (
        presence.hanging({}, {7: "one", 8: "two", 9: "three"}, 30.0) == []
    )  # the coordinator is away: nobody can join
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 49.0) == []
    assert presence.hanging(view(ME), {7: "one", 8: "two"}, 69.0) == [(8, 20.0)]


def test_silence_counts_only_while_somebody_listens() -> None:
    silence = SilenceWatch()
    silence.poll(5.0, 5.0)
    for tenths in range(51, 81):
        said = silence.poll(5.0, tenths / 10)
    assert 2.9 < said < 3.1
    assert silence.poll(5.0, 1_000.0) < 4.1  # the supervisor was stopped
    assert silence.poll(1_000.1, 1_000.1) == 0.0
