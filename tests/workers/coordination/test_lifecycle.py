"""How a run comes to its end, stage by stage."""

from __future__ import annotations

from workers.coordination.lifecycle import RunLifecycle


def test_each_stage_ends_when_nobody_of_it_is_left() -> None:
    there = {"actor", "learner", "evaluator"}
    stages = RunLifecycle(10, 20)
    assert not stages.advance(0, True, there.__contains__)
    stages.drain(0, complete=True)
    assert not stages.advance(1, True, there.__contains__)
    there.remove("actor")
    assert stages.advance(2, True, there.__contains__)
    assert stages.now == "learners_draining"
    there.remove("learner")
    assert not stages.advance(3, True, there.__contains__), "an evaluation plays the last weights"
    there.clear()
    assert stages.advance(4, True, there.__contains__)
    assert (stages.now, stages.over) == ("ended", True)


def test_who_does_not_leave_is_waited_for_twice_as_long_where_the_run_is_whole() -> None:
    for complete, limit in ((False, 10), (True, 20)):
        stages = RunLifecycle(10, 20)
        stages.drain(100, complete)
        assert not stages.advance(100 + limit, complete, lambda role: True)
        assert stages.advance(100.1 + limit, complete, lambda role: True)
        assert stages.now == "learners_draining"


def test_what_workers_are_told() -> None:
    stages = RunLifecycle(10, 20)
    assert [stages.command(role, True) for role in ("actor", "learner", "supervisor")] == ["pause", "go", "go"]
    stages.drain(0, True)
    assert [stages.command(role, False) for role in ("actor", "learner", "supervisor")] == ["drain", "go", "go"]
    assert stages.advance(0, True, lambda role: role != "actor")
    assert [stages.command(role, False) for role in ("actor", "learner", "relay")] == ["drain", "drain", "drain"]
    stages.leave()
    assert stages.over
