"""A loop that does not turn is seen, one that was stopped or rests is not; when nothing moves, who waits for what."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from protocol.errors.origin import waiting
from workers.coordination.lifecycle import StallDetector
from workers.runtime import watchdog
from workers.runtime.health import Health
from workers.runtime.metric_names import Identity
from workers.runtime.watchdog import SlowTurns, StallTimer, place_of_thread


def vitals_of(state: str, beat_at: float) -> Health:
    """Of a worker in `state` whose loop turned last at `beat_at`."""
    found = Health()
    found.bind(lambda: state, None)
    found.ticked_at = beat_at
    return found


def looks(stall: StallTimer, vitals: Health, count: int, elapsed: float = 1.0) -> float:
    """The last of so many looks."""
    return [stall.poll(vitals, elapsed) for _ in range(count)][-1]


def test_a_loop_that_stands_still_is_told_and_one_that_turns_is_not_G6() -> None:
    stall, vitals = StallTimer(10.0), vitals_of("acting", 1.0)
    assert looks(stall, vitals, 10) == 0.0
    assert looks(stall, vitals, 1) == 10.0
    vitals.ticked_at = 2.0
    assert looks(stall, vitals, 10) == 0.0


def test_who_is_to_stop_is_given_less_time_but_not_who_rests() -> None:
    for beat_at, state, still in ((1.0, "acting", 3.0), (0.0, "starting", 3.0), (0.0, "ending", 0.0)):
        stall, vitals = StallTimer(10.0), vitals_of(state, beat_at)
        stall.poll(vitals, 1.0)
        assert [stall.poll(vitals, 1.0, 2.5) for _ in range(3)] == [0.0, 0.0, still]


def test_to_begin_may_take_longer_and_who_rests_may_for_ever() -> None:
    assert looks(StallTimer(10.0), vitals_of("acting", 0.0), 50) == 0.0
    assert looks(StallTimer(10.0), vitals_of("acting", 0.0), 51) == 50.0
    assert looks(StallTimer(10.0), vitals_of("starting", 0.0), 50) == 0.0
    assert looks(StallTimer(10.0), vitals_of("starting", 0.0), 51) == 50.0, "its heartbeats go on while a world opens"
    assert looks(StallTimer(10.0), vitals_of("draining", 0.0), 1_000) == 0.0


def test_the_watch_ends_with_the_worker_and_counts_no_time_in_which_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[float] = []
    ended = threading.Event()

    class Clock:
        """Jumps by an hour at the third look."""

        times = iter([0.0, 0.1, 3_600.0, 3_600.1])

        @staticmethod
        def monotonic() -> float:
            now = next(Clock.times)
            if now == 3_600.1:
                ended.set()
            return now

    monkeypatch.setattr(watchdog, "time", Clock)
    monkeypatch.setattr(watchdog, "_end", lambda role, still, *_: seen.append(still))
    monkeypatch.setattr(watchdog, "_TICK", 0.01)
    watchdog.run_watchdog(vitals_of("acting", 1.0), 5.0, ended, print)
    assert seen == []


def test_the_place_where_a_thread_hangs_is_named() -> None:
    entered, release = threading.Event(), threading.Event()

    def hangs_here() -> None:
        entered.set()
        release.wait(60)

    thread = threading.Thread(target=hangs_here)
    thread.start()
    entered.wait(60)
    where = place_of_thread(thread.ident)
    release.set()
    thread.join()
    assert "hangs_here (" in where, "and not in what it called of Python's own"
    assert "test_watchdog.py:" in where
    assert place_of_thread(None) == "an unknown place"


@pytest.mark.parametrize(
    ("turns", "told"),
    [
        ([9.0] * 50, []),
        ([64.0] * 50, [10.0]),
        ([600.0], [10.0]),
        ([12.0, 23.0, 25.0, 3.0, 49.0, 51.0], [10.0, 24.0, 50.0]),
    ],
)
def test_a_slow_turn_is_told_once_and_again_only_one_that_takes_twice_as_long(
    turns: list[float], told: list[float]
) -> None:
    slow = SlowTurns(10.0)
    stills = [still for turn in turns for still in (*np.arange(0.0, turn + 1), 0.0)]
    assert [still for still in stills if slow.poll(still)] == told


@pytest.mark.parametrize("called", ["time.sleep(5)", "threading.Event().wait(5)", "subprocess.run(['sleep', '5'])"])
def test_who_waits_for_the_users_code_says_once_in_which_of_its_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], called: str
) -> None:
    """And nothing of a loop of ours that waits."""
    source = f"import subprocess, threading, time\ndef step():\n    {called}\n"
    space: dict[str, Any] = {}
    exec(compile(source, tmp_path / "bad.py", "exec"), space)
    thread = threading.Thread(target=space["step"], daemon=True)
    thread.start()
    time.sleep(0.2)  # it is where it waits
    frame = watchdog._frame_of
    for number, told in ((thread.ident, [f"step ({tmp_path}/bad.py:3)"]), (threading.get_ident(), [])):
        ended, looked = threading.Event(), list[float]()
        monkeypatch.setattr(watchdog, "_frame_of", lambda _, number=number: frame(number))
        monkeypatch.setattr(watchdog, "_TICK", 0.01)
        monkeypatch.setattr(watchdog, "_SLOW_SECONDS", 0.02)

        def look(ended: threading.Event = ended, looked: list[float] = looked) -> float:
            looked.append(1.0)
            if len(looked) == 20:
                ended.set()
            return math.inf

        health = vitals_of("acting", 1.0)
        health.identity = Identity(role="actor")
        watchdog.run_watchdog(health, 60.0, ended, print, look)
        lines = capsys.readouterr().err.splitlines()
        assert [
            line.startswith(waiting("actor")) and place in line for line, place in zip(lines, told, strict=True)
        ] == [True] * len(told)
    for child in psutil.Process().children():
        if child.name() == "sleep":
            child.kill()


def member(name: str, role: str, silent: float = 0.1) -> dict[str, Any]:
    """A row of the coordinator's table."""
    return {"name": name, "role": role, "incarnation": 1, "state": "acting", "silent": silent}


def test_when_nothing_moves_it_is_said_once_who_waits_for_what_G6() -> None:
    still = StallDetector(60.0)
    workers = [member("actor-0", "actor"), member("learner-a", "learner"), member("learner-b", "learner", 50.0)]
    before = {("actor-0", 1): {"waits.credit.a": 100.0, "waits.credit.b": 3.0}, ("learner-a", 1): {"waits.data.a": 5.0}}
    after = {("actor-0", 1): {"waits.credit.a": 100.0, "waits.credit.b": 63.0}, ("learner-a", 1): {"waits.data.a": 5.0}}
    assert still.update(0.0, 10, workers, [], before) == ""
    assert still.update(59.0, 10, workers, [], after) == ""
    said = still.update(60.0, 10, workers, ["learner-c"], after)
    assert said == (
        "nothing moved for 60 s: actor-0 waits for credit of b, learner-a is acting and waits for nothing, "
        "learner-b is silent, learner-c is not there"
    )
    assert still.update(61.0, 10, workers, [], after) == said
    assert still.stalls == 1
    assert still.update(62.0, 11, workers, [], after) == ""
    assert still.update(90.0, 11, [], [], after) == ""  # nobody was started yet
    assert still.update(149.0, 11, workers, [], after) == ""
