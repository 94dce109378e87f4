"""An actor that is told to end: in the middle of a turn as well, what it had finished is seen to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.config.run import parse_run
from protocol.memory.shared_file import sweep
from protocol.messages.core import Status, Welcome
from workers.actor import Actor
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.runtime.process import Options, WorkerProcess

RUN: dict[str, Any] = {
    "environment": {"copies": 4},
    "policy": {"segment_length": 4, "credits": 8, "network": {"hidden": [4]}},
    "steps": 100_000,
    "learner_timeout": 1.0,
}


def names(memory: Path) -> list[str]:
    """The files in memory."""
    return [path.name for path in sorted(memory.iterdir())]


RINGS = ["rookery-r-actor-0.1-agent_0.ring", "rookery-r-actor-0.1-agent_1.ring"]


@contextmanager
def waiting(monkeypatch: pytest.MonkeyPatch, **told: Any) -> Iterator[Actor]:
    """An actor whose learners are away, and that hears that it is to end, by a signal or what it is `told`, as soon as
    it waits for credit."""
    run = parse_run(RUN)
    environment = CheckedEnvironment(make(run.environment))
    life = WorkerProcess("actor", Options("tcp://127.0.0.1:1", "", "127.0.0.1:0", "", False, 1.0))
    client: Any = SimpleNamespace(command="go", status=None, orphaned=False, changed=Event(), start=lambda report: None)
    life.client = client
    welcome = Welcome(
        run="r",
        name="actor-0",
        incarnation=1,
        config=run.model_dump_json(),
        world=environment.world.model_dump_json(),
        policies=["agent_0", "agent_1"],
        quota=run.end,
        lease=10.0,
        heartbeat=1.0,
    )
    actor = Actor(life, welcome, environment, run)

    def hear() -> None:
        vars(client).update(told)
        if not told:
            life.stopping.set()

    monkeypatch.setattr(actor, "_prepare", lambda: None)
    monkeypatch.setattr(environment, "poll", hear)
    try:
        yield actor
    finally:
        life.context.destroy(linger=0)
        sweep("r")


def test_a_signal_that_finds_it_waiting_for_credit_lets_it_deliver_and_leaves_the_rest_for_the_next(
    monkeypatch: pytest.MonkeyPatch, memory_dir: Path
) -> None:
    """A learner that comes back takes it from there; so it would if the actor had been killed."""
    with waiting(monkeypatch) as actor:
        actor.run()
        counters = actor.counters.snapshot()
        assert counters["waits.drain.agent_0"] + counters["waits.drain.agent_1"] >= 1.0, "it waited for learners"
        assert counters["produced.agent_0"] == counters["backlog.agent_0"] + counters["flight.agent_0"] > 0
        assert counters["produced.agent_1"] == 0
        actor.close()
        assert names(memory_dir) == RINGS[:1], "of the other policy nothing is left"


def test_an_actor_that_owes_nothing_leaves_nothing(monkeypatch: pytest.MonkeyPatch, memory_dir: Path) -> None:
    with waiting(monkeypatch) as actor:
        assert names(memory_dir) == RINGS
        actor.close()
        assert names(memory_dir) == []


def test_told_to_drain_it_waits_for_credit_and_delivery_as_long_as_for_one_and_then_nobody_comes(
    monkeypatch: pytest.MonkeyPatch, memory_dir: Path
) -> None:
    """The run has ended: what it leaves would be nobody's."""
    with waiting(monkeypatch, command="drain", status=Status(command="drain")) as actor:
        actor.run()
        counters = actor.counters.snapshot()
        credit, drain = (
            sum(v for k, v in counters.items() if k.startswith(f"waits.{w}.")) for w in ("credit", "drain")
        )
        assert credit >= 1.0
        assert drain < 1.0
        actor.close()
        assert names(memory_dir) == []
