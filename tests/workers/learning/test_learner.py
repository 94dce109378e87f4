"""The learner process: what it leaves when it cannot even begin."""

from __future__ import annotations

import math
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq

from protocol.config.run import Run
from protocol.errors import SharedMemoryError
from protocol.experience.receipt_log import ReceiptLog
from protocol.memory.shared_file import PREFIX, Counters
from protocol.messages.core import Status, Welcome
from protocol.weights.shared_snapshot import SharedSnapshot
from tests.faults import raises
from tests.workers import scripted
from tests.workers.learning.test_policy_learner import STREAM, Bench, run_of
from workers.learner import Learner
from workers.learning.policy_learner import PolicyLearner
from workers.planning.data_parallel import ledger_path
from workers.planning.policy_plan import plan_policies
from workers.runtime.health import Health
from workers.runtime.metric_names import Identity


def _learner(run: Run, folder: Path | None = None, unheard: bool = False) -> tuple[Learner, zmq.Context[Any]]:
    """A learner that was just welcomed, and the context of its sockets. `unheard`: its coordinator says no more."""
    welcome = Welcome(
        run="r",
        name="learner-0",
        incarnation=1,
        config=run.model_dump_json(),
        world=scripted.WORLD.model_dump_json(),
        run_dir=str(folder or ""),
        policies=["one"],
        lease=5.0,
        heartbeat=1.0,
    )
    options = SimpleNamespace(host_and_base=("127.0.0.1", 0), insecure=False, advertise="", keys="")
    context = zmq.Context(1)
    vitals = Health(Identity("r", "learner-0", "learner", 1))
    life: Any = SimpleNamespace(
        context=context,
        options=options,
        client=SimpleNamespace(status=None, command="go" if unheard else "stop", changed=threading.Event()),
        report=lambda *_: None,
        vitals=vitals,
    )
    life.stopping = threading.Event()
    return Learner(life, welcome, run, plan_policies(run, scripted.WORLD), scripted.WORLD), context


def test_a_learner_that_finds_weights_of_another_network_ends_with_its_publications_thread(memory_dir: Path) -> None:
    """The thread owns a socket: the context could not end before it."""
    run = run_of(STREAM)
    other = SharedSnapshot.create(memory_dir / f"{PREFIX}r-one.weights", 64, "f" * 16, "snapshot")
    learner, context = _learner(run)
    with raises(SharedMemoryError, "mailbox_of_another_network", file=other.path):
        learner.run()
    assert any(thread.name == "publication" for thread in threading.enumerate())
    learner.close()
    assert not any(thread.name == "publication" for thread in threading.enumerate())
    context.destroy(linger=0)
    other.remove()


def test_data_wake_a_starved_learner_at_once_E7() -> None:
    """However long it would have slept."""
    run = run_of(STREAM).model_copy(update={"starvation_sleep": 5.0})
    learner, context = _learner(run)
    push = context.socket(zmq.PUSH)
    push.connect(learner._addresses[1])
    delays = [math.inf]
    while min(delays) >= 0.01 and len(delays) < 20:  # others may have the machine at that moment
        sent: list[float] = []

        def send(at: list[float] = sent) -> None:
            at.append(time.monotonic())
            push.send(b"anything")

        timer = threading.Timer(0.1, send)
        timer.start()
        learner._wait_for_data()
        delays.append(time.monotonic() - sent[0])
        timer.join()
        learner._receiver.receive()
    learner.close()
    push.close(linger=0)
    context.destroy(linger=0)
    assert min(delays) < 0.01, delays


@pytest.mark.usefixtures("memory_dir")
@pytest.mark.parametrize(("command", "waits"), [("go", False), ("drain", True)])
def test_told_to_end_in_a_run_that_goes_on_it_does_not_wait_for_actors_to_cease_sending(
    monkeypatch: pytest.MonkeyPatch, command: str, waits: bool
) -> None:
    """They do not; what it has not settled they send to its next incarnation."""
    run = run_of(STREAM).model_copy(update={"learner_timeout": 1.0 if waits else 600.0})
    learner, context = _learner(run)
    learner._life.client = SimpleNamespace(command=command, status=None)  # type: ignore[assignment] # what is asked of it
    learner._life.stopping.set()

    def arriving() -> int:
        time.sleep(0.01)
        return 1

    monkeypatch.setattr(learner._receiver, "receive", arriving)
    began = time.monotonic()
    learner.run()
    took = time.monotonic() - began
    learner.close()
    context.destroy(linger=0)
    assert took > 0.9 if waits else took < 60, took


