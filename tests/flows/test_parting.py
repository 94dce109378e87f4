"""An actor that is told to end while its learner is away: what it had finished is delivered when the learner is back in
time, and what it could not deliver lies where the next one finds it. Nothing stays in flight."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs

pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(1800)]
PATIENCE = 400.0
"""Seconds; on a busy machine workers that are started take minutes."""
Begin = Callable[..., runs.Worker]


def waiting(folder: Path, begin: Begin, address: str, **keys: Any) -> tuple[runs.Worker, runs.Worker]:
    """A coordinator, and an actor whose learner was told to end and which has used up its credit since."""
    data = runs.paced(folder, 1_000_000, actors=1, num_learner_processes=1, **keys)
    path = str(runs.write(data, folder))
    coordinator = begin(
        "coordinator", "coordinator", "--open", path, "--run-dir", str(folder / "run"), "--bind", address
    )
    learner, actor = begin("learner", "learner"), begin("actor", "actor")
    runs.until(
        lambda: runs.agent_steps(folder) and len(runs.workers_of(folder)) == 3, seconds=PATIENCE, what="the run is on"
    )
    learner.popen.send_signal(signal.SIGTERM)
    assert learner.wait(PATIENCE) == 128 + signal.SIGTERM

    def still() -> bool:
        before = runs.agent_steps(folder)
        time.sleep(2.0)
        return before == runs.agent_steps(folder)

    runs.until(still, seconds=PATIENCE, what="the actor waits for credit")
    return coordinator, actor


def books(folder: Path, coordinator: runs.Worker) -> dict[str, Any]:
    """Of the run, which is ended for that."""
    coordinator.popen.send_signal(signal.SIGTERM)
    coordinator.wait(PATIENCE)
    segments = dict(runs.summary_of(folder)["segments"])
    assert runs.balanced(segments), segments
    assert segments["in_flight"] == segments["unexplained"] == 0, segments
    return segments


@pytest.fixture
def begin(tmp_path: Path, free_port_block: int) -> Any:
    """Starts a worker by hand."""
    with ExitStack() as stack:

        def one(name: str, *command: str) -> runs.Worker:
            join = () if name == "coordinator" else ("--coordinator", f"tcp://127.0.0.1:{free_port_block}")
            return stack.enter_context(runs.started([*command, *join], tmp_path, name))

        yield one


def test_it_waits_for_the_learner_and_all_it_had_finished_is_trained_on(
    tmp_path: Path, memory_dir: Path, free_port_block: int, begin: Begin
) -> None:
    """The signal finds it waiting for credit, in the middle of a turn."""
    address = f"127.0.0.1:{free_port_block}"
    coordinator, actor = waiting(tmp_path, begin, address, learner_timeout=PATIENCE)
    actor.popen.send_signal(signal.SIGTERM)
    begin("learner-again", "learner")
    assert actor.wait(PATIENCE) == 128 + signal.SIGTERM, actor.said
    assert "event=undelivered" not in actor.said
    segments = books(tmp_path, coordinator)
    assert sum(segments["dropped"].values()) == 0, segments
    assert runs.files(memory_dir) == []


@pytest.mark.parametrize(("transport", "found"), [("auto", "event=recovered"), ("tcp", "event=predecessor_resent")])
def test_what_it_could_not_deliver_in_time_is_found_by_who_comes_next(
    tmp_path: Path, memory_dir: Path, free_port_block: int, begin: Begin, transport: str, found: str
) -> None:
    """A learner that shares its memory takes it from there; to any other the next incarnation of the actor sends it."""
    address = f"127.0.0.1:{free_port_block}"
    coordinator, actor = waiting(tmp_path, begin, address, transport=transport, learner_timeout=8)
    actor.popen.send_signal(signal.SIGTERM)
    assert actor.wait(PATIENCE) == 128 + signal.SIGTERM, actor.said
    assert "event=undelivered policy=agent_0" in actor.said
    again = begin("learner-again", "learner")
    seen = begin("actor-again", "actor") if transport == "tcp" else again
    told = 2 if transport == "tcp" else 1  # a line for each policy, or for those of which something was left
    runs.until(lambda: seen.said.count(found) >= told, seconds=PATIENCE, what=found)
    segments = books(tmp_path, coordinator)
    assert sum(segments["dropped"].values()) == 0, segments
    assert runs.files(memory_dir) == []
