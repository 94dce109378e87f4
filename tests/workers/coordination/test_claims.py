"""What members tell of themselves that cannot be: left out of the books, counted, and told with their name."""

from __future__ import annotations

import time
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
        ({"waits.credit.a": float("nan")}, "counter_impossible"),
        ({"backlog.a": 2.0**63}, "counter_impossible"),
        ({"dropped.no_credit.a": 1e300}, "counter_impossible"),
        ({"environment_restarts": 1.7e308}, "counter_impossible"),
        ({"refused_acks": 1.7e308}, "counter_impossible"),
        ({"resumed_steps": -1e12}, "counter_impossible"),
        ({"resumed_steps": 1e15}, "steps_beyond_quota"),
        ({"league.games.a:b": 1.7e308}, "counter_impossible"),
        ({"first_returns.a": -1.7e308}, "return_too_large"),
        ({"returns.a/easy": 1e300}, "return_too_large"),
        ({"infos.a/won": -1.0}, "counter_impossible"),
        ({"info_sums.a/far": -1e300}, "return_too_large"),
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


def test_nobody_waited_longer_than_it_was_there() -> None:
    """All that an actor waited for together; by a little more it is cut, as clocks differ, by much more it is told."""
    refusals, member = RefusalLog(), actor()
    claims = Claims({"a"}, refusals)

    def believed(told: dict[str, float]) -> dict[str, float]:
        claims.began["actor-0", 1] = time.monotonic() - 10.0
        return claims.counters(member, told)

    honest = {**MADE, "waits.credit.a": 6.0, "waits.drain.a": 3.5}
    assert believed(honest) == honest
    early = believed({**MADE, "waits.credit.a": 36.0, "waits.drain.a": 12.0})
    assert early["waits.credit.a"] == pytest.approx(3 * early["waits.drain.a"])
    assert early["waits.credit.a"] < 36.0
    assert refusals.total == 0
    lies = {**MADE, "agent_steps": 60.0} | {f"waits.credit.{name}": 1e7 for name in "abcd"}
    found = believed(lies)
    assert 10.0 <= sum(value for name, value in found.items() if name.startswith("waits.")) < 100.0
    assert found["agent_steps"] == 60.0
    assert refusals.counters() == {"refusals.claim_not_believed.waited_longer_than_there": 1}


def test_a_member_is_believed_no_wait_from_before_it_was_let_in(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=1, steps=100)
    admitted(members, join("actor", "x"))
    beat = {"name": "actor-0", "token": "x", "incarnation": 1}
    members.heartbeat(Heartbeat(**beat, state="acting", counters={"waits.credit.a": 1e6}))  # type: ignore[arg-type]
    assert members.counters("actor")["actor-0", 1]["waits.credit.a"] < 60.0


def test_no_more_names_are_kept_of_a_member_than_a_worker_has(tmp_path: Path) -> None:
    """A thousand and a hundred for each of the two policies that are played."""
    members = members_of(tmp_path, actors=1)
    member = admitted(members, join("actor", "x"))
    beat = {"name": "actor-0", "token": "x", "incarnation": 1}
    most, more = ({f"own.{n}": 1.0 for n in range(count)} for count in (1_200, 1_201))
    members.heartbeat(Heartbeat(**beat, state="acting", counters=most, metrics=most))  # type: ignore[arg-type]
    members.heartbeat(Heartbeat(**beat, state="acting", counters=more, metrics=more))  # type: ignore[arg-type]
    assert members.leave(Leave(**beat, counters=more, metrics=more)) is member  # type: ignore[arg-type]
    assert (member.counters, member.metrics) == (most, most)


@pytest.mark.parametrize("told", [1e300, -1e300, float("nan"), float("inf"), 8.0])
def test_an_actor_is_behind_by_no_more_versions_than_were_published(tmp_path: Path, told: float) -> None:
    members = members_of(tmp_path, actors=1)
    for role in ("learner", "actor"):
        admitted(members, join(role, role))
    learner = members.members("learner")[0].name
    for name, token, fields in (
        (learner, "learner", {"counters": {"version.a": 5.0}}),
        ("actor-0", "actor", {"metrics": {"adoption_lag.a": told}}),
    ):
        beat = Heartbeat(name=name, token=token, incarnation=1, state="acting", **fields)  # type: ignore[arg-type]
        assert members.heartbeat(beat)
    assert members.measured()["a.adoption_lag"] == (5.0 if told > 0 else 0.0)


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
