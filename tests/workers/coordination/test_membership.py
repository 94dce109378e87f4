"""Membership: one process an identity, dead holders replaced, quotas that add up, and a coordinator that comes back."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from protocol import RELEASE, SCHEMA
from protocol.config.run import Run
from protocol.errors import ConfigurationError
from protocol.messages.core import Heartbeat, Join, Leave, Refusal, Role, Route
from tests.faults import kinds_in, raises, words_in
from workers.coordination import membership
from workers.coordination.assignments import StepsOf
from workers.coordination.member_store import WorkerRecord
from workers.coordination.membership import Membership

HERE = platform.node()
ROUTE = Route(policy="a", learner="learner-a", incarnation=1, experience="e", weights="w", acknowledgements="k")


DEAD = 2**22 + 1
"""A greater pid than any process has."""


def join(
    role: Role,
    token: str,
    name: str = "",
    pid: int | None = None,
    host: str = HERE,
    incarnation: int = 0,
    node: str = "",
) -> Join:
    """A request; the process is this one unless told otherwise."""
    pid = os.getpid() if pid is None else pid
    said = {"name": name, "token": token, "host": host, "pid": pid, "incarnation": incarnation, "node": node}
    return Join.model_validate({"role": role, "release": RELEASE, **said})


def members_of(folder: Path, actors: int = 1, steps: int = 100, **settings: object) -> Membership:
    """The members of a run of two policies."""
    return Membership(
        Run.model_validate({"actors": actors, "steps": steps, **settings}), ["a", "b"], folder / "state.json"
    )


def _of(steps: dict[tuple[str, int], int]) -> StepsOf:
    return lambda actor: {number: made for (name, number), made in steps.items() if name == actor}


def admitted(members: Membership, request: Join, steps: dict[tuple[str, int], int] | None = None) -> WorkerRecord:
    """The member that `request` becomes."""
    answer = members.join(request, _of(steps or {}))
    members.commit()
    assert isinstance(answer, WorkerRecord), answer
    return answer


def refused(members: Membership, request: Join, steps: dict[tuple[str, int], int] | None = None) -> Refusal:
    """The refusal of `request`."""
    answer = members.join(request, _of(steps or {}))
    assert isinstance(answer, Refusal), answer
    assert "\n" not in answer.reason
    return answer


def leave(member: WorkerRecord, error: str = "") -> Leave:
    """Its farewell."""
    return Leave(name=member.name, token=member.token, incarnation=member.incarnation, error=error)


def test_names_and_policies_are_given_in_order_A1(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    first, second = (admitted(members, join("learner", token)) for token in "xy")
    assert [(m.name, m.policies, m.incarnation) for m in (first, second)] == [
        ("learner-a", ["a"], 1),
        ("learner-b", ["b"], 1),
    ]
    assert kinds_in(refused(members, join("learner", "z")).reason) == ["all_places_taken"]


def test_one_learner_process_may_serve_all_policies_A10(tmp_path: Path) -> None:
    members = members_of(tmp_path, num_learner_processes=1)
    assert admitted(members, join("learner", "x")).policies == ["a", "b"]
    reason = refused(members, join("learner", "y")).reason
    assert kinds_in(reason) == ["all_places_taken"]
    assert "num_learner_processes" in words_in(reason)


def test_an_identity_of_a_living_process_cannot_be_claimed(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    admitted(members, join("actor", "x", "actor-0"))
    answer = refused(members, join("actor", "y", "actor-0"))
    assert kinds_in(answer.reason) == ["identity_in_use"]
    assert {"'actor-0'", HERE, str(os.getpid())} <= words_in(answer.reason)
    assert not answer.retry


def test_a_relay_has_the_name_that_it_asks_for_and_a_node_has_one_whatever_it_is_called(tmp_path: Path) -> None:
    """Who comes second may wait: it takes over when the first one has ended."""
    members = members_of(tmp_path)
    first = admitted(members, join("relay", "x", "relay-b", node="n"))
    assert (first.name, admitted(members, join("relay", "y", node="m")).name.startswith("relay-")) == ("relay-b", True)
    for name, node, kind, retry in (
        ("relay-c", "n", "relay_there_already", True),
        ("", "n", "relay_there_already", True),
        ("relay-b", "n", "relay_there_already", True),
        ("relay-b", "elsewhere", "identity_in_use", False),
        ("actor-0", "elsewhere", "identity_unknown", False),
    ):
        answer = refused(members, join("relay", "z", name, node=node))
        assert (answer.kind, answer.retry) == (kind, retry), (name, node)
    members.leave(leave(first))
    assert admitted(members, join("relay", "z", "relay-c", node="n")).name == "relay-c"
    assert kinds_in(refused(members, join("relay", "x2", "relay-b", node="n")).reason) == ["relay_there_already"]


def test_a_relay_whose_process_has_died_makes_room_for_one_of_another_name(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    admitted(members, join("relay", "x", "relay-b", pid=DEAD, node="n"))
    assert admitted(members, join("relay", "y", "relay-c", node="n")).incarnation == 1
    assert [relay.name for relay in members.members("relay")] == ["relay-c"]


def test_a_process_that_asks_again_before_it_hears_the_answer_is_let_in_once(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=2)
    assert members.welcomed(join("actor", "x")) is None
    first = admitted(members, join("actor", "x"))
    assert members.welcomed(join("actor", "x")) is first
    assert admitted(members, join("actor", "x")) is admitted(members, join("actor", "x", "actor-0")) is first
    assert members.welcomed(join("actor", "y")) is None
    assert (members.living_actors(), members.restarts) == ([("actor-0", 1)], {})


def test_an_unknown_name_is_refused_with_those_there_are(tmp_path: Path) -> None:
    answer = refused(members_of(tmp_path), join("actor", "x", "actor-7"))
    assert kinds_in(answer.reason) == ["identity_unknown"]
    assert {"'actor-7'", "actor-0"} <= words_in(answer.reason)


@pytest.mark.parametrize("name", ["", "actor-0"])
def test_a_dead_holder_is_replaced_at_once_and_the_restart_counted_G2(tmp_path: Path, name: str) -> None:
    members = members_of(tmp_path)
    admitted(members, join("actor", "x", pid=DEAD))
    again = admitted(members, join("actor", "y", name), {("actor-0", 1): 30})
    assert (again.name, again.incarnation, again.quota, again.steps_before) == ("actor-0", 2, 70, 30)
    assert members.restarts == {"actor-0": 1}


def test_a_dead_process_of_another_machine_is_known_by_its_lease_only(tmp_path: Path) -> None:
    members = members_of(tmp_path, actor_timeout=5)
    member = admitted(members, join("actor", "x", pid=DEAD, host="elsewhere"))
    assert members.expire(member.seen + 4) == []
    assert members.expire(member.seen + 6) == [member]


def test_a_dead_process_of_this_machine_does_not_wait_for_its_lease_G1(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    member = admitted(members, join("learner", "x", pid=DEAD))
    assert members.expire(member.seen + 0.5) == []
    assert members.expire(member.seen + 1.5) == [member]


def test_quotas_add_up_to_the_run_whatever_restarts_A7(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=3, steps=100)
    three = [admitted(members, join("actor", token, pid=DEAD if token == "z" else None)) for token in "xyz"]
    assert [m.quota for m in three] == [34, 33, 33]
    made = {("actor-0", 1): 34, ("actor-1", 1): 33, ("actor-2", 1): 10}
    for done in three[:2]:
        members.leave(leave(done))
    members.expire(three[2].seen + 2)
    assert not members.actors_done(lambda: made)
    again = admitted(members, join("actor", "n"), made)
    assert (again.name, again.quota) == ("actor-2", 23)
    members.leave(leave(again))
    assert members.actors_done(lambda: {**made, ("actor-2", 2): 23})


def test_when_all_steps_are_made_there_is_nothing_left_to_join_for(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    members.leave(leave(admitted(members, join("actor", "x"))))
    for name in ("", "actor-0"):
        answer = refused(members, join("actor", "y", name), {("actor-0", 1): 100})
        assert kinds_in(answer.reason) == ["nothing_left_to_do"]
    assert members.restarts == {}


def test_a_farewell_with_an_error_is_no_clean_one(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    for token, error, clean in (("x", "it broke", set()), ("y", "", {("learner-a", 2)})):
        members.leave(leave(admitted(members, join("learner", token)), error))
        assert members.clean == clean
    assert members.gave_up == {("learner-a", 1)}


def test_a_process_that_asked_often_has_one_incarnation_however_late_it_is_heard_G2(tmp_path: Path) -> None:
    """Of a coordinator without a processor: what was asked again and again is read when the lease has ended."""
    members = members_of(tmp_path)
    requests = [join("actor", "x", host="elsewhere") for _ in range(5)]
    numbers = []
    for request in requests:
        member = admitted(members, request)
        numbers.append((member.name, member.incarnation, member.quota))
        assert members.expire(member.seen + 1000) == [member]
    assert numbers == [("actor-0", 1, 100)] * 5
    assert members.restarts == {}
    assert admitted(members, join("actor", "y")).incarnation == 2, "another process is another incarnation"
    members.expire(time.monotonic() + 1000)
    assert admitted(members, requests[0]).incarnation == 3, "its own is over: somebody else came after it"


def test_who_has_left_and_asks_again_is_somebody_new(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    request = join("learner", "x")
    members.leave(leave(admitted(members, request)))
    assert admitted(members, request).incarnation == 2


def test_an_admission_that_nobody_heard_of_is_taken_back_with_its_number(tmp_path: Path) -> None:
    """Of the dead processes that had asked in time none costs the living one a lease."""
    members = members_of(tmp_path)
    for number in range(3):
        dead = admitted(members, join("learner", f"dead-{number}", "learner-0", host="elsewhere"))
        assert dead.fresh
        members.withdraw(dead)
    living = admitted(members, join("learner", "living", "learner-0", host="elsewhere"))
    assert (living.name, living.incarnation, members.restarts) == ("learner-a", 1, {})
    members.expire(living.seen + 1000)
    members.withdraw(admitted(members, join("learner", "late", "learner-0")))
    assert members.restarts == {}
    assert admitted(members, join("learner", "next", "learner-0")).incarnation == 2
    assert members.restarts == {"learner-a": 1}


def test_who_follows_one_that_left_while_the_run_went_on_is_a_restart_and_taking_it_back_undoes_it(
    tmp_path: Path,
) -> None:
    """It was told to end by others."""
    members = members_of(tmp_path)
    members.leave(leave(admitted(members, join("learner", "first", "learner-0"))))
    second = admitted(members, join("learner", "second", "learner-0"))
    assert members.restarts == {"learner-a": 1}
    members.withdraw(second)
    assert members.restarts == {}


def test_who_goes_on_with_a_life_that_ended_in_order_replaces_nobody(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    members.leave(leave(admitted(members, join("actor", "x"))))
    members.life_ended()
    again = members_of(tmp_path, actors=2, steps=300)
    again.deal_anew({("actor-0", 1): 100})
    newcomers = [admitted(again, join("actor", name, f"actor-{name}")) for name in "01"]
    assert [one.incarnation for one in newcomers] == [2, 2]
    assert again.restarts == {}
    again.leave(leave(newcomers[0]))
    admitted(again, join("actor", "y", "actor-0"))
    assert again.restarts.pop("actor-0") == 1, "in its own life one that left was replaced"
    again.save()
    assert members_of(tmp_path).restarts == {"coordinator": 1}, "the one before lives, or was killed"


def test_who_was_known_before_is_not_fresh(tmp_path: Path) -> None:
    """Its number has been in use: nobody else may be given it."""
    members = members_of(tmp_path)
    request = join("actor", "x", host="elsewhere")
    members.expire(admitted(members, request).seen + 1000)
    assert not admitted(members, request).fresh
    members.expire(time.monotonic() + 1000)
    assert not admitted(members, join("actor", "x", "actor-0", host="elsewhere", incarnation=1)).fresh


def test_messages_of_a_former_incarnation_or_of_a_stranger_under_its_name_are_not_taken(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    old = admitted(members, join("actor", "x", pid=DEAD))
    new = admitted(members, join("actor", "y"))
    for token, incarnation in (("x", 1), ("x", 2), ("y", 1), ("guess", 2)):
        said: dict[str, Any] = {"name": old.name, "token": token, "incarnation": incarnation}
        assert members.heartbeat(Heartbeat(**said, state="acting")) is None
        assert members.leave(Leave(**said)) is None
    assert members.members("actor") == [new]


def test_learners_and_all_others_have_a_lease_each(tmp_path: Path) -> None:
    members = members_of(tmp_path, actor_timeout=5, learner_timeout=7)
    assert admitted(members, join("learner", "x")).lease == 7
    assert admitted(members, join("actor", "y")).lease == 5


@pytest.mark.parametrize(("actors", "timeout", "expected"), [(200, 60, 1), (1_000, 60, 5), (1_000, 10, 10 / 3)])
def test_many_actors_beat_less_often_and_three_times_in_a_lease(
    tmp_path: Path, actors: int, timeout: float, expected: float
) -> None:
    members = members_of(tmp_path, actors=actors, actor_timeout=timeout)
    assert members.interval("actor") == pytest.approx(expected)
    assert members.interval("learner") == 1


def test_of_many_actors_a_dead_one_is_known_by_a_heartbeat_that_does_not_come(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=400)
    member = admitted(members, join("actor", "x", pid=DEAD))
    assert members.expire(member.seen + 1.5) == []
    assert members.expire(member.seen + 2.5) == [member]


def test_a_coordinator_that_returns_knows_members_routes_quotas_and_restarts(tmp_path: Path) -> None:
    first = members_of(tmp_path)
    actor = admitted(first, join("actor", "x"))
    learner = admitted(first, join("learner", "y"))
    first.heartbeat(Heartbeat(name=learner.name, token="y", incarnation=1, state="learning", routes=[ROUTE]))
    first.save()
    second = members_of(tmp_path)
    assert second.run_id == first.run_id
    assert second.restarts == {"coordinator": 1}
    assert second.routes(admitted(second, join("supervisor", "s"))) == [ROUTE]
    assert second.living_actors() == [("actor-0", 1)]
    assert not second.actors_done(lambda: {("actor-0", 1): 100})  # it has not said farewell
    heard = second.heartbeat(Heartbeat(name=actor.name, token="x", incarnation=1, state="acting"))
    assert heard is not None
    assert (heard.quota, heard.token) == (100, "x")


def test_episodes_that_are_told_again_are_known(tmp_path: Path) -> None:
    """By the same actor incarnation."""
    members = members_of(tmp_path)
    actor = admitted(members, join("actor", "t"))
    first, second = ("a", 10, 1, 2.5, 5), ("a", 20, 2, 0.5, 5)
    other = ("b", 10, 1, 1.0, 5)
    assert members.new_episodes(actor, [first, ("no policy", 10, 1, 1.0, 5), other]) == [first, other]
    assert members.new_episodes(actor, [first, second]) == [second]
    actor.incarnation += 1
    assert members.new_episodes(actor, [first]) == [first]


def test_one_that_was_away_longer_than_its_lease_joins_again_as_what_it_was(tmp_path: Path) -> None:
    before = members_of(tmp_path)
    member = admitted(before, join("actor", "x"))
    before.expire(member.seen + 100)
    before.commit()
    members = members_of(tmp_path)  # and longer than the coordinator lived
    assert (
        admitted(members_of(tmp_path), join("actor", "y", "actor-0", incarnation=1)).incarnation == 2
    )  # another process
    back = admitted(members, join("actor", "x", "actor-0", incarnation=1), {("actor-0", 1): 40})
    assert (back.incarnation, back.quota, back.steps_before) == (1, 100, 0)
    assert members.restarts == {"coordinator": 1}


def test_an_incarnation_that_was_replaced_does_not_come_back(tmp_path: Path) -> None:
    """The name went on with another process: whoever asks for it now is a new one."""
    members = members_of(tmp_path)
    first = admitted(members, join("actor", "x"))
    members.expire(first.seen + 100)
    second = admitted(members, join("actor", "y"))
    members.expire(second.seen + 100)
    assert admitted(members, join("actor", "x", "actor-0", incarnation=1)).incarnation == 3


def test_a_place_of_one_not_yet_heard_of_is_not_refused_for_good(tmp_path: Path) -> None:
    first = members_of(tmp_path)
    admitted(first, join("actor", "x"))
    second = members_of(tmp_path)
    assert refused(second, join("actor", "y")).retry
    assert refused(second, join("actor", "y", "actor-0")).retry
    second.heartbeat(Heartbeat(name="actor-0", token="x", incarnation=1, state="acting"))
    told = refused(second, join("actor", "y"))
    assert not told.retry
    assert (told.kind, told.field) == ("all_places_taken", "actors")


def test_a_place_of_one_that_missed_heartbeats_is_not_refused_for_good(tmp_path: Path) -> None:
    """It gets free within half a lease; whoever takes a refusal for the last word would never ask again."""
    members = members_of(tmp_path)
    holder = admitted(members, join("actor", "x"))
    assert not refused(members, join("actor", "y", "actor-0")).retry
    holder.seen -= 0.6 * holder.lease
    told = refused(members, join("actor", "y", "actor-0"))
    assert told.retry
    assert (told.kind, told.value) == ("identity_in_use", "actor-0")
    assert refused(members, join("actor", "y")).retry


def test_Z4_a_release_without_a_common_schema_is_refused_and_the_next_one_taken(tmp_path: Path) -> None:
    """Z4: what counts is the schemas that both speak, not the release."""
    members = members_of(tmp_path)
    later = join("actor", "x").model_copy(
        update={"release": "9.9.9", "oldest_schema": SCHEMA + 1, "newest_schema": SCHEMA + 2}
    )
    refusal = refused(members, later)
    assert kinds_in(refusal.reason) == ["schemas_differ"]
    assert {"9.9.9", str(SCHEMA + 1), str(SCHEMA + 2), RELEASE} <= words_in(refusal.reason)
    assert not refusal.retry
    assert admitted(members, later.model_copy(update={"oldest_schema": SCHEMA})).name == "actor-0"


def test_watchers_are_called_as_the_coordinator_chooses_and_keep_that_name(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    worker = admitted(members, join("actor", "w"))
    members.leave(leave(worker))
    thief = admitted(members, join("supervisor", "x", name="actor-0"))
    again = admitted(members, join("supervisor", "y", name="actor-0", incarnation=1))
    assert thief.name.startswith("supervisor-")
    assert again.name.startswith("supervisor-")
    members.expire(thief.seen + 1_000)
    assert admitted(members, join("supervisor", "x", name=thief.name, incarnation=1)).name == thief.name


def test_learner_N_is_the_learner_of_that_index_as_a_numbered_pod_asks(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    second = admitted(members, join("learner", "x", "learner-1"))
    assert (second.name, second.index, second.policies) == ("learner-b", 1, ["b"])
    taken = refused(members, join("learner", "y", "learner-1")).reason
    assert kinds_in(taken) == ["identity_in_use"]
    assert "'learner-b'" in words_in(taken)
    unknown = refused(members, join("learner", "y", "learner-2")).reason
    assert kinds_in(unknown) == ["identity_unknown"]
    assert "'learner-2'" in words_in(unknown)


def test_learner_N_is_the_learner_of_policy_N_where_policies_are_numbers(tmp_path: Path) -> None:
    members = Membership(Run.model_validate({}), ["1", "x"], tmp_path / "state.json")
    assert admitted(members, join("learner", "x", "learner-1")).policies == ["1"]
    reason = refused(members, join("learner", "y", "learner-0")).reason
    assert kinds_in(reason) == ["identity_unknown"]
    assert "'learner-0'" in words_in(reason)


def test_under_a_scheduler_who_finds_no_place_asks_again(tmp_path: Path) -> None:
    """The holder may be a killed pod, whose lease ends; what a lost actor leaves may be for the next."""
    run = Run.model_validate({"steps": 10})
    members = Membership(run, ["a"], tmp_path / "state.json", patient=True)
    actor = admitted(members, join("actor", "x"))
    members.heartbeat(Heartbeat(name="actor-0", token="x", incarnation=1, state="acting"))
    assert refused(members, join("actor", "y")).retry
    assert refused(members, join("actor", "y", "actor-0")).retry
    assert not members.left_cleanly(join("actor", "y", "actor-0"))
    members.leave(leave(actor))
    assert members.left_cleanly(join("actor", "y", "actor-0"))
    assert refused(members, join("actor", "y"), {("actor-0", 1): 10}).retry


def test_who_comes_and_goes_without_end_waits_ever_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that comes costs as much as there were before."""
    monkeypatch.setattr(membership, "_FREE", 0.001)
    members = members_of(tmp_path)
    for number in range(1, 4):
        member = admitted(members, join("actor", f"t{number}"))
        assert member.incarnation == number
        members.leave(leave(member))
        again = refused(members, join("actor", f"t{number + 1}"))
        assert (again.kind, again.retry) == ("identity_comes_too_often", True)
        members._ended_at["actor-0"] -= 1000 * number


