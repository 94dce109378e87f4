"""A run that stays while actors come and go, from none to fifty and back: nobody else is started again for it."""

from __future__ import annotations

import json
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.benchmarks.bench_scale import record
from tests.flows import runs

MANY, PLACE = 50, 5_120
"""Actors, and steps of each."""
NEXT = """
import protocol
protocol.RELEASE, protocol.SCHEMA = "9.9.9", protocol.SCHEMA + 1
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_actors_go_from_0_to_50_and_back_and_nobody_else_is_started_again(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that acts leaves a recording, which fifty send again, each a member with a ring and a credit of its own. Half
    of those that come back are of the next release, which speaks one schema more."""
    data = runs.config(steps=MANY * PLACE, actors=MANY, num_learner_processes=1, transport="tcp", actor_timeout=30)
    with ExitStack() as stack:

        def start(name: str, *command: str) -> runs.Worker:
            return stack.enter_context(runs.started(command, tmp_path, name))

        def members(role: str) -> int:
            state = tmp_path / "run" / "state.json"
            found = json.loads(state.read_text())["members"] if state.exists() else []
            return sum(member["role"] == role for member in found)

        config = str(runs.write(data, tmp_path))
        coordinator = start(
            "coordinator", "coordinator", config, "--run-dir", str(tmp_path / "run"), "--bind", "127.0.0.1:0"
        )
        told = tmp_path / "run" / "coordinator.json"
        runs.until(told.exists, what="the coordinator is up")
        address = json.loads(told.read_text())["address"]
        learner = start("learner", "learner", "--coordinator", address)
        runs.until(lambda: members("learner") == 1, 240, what=f"the learner is there: {learner.said}")
        real = start("actor", "actor", "--coordinator", address)
        runs.until(lambda: runs.agent_steps(tmp_path) > 300, 240, what=f"the run is on: {real.said}")
        record(data, memory_dir, tmp_path / "recorded.npz")
        stop(real)
        runs.until(lambda: members("actor") == 0, 240, what="nobody acts")
        command = (runs.PYTHON, "-m", "tests.benchmarks.replaying", address, str(tmp_path / "recorded.npz"))
        before = runs.agent_steps(tmp_path)
        first = start("first", *command, str(MANY), "2.0")
        runs.until(lambda: members("actor") == MANY, 240, what=f"all are there: {first.said}")
        runs.until(lambda: runs.agent_steps(tmp_path) >= before + 10 * MANY, 240, what=f"they send: {first.said}")
        stop(first)
        runs.until(lambda: members("actor") == 0, 240, what="nobody acts")
        assert members("learner") == 1
        again = start("again", *command, str(MANY // 2), "0.2")
        (tmp_path / "next").mkdir()
        (tmp_path / "next" / "sitecustomize.py").write_text(NEXT)
        monkeypatch.setattr(runs, "EXTRA_PATH", str(tmp_path / "next"))
        upgraded = start("upgraded", *command, str(MANY - MANY // 2), "0.2")
        assert [worker.wait(400) for worker in (again, upgraded, learner, coordinator)] == [0, 0, 0, 0]
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert {name for name in summary["restarts"] if not name.startswith("actor-")} == set()
    segments = summary["segments"]
    assert runs.balanced(segments), segments
    assert segments["unexplained"] == segments["in_flight"] == sum(segments["dropped"].values()) == 0
    assert "Traceback" not in coordinator.said + learner.said


def stop(worker: runs.Worker) -> None:
    """As a scheduler does."""
    worker.popen.send_signal(signal.SIGTERM)
    worker.wait(240)