def test_schedules_go_on_by_the_rows_that_were_received_not_by_segments_which_may_be_short_or_unread(
    tmp_path: Path, memory_dir: Path
) -> None:
    (tmp_path / "run_id").write_text("r")
    ReceiptLog(ledger_path(tmp_path, "one", 0)).acknowledge("actor-0", 1, 10, 10)
    for incarnation, rows in ((7, 6), (8, 10)):
        Counters(tmp_path / "counters" / f"learner-0.{incarnation}", ["rows_received.one"]).set(
            "rows_received.one", rows
        )
    learner, context = _learner(run_of(STREAM), tmp_path)
    learner._begin()
    (member,) = learner._members
    assert member.progress == 16 / 1_000
    learner.close()
    context.destroy(linger=0)


def test_who_cannot_publish_what_it_learned_before_it_was_frozen_starts_again_and_the_others_go_on(
    memory_dir: Path,
) -> None:
    learner, context = _learner(run_of(STREAM))
    learner._begin()
    (member,) = learner._members
    learner._cohort.add(Bench(run_of(STREAM)).member)
    member._withheld, member._published_step = 2, -1
    for parameter in member.policy.parameters():
        parameter.data.fill_(math.nan)
    client: Any = learner._life.client
    client.status = Status(command="go", view={"roster": {"rates": {}, "frozen": ["one"]}})
    learner._follow_status()
    assert member.frozen
    assert member._finite()
    assert learner._counters["member_restarts.one"] == 1
    learner.close()
    context.destroy(linger=0)


def test_a_learner_whose_coordinator_is_away_goes_on_with_what_it_has(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, context = _learner(run_of(STREAM), unheard=True)
    stopping = learner._life.stopping
    late: list[bool] = []

    def take(_: PolicyLearner) -> bool:
        late.append(stopping.is_set())
        stopping.set()
        return False

    monkeypatch.setattr(PolicyLearner, "take", take)
    monkeypatch.setattr("workers.learner._LAST_SECONDS", 0.0)
    monkeypatch.setattr("workers.learner._ORDERS_SECONDS", 0.1)
    end = threading.Timer(20.0, stopping.set)
    end.start()
    learner.run()
    end.cancel()
    learner.close()
    context.destroy(linger=0)
    assert not late[0]


def test_a_learner_learns_nothing_before_it_has_heard_what_holds_for_its_policies(
    memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, context = _learner(run_of(STREAM), unheard=True)
    client: Any = learner._life.client
    stopping = learner._life.stopping
    looks: list[bool] = []
    resume = PolicyLearner.resume

    def resumed(member: PolicyLearner, *given: Any) -> None:
        looks.append(member.frozen)
        resume(member, *given)

    ticks: list[float] = []

    def take(member: PolicyLearner) -> bool:
        looks.append(member.frozen)
        stopping.set()
        return False

    def tell() -> None:
        ticks.append(learner._life.vitals.ticked_at)
        client.status = Status(command="go", view={"roster": {"rates": {}, "frozen": ["one"]}})
        client.changed.set()

    monkeypatch.setattr(PolicyLearner, "take", take)
    monkeypatch.setattr(PolicyLearner, "resume", resumed)
    monkeypatch.setattr("workers.learner._LAST_SECONDS", 0.0)
    later = threading.Timer(0.3, tell)
    later.start()
    learner.run()
    later.join()
    learner.close()
    context.destroy(linger=0)
    assert len(looks) > 1, "as it resumes, and as it learns"
    assert all(looks)
    assert ticks[0] > 0, "it does not hang meanwhile"
