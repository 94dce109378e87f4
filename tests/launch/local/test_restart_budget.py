"""Restarts: a crash loop slows down and ends, a death now and then ends nothing."""

from __future__ import annotations

from launch.local.restart_budget import RestartBudget


def lives(budget: RestartBudget, *seconds: float) -> list[float | None]:
    """The pauses after lives of so many seconds."""
    pauses, now = [], 0.0
    for lived in seconds:
        budget.began(now)
        now += lived
        pauses.append(budget.died(now))
    return pauses


def test_a_crash_loop_pauses_ever_longer_and_ends_U13() -> None:
    assert lives(RestartBudget(5), *[1.0] * 6) == [0.25, 0.5, 1.0, 2.0, 4.0, None]
    assert lives(RestartBudget(0), 1.0) == [None]


def test_the_pause_has_a_bound_and_whoever_did_some_work_begins_again_at_once() -> None:
    assert lives(RestartBudget(100), *[1.0] * 10)[-1] == 10.0
    assert lives(RestartBudget(100), 1.0, 1.0, 1.0, 20.0, 20.0, 1.0) == [0.25, 0.5, 1.0, 0.0, 0.0, 0.25]


def test_whoever_lived_long_has_the_whole_budget_again() -> None:
    assert lives(RestartBudget(2), 20.0, 20.0, 20.0) == [0.0, 0.0, None]
    budget = RestartBudget(2)
    assert lives(budget, 20.0, 20.0, 300.0, 20.0, 20.0) == [0.0, 0.0, 0.0, 0.0, None]
    assert budget.again == 4
