"""Several learners of one policy: their names, whose segments each gets, and what is refused."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.errors import ConfigurationError
from protocol.messages.core import Heartbeat, Route
from tests.faults import kinds_in, raises, words_in
from tests.workers.coordination.test_membership import admitted, join, members_of, refused
from tests.workers.planning.test_cohorts import learners
from tests.workers.planning.test_policy_plan import plans
from workers.learning.distributed import rendezvous
from workers.learning.distributed.process_group import RankLost
from workers.learning.distributed.rendezvous import check_meeting, requested_name, wait_for_name
from workers.planning.cohorts import stacking_key
from workers.planning.data_parallel import ledger_path, rank_for_actor, rank_of_learner

TWO: dict[str, Any] = {"actors": 3, "policies": {"b": {"ranks": 2}}}


def test_each_rank_is_a_learner_of_its_own_with_an_ordinal_of_its_own() -> None:
    found = learners(TWO)
    assert found == {"learner-a": ["a"], "learner-b-0": ["b"], "learner-b-1": ["b"], "learner-c": ["c"]}
    assert learners({**TWO, "learners": "auto"}) == found
    assert [rank_of_learner(name, 2) for name in ("learner-b-0", "learner-b-1")] == [0, 1]
    assert stacking_key(plans(TWO)["b"]) == "", "it shares no process"


def test_an_actor_keeps_its_rank_and_ranks_keep_ledgers_of_their_own(tmp_path: Path) -> None:
    assert [rank_for_actor(f"actor-{number}", 2) for number in range(4)] == [0, 1, 0, 1]
    assert [rank_for_actor("actor-3", 1), rank_for_actor("simulator", 2)] == [0, 0]
    assert len({ledger_path(tmp_path, "b", rank) for rank in range(3)}) == 3


def test_an_actor_is_told_its_own_rank_a_learner_all_and_everybody_else_the_first(tmp_path: Path) -> None:
    members = members_of(tmp_path, **TWO)
    for token, name in (("l0", "learner-b-0"), ("l1", "learner-b-1")):
        member = admitted(members, join("learner", token, name))
        route = Route(policy="b", learner=name, incarnation=1, experience="e", weights="w", acknowledgements="k")
        members.heartbeat(Heartbeat(name=name, token=token, incarnation=1, state="learning", routes=[route]))
        assert member.policies == ["b"]
    told = {}
    for role, token in (("actor", "a0"), ("actor", "a1"), ("actor", "a2"), ("supervisor", "s"), ("learner", "l")):
        member = admitted(members, join(role, token))  # type: ignore[arg-type]
        told[token] = [route.learner for route in members.routes(member)]
    assert told["a0"] == told["a2"] == told["s"] == ["learner-b-0"]
    assert told["a1"] == ["learner-b-1"]
    assert told["l"] == ["learner-b-0", "learner-b-1"]


def test_no_relay_stands_between_actors_and_ranks(tmp_path: Path) -> None:
    relay = join("relay", "r").model_copy(update={"node": "here"})
    reason = refused(members_of(tmp_path, **TWO), relay).reason
    assert kinds_in(reason) == ["ranks_not_relayed"]
    assert "'b'" in words_in(reason)


@pytest.mark.parametrize(
    ("changes", "policy", "words"),
    [
        ({"actors": 1}, {}, {"actors", "1", "2"}),
        ({}, {"algorithm": {"name": "iqn"}}, {"iqn", "ppo", "impala"}),
        ({}, {"algorithm": {"name": "ppo", "priority_alpha": 0.5}}, {"priority_alpha"}),
        ({}, {"algorithm": {"entry": "workers.algorithms.ppo:PPOUpdate"}}, {"entry", "loss"}),
        ({}, {"record": True}, {"record", "replay"}),
        ({"learners": "cohort"}, {}, {"learners", "process", "auto"}),
        ({"schedule": "lockstep", "environment": {"copies": 48}}, {}, {"schedule", "lockstep"}),
        ({"agents": {"a": "b-1"}}, {}, {"'learner-b-1'"}),
    ],
)
def test_what_ranks_cannot_train_is_refused_in_one_sentence(
    changes: dict[str, Any], policy: dict[str, Any], words: set[str]
) -> None:
    with raises(ConfigurationError, "ranks_impossible", policy="b", count=2, key="policy.ranks") as caught:
        plans({**TWO, **changes, "policies": {"b": {"ranks": 2, **policy}}})
    facts = vars(caught.value)["facts"]
    assert words <= words_in(f"{facts['reason']} {facts['remedy']}")


def test_torchrun_says_which_rank_a_process_is_and_must_agree_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")  # as other schedulers say it too
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    assert [requested_name("learner-b"), requested_name("")] == ["learner-b", ""]
    check_meeting("127.0.0.1", False, "b", 1, 2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert [requested_name("learner-b"), requested_name("")] == ["learner-b-1", "learner-1"]
    with raises(ConfigurationError, "torchrun_rank_differs", value="1", told_size="3", rank=1, size=2, policy="b"):
        check_meeting("127.0.0.1", False, "b", 1, 2)


def test_ranks_meet_on_no_network_of_which_nothing_was_said() -> None:
    check_meeting("0.0.0.0", True, "b", 0, 2)
    with raises(ConfigurationError, "ranks_on_open_network", policy="b", peer="0.0.0.0"):
        check_meeting("0.0.0.0", False, "b", 0, 2)


def test_a_rank_waits_until_names_lead_to_it_as_a_pods_do_a_moment_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile it heartbeats; a name that nobody ever knows is told of, with the remedy."""
    asked, heartbeats = iter((False, False, True)), []

    def look_up(host: str, _: object) -> list[object]:
        if not next(asked, False):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    wait_for_name("learner-0.learner", 60.0, lambda: heartbeats.append(1))
    assert len(heartbeats) == 2
    with raises(ConfigurationError, "own_address_not_resolved", peer="learner-0.learner"):
        wait_for_name("learner-0.learner", 0.0, lambda: heartbeats.append(1))


def test_ranks_are_a_number_of_processes() -> None:
    with raises(ConfigurationError, "value_invalid", key="policy.ranks"):
        parse_run({"policy": {"ranks": 0}})


def test_a_port_that_somebody_has_for_a_moment_is_waited_for_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As any connection of this machine may."""
    heartbeats: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]

        def heartbeat() -> None:
            heartbeats.append(1)
            if len(heartbeats) == 3:
                busy.close()

        with rendezvous._listen("127.0.0.1", port, heartbeat) as listener:
            assert listener.getsockname()[1] == port
        assert len(heartbeats) == 3
    monkeypatch.setattr(rendezvous, "_BUSY_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        reason = os.strerror(errno.EADDRINUSE)
        with raises(RankLost, "ranks_cannot_meet", peer="127.0.0.1", port=port, reason=reason):
            rendezvous._listen("127.0.0.1", port, lambda: None)
