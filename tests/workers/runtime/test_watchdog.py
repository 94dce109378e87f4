"""A loop that does not turn is seen, one that was stopped or rests is not; when nothing moves, who waits for what."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from workers.coordination.stall_detector import StallDetector
from workers.runtime import watchdog
from workers.runtime.health import Health
from workers.runtime.watchdog import StallTimer, place_of_thread


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
