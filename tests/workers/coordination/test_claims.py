"""What members tell of themselves that cannot be: left out of the books, counted, and told with their name."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.messages.core import Episodes, Heartbeat, Leave
from protocol.refusal_log import RefusalLog
from tests.workers.coordination.test_membership import admitted, join, members_of
from workers.coordination.claims import Claims
from workers.coordination.member_store import WorkerRecord

MADE = {"agent_steps": 50.0, "env_steps": 50.0, "produced.a": 4.0, "backlog.a": 2.0, "waits.credit.a": 0.5}


def actor() -> WorkerRecord:
    return WorkerRecord("actor-0", "actor", "t", 1, "h", 1, "", 10.0, quota=100, counters=dict(MADE))


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"agent_steps": -1e12}, "counter_impossible"),
        ({"produced.a": -1.0}, "counter_impossible"),
        ({"waits.credit.a": -0.1}, "counter_impossible"),
        ({"backlog.a": 2.0**63}, "counter_impossible"),
        ({"dropped.no_credit.a": 1e300}, "counter_impossible"),
        ({"environment_restarts": 1.7e308}, "counter_impossible"),
        ({"refused_acks": 1.7e308}, "counter_impossible"),
        ({"resumed_steps": -1e12}, "counter_impossible"),
        ({"resumed_steps": 1e15}, "steps_beyond_quota"),
        ({"league.games.a:b": 1.7e308}, "counter_impossible"),
        ({"first_returns.a": -1.7e308}, "return_too_large"),
        ({"returns.a/easy": 1e300}, "return_too_large"),
        ({"agent_steps": 1e15}, "steps_beyond_quota"),
        ({"env_steps": 2.0**53}, "steps_beyond_quota"),
        ({"agent_steps": 49.0}, "counter_fell"),
        ({"produced.a": 0.0}, "counter_fell"),
    ],
)
def test_counters_that_cannot_be_leave_the_books_as_they_were(
    changes: dict[str, float], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    refusals, member = RefusalLog(), actor()
    claims = Claims({"a"}, refusals)
    assert claims.counters(member, {**MADE, **changes}) == MADE
    assert refusals.counters() == {f"refusals.claim_not_believed.{kind}": 1}
    assert "worker=actor-0" in caplog.text
    assert next(iter(changes)) in caplog.text or "steps" in caplog.text
    later = {**MADE, "agent_steps": 120.0, "backlog.a": 0.0, "score_of_the_world": -1e300, "first_returns.a": -1e9}
    assert claims.counters(member, later) == later


@pytest.mark.parametrize(
    ("entry", "kind"),
    [
        (("b", 60, 1, 1.0, 9), "policy_unknown"),
        (("a", 10**15, 1, 1.0, 9), "steps_beyond_quota"),
        (("a", 2**62, 1, 1.0, 9), "steps_beyond_quota"),
        (("a", 60, 10**15, 1.0, 9), "more_episodes_than_steps"),
        (("a", 60, 1, 1e300, 9), "return_too_large"),
        (("a", 60, 1, -1e15, 9), "return_too_large"),
        (("a", 60, 1, 1.0, 2_000), "episodes_too_long"),
        (("a", 60, 1, 1.0, 2**62), "episodes_too_long"),
    ],
)
def test_episodes_that_cannot_be_are_not_counted(entry: Episodes, kind: str) -> None:
    refusals, member = RefusalLog(), actor()
    claims = Claims({"a"}, refusals)
    assert claims.episodes(member, entry, 40, False) is None
    assert refusals.counters() == {f"refusals.claim_not_believed.{kind}": 1}
    good = ("a", 60, 20, -1e9, 1_000)
    assert claims.episodes(member, good, 40, False) == good
    assert claims.episodes(member, good, 60, True) is None  # told again
    assert refusals.total == 1


def test_a_run_does_not_end_by_what_one_actor_says_it_made(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=2, steps=100)
    for name in ("x", "y"):
        admitted(members, join("actor", name))
    beat = {"name": "actor-0", "token": "x", "incarnation": 1}
    members.heartbeat(Heartbeat(**beat, state="acting", counters={"agent_steps": 1000.0}))  # type: ignore[arg-type]
    members.leave(Leave(**beat, counters={"agent_steps": 1000.0}))  # type: ignore[arg-type]
    members.leave(Leave(name="actor-1", token="y", incarnation=1, counters={"agent_steps": 10.0}))
    assert not members.actors_done(lambda: {("actor-0", 1): 1000, ("actor-1", 1): 10})
    assert members.actors_done(lambda: {("actor-0", 1): 1000, ("actor-1", 1): 50})
