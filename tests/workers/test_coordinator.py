"""The coordinator: whom it lets in, how long what actors left behind stays, and its executable."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.memory.shared_file import PREFIX
from protocol.messages.core import Leave, Message, Refusal, Welcome
from protocol.refusal_log import RefusalLog
from tests.workers.coordination.test_membership import join
from workers import coordinator as coordinating
from workers.coordinator import Coordinator, _announce
from workers.environments.registry import describe
from workers.runtime.http_server import HttpRequest

__all__ = []


def test_a_half_written_announcement_of_one_that_died_is_written_over(tmp_path: Path) -> None:
    (tmp_path / ".coordinator").write_text('{"addr')
    _announce(tmp_path, "tcp://127.0.0.1:5600", "http://127.0.0.1:5602")
    assert [path.name for path in tmp_path.iterdir()] == ["coordinator.json"]
    assert json.loads((tmp_path / "coordinator.json").read_text())["address"] == "tcp://127.0.0.1:5600"


@pytest.fixture
def server() -> SimpleNamespace:
    """Instead of sockets: what was answered, and whether peers are there to be answered."""
    answers: list[Message] = []

    def answer(peer: bytes, message: Message) -> bool:
        answers.append(message)
        return bool(made.there)

    made = SimpleNamespace(gone=set(), there=True, answers=answers, answer=answer, refusals=RefusalLog())
    return made


@pytest.fixture
def coordinator(tmp_path: Path, server: Any) -> Iterator[Coordinator]:
    """Of a run of two policies that has just begun."""
    run = parse_run({"environment": {"copies": 4}, "steps": 1_000, "num_learner_processes": 1})
    made = Coordinator(run, describe(run.environment), tmp_path, server)
    yield made
    made.close()


def names(coordinator: Coordinator) -> list[tuple[str, int]]:
    """(name, incarnation) of the members that it says there are."""
    return [(member.name, member.incarnation) for member in coordinator._members.members("actor")]


def test_who_died_before_it_could_be_told_is_not_let_in(coordinator: Coordinator, server: Any) -> None:
    """Those that asked and died while the coordinator had no processor take no place and no number."""
    server.there = False
    for number in range(3):
        coordinator._join(b"dead", join("actor", f"dead-{number}", host="elsewhere"))
    assert names(coordinator) == []
    server.there = True
    coordinator._join(b"living", join("actor", "living", host="elsewhere"))
    assert names(coordinator) == [("actor-0", 1)]
    server.there = False
    coordinator._join(b"living", join("actor", "living", host="elsewhere"))
    assert names(coordinator) == [("actor-0", 1)], "it was told once: its lease says when it has gone"


def test_refused_joins_make_a_short_log_and_are_counted(
    coordinator: Coordinator, server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    for number in range(3000):
        coordinator._join(b"stranger", join("actor", "t", name=f"stranger-{number}"))
    assert isinstance(server.answers[-1], Refusal)
    assert len("\n".join(caplog.messages)) < 60_000
    assert server.refusals.counters() == {"refusals.join_refused.identity_unknown": 3000}
    told = coordinator.metrics(HttpRequest("/metrics", {}, {}, b"", threading.Event())).body
    assert isinstance(told, bytes)
    assert b'rookery_refusals_total{event="join_refused",kind="identity_unknown"} 3000.0' in told


def test_a_worker_that_fails_again_and_again_is_told_once_with_its_traceback(
    coordinator: Coordinator, caplog: pytest.LogCaptureFixture
) -> None:
    """Its newest ones are in the summary."""
    error = "Traceback (most recent call last):\n" + "  at line 1\n" * 5000 + "ValueError: no"
    for number in range(1, 40):
        coordinator._join(b"a", join("actor", f"a{number}", name="actor-0"))
        coordinator._leave(b"a", Leave(name="actor-0", token=f"a{number}", incarnation=number, error=error))
    assert len(coordinator._errors) == 20
    lines = [line.partition(" ")[0] for line in caplog.messages]
    assert lines.count("event=worker_traceback") == 1
    assert lines.count("event=worker_failed") == 4
    assert len("".join(caplog.messages)) < 2 * len(error)


def test_of_one_that_is_known_to_be_gone_nothing_more_is_looked_at(coordinator: Coordinator, server: Any) -> None:
    server.gone.add(b"dead")
    coordinator._join(b"dead", join("actor", "dead", host="elsewhere"))
    assert server.answers == []


def test_what_an_actor_left_undelivered_stays_until_learners_have_been_there_for_a_while(
    coordinator: Coordinator, server: Any, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the learner comes back long after the actor has gone."""
    monkeypatch.setattr(coordinating, "_SALVAGE_SECONDS", 20.0)
    coordinator._join(b"a", join("actor", "a"))
    welcome = server.answers[-1]
    assert isinstance(welcome, Welcome)
    ring = memory_dir / f"{PREFIX}{welcome.run}-actor-0.1-agent_0.ring"
    ring.touch()
    farewell = Leave(name="actor-0", token="a", incarnation=1, counters={"backlog.agent_0": 0, "flight.agent_0": 4})
    coordinator._leave(b"a", farewell)
    now = time.monotonic()
    for seconds in (0, 100, 1000):
        coordinator._sweep_lost(now + seconds)
        assert ring.exists(), "no learner is there"
    coordinator._join(b"l", join("learner", "l"))
    coordinator._sweep_lost(now + 1019)
    assert ring.exists()
    coordinator._sweep_lost(now + 1021)
    assert not ring.exists()