def test_of_ever_new_watchers_the_oldest_that_ended_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership, "_WATCHERS", 5)
    members = members_of(tmp_path)
    stays = [admitted(members, join("actor", "a")), admitted(members, join("supervisor", "stays"))]
    for number in range(20):
        member = admitted(members, join("supervisor", f"t{number}"))
        members._end(member) if number % 2 else members.leave(leave(member))
    register = members._register
    assert len(register.incarnations) <= 7
    assert {member.name for member in stays} <= register.incarnations.keys()
    assert {name for name, _ in register.clean} | register.tokens.keys() <= register.incarnations.keys()


def test_what_is_left_of_a_longer_run_is_dealt_equally_to_fewer_or_more_once_nobody_works_by_the_old_shares(
    tmp_path: Path,
) -> None:
    before = members_of(tmp_path, actors=2)
    steps = {("actor-0", 1): 70, ("actor-1", 1): 20}
    admitted(before, join("actor", "t"))
    gone = admitted(before, join("actor", "gone", pid=2**22 + 1))
    before.save()
    with raises(ConfigurationError, "run_still_worked_on", peer="actor-0", host=HERE, pid=os.getpid()):
        members_of(tmp_path, actors=2, steps=300).deal_anew(steps)
    before.expire(gone.seen + 100)
    before.save()
    for actors, shares in ((1, [210]), (3, [70, 70, 70])):
        longer = members_of(tmp_path, actors=actors, steps=300)
        longer.deal_anew(steps)
        assert [admitted(longer, join("actor", f"{actors}-{i}"), steps).quota for i in range(actors)] == shares
        longer.expire(time.monotonic() + 100)
        longer.save()


