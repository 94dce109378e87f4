"""Who has no credit in replay waits for a learner that lives, and keeps its pace without one that does not."""

from __future__ import annotations

import pytest

from protocol.experience.flow_control import ActorPacer


def heard(interval: float, acknowledgements: int, blocks: int = 1) -> tuple[ActorPacer, float]:
    """A pace after so many acknowledgements, and the time of the last."""
    pace = ActorPacer(0.0)
    for number in range(acknowledgements):
        pace.heard(number * interval, blocks)
    return pace, (acknowledgements - 1) * interval


def blocks_in(pace: ActorPacer, now: float, seconds: float, takes: float) -> int:
    """How many blocks an actor makes from `now` on without credit, each of which `takes` so long by itself."""
    end, count = now + seconds, 0
    while (now := now + takes + pace.wait(now + takes)) < end:
        if pace.wait(now) == 0:
            pace.went_on(now)
            count += 1
    return count


def test_a_learner_that_is_heard_of_is_waited_for_E8() -> None:
    """E8: the rate limiter's word, however long it keeps one waiting."""
    pace, now = heard(0.01, 100)
    for _ in range(100):
        now += 0.2
        assert pace.wait(now) > 0
        pace.heard(now, 0)


@pytest.mark.parametrize(("interval", "takes"), [(0.1, 0.1), (0.1, 0.001), (0.002, 0.0001), (1.5, 0.1)])
def test_without_word_an_actor_keeps_the_pace_that_it_had_A2(interval: float, takes: float) -> None:
    """A2: neither less than nine tenths of it, nor more; what was waited in vain at first is caught up with."""
    pace, now = heard(interval, 100)
    seconds = 100 * max(interval, 0.1)
    assert blocks_in(pace, now, seconds, takes) == pytest.approx(seconds / interval, rel=0.1)


def test_a_learner_that_seldom_settles_is_waited_for_from_beacon_to_beacon_E8() -> None:
    """E8: a beacon comes a second after the last, and by what a step of the learner takes later."""
    pace, now = heard(5.0, 10)
    for _ in range(100):
        assert pace.wait(now + 1.3) > 0
        now += 1.3
        pace.heard(now, 0)


@pytest.mark.parametrize(("pause", "patience"), [(0.01, 0.25), (0.3, 0.6), (20.0, 1.5)])
def test_who_was_silent_for_long_of_late_may_be_so_again_within_bounds(pause: float, patience: float) -> None:
    pace, now = heard(0.1, 20)
    now += pause
    pace.heard(now, 1)
    assert pace.wait(now + 0.9 * patience) > 0
    assert pace.wait(now + 1.1 * patience) == 0


def test_what_was_settled_before_the_first_update_is_no_pace_to_run_ahead_at_E8() -> None:
    """E8: all is admitted at once until there is enough to learn from, and then as training goes."""
    pace, now = heard(0.001, 3)
    assert pace.wait(now + 1.3) > 0


def test_between_the_words_of_a_learner_that_settles_nothing_an_actor_waits_E8() -> None:
    pace, now = heard(0.01, 500)
    pace.heard(now + 0.1, 0)
    assert pace.wait(now + 1.3) > 0


def test_before_anything_is_settled_a_learner_has_a_moment_to_begin() -> None:
    pace = ActorPacer(10.0)
    assert pace.wait(14.9) > 0
    assert pace.wait(15.1) == 0