def test_a_learner_whose_policy_went_has_no_place_and_others_keep_their_numbers(tmp_path: Path) -> None:
    members = members_of(tmp_path)
    members.add("c")
    members.add("d")
    assert members.released(["d"]) == ["d"]  # before its learner came
    of = {name: admitted(members, join("learner", name, name)) for name in ("learner-0", "learner-1", "learner-c")}
    actor = admitted(members, join("actor", "acts"))
    assert members.released(["a"]) == []
    actor.metrics["released.a"] = 1.0
    assert members.released(["a"]) == ["a"]
    assert (members.learners_wanted, members.absent) == (3, [])
    members.leave(Leave(name="learner-a", token="learner-0", incarnation=1))
    assert members.released(["a"]) == ["a"]
    assert (members.learners_wanted, members.learners_begun, members.absent) == (2, 4, [])
    for claim in ("learner-0", "learner-a"):
        answer = members.join(join("learner", "again", claim), _of({}))
        assert isinstance(answer, Refusal)
        assert kinds_in(answer.reason) == ["learner_of_retired_policy"]
    members.leave(Leave(name="learner-b", token="learner-1", incarnation=1))
    assert admitted(members, join("learner", "next", "learner-1")).policies == ["b"]
    assert of["learner-c"].policies == ["c"]


def test_a_policy_is_not_over_while_an_actor_that_was_lost_may_come_back_with_what_it_had(tmp_path: Path) -> None:
    members = members_of(tmp_path, actors=2)
    actor, other = (admitted(members, join("actor", token)) for token in "xy")
    actor.metrics["released.a"] = other.metrics["released.a"] = 1.0
    assert members.released(["a"]) == ["a"]
    members.expire(other.seen + 100)
    admitted(members, join("actor", "z", actor.name)).metrics["released.a"] = 1.0
    assert members.released(["a"]) == []
    admitted(members, join("actor", "back", other.name)).metrics["released.a"] = 1.0
    assert members.released(["a"]) == ["a"]


def test_as_many_learners_begin_as_have_a_place_where_policies_are_numbers(tmp_path: Path) -> None:
    members = Membership(Run.model_validate({}), ["0", "1"], tmp_path / "state.json")
    assert members.learners_begun == 2
    assert members.released(["0"]) == ["0"]
    assert (members.over("0"), members.over("1"), members.learners_begun) == (True, False, 1)
    assert admitted(members, join("learner", "x")).policies == ["1"]
