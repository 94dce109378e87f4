"""A run whose workers a scheduler keeps, as Kubernetes does: each ends when told and is started again, actors come
and go, and nothing else is started again for it."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.flows import runs

STEPS = 4_000
RESIDENT = ["--resident", "--patience", "120"]


def rejoined(folder: Path, steps: int) -> bool:
    """Whether the newest line of the metrics has more steps than that."""
    return runs.agent_steps(folder) > steps


@pytest.mark.chaos
@pytest.mark.slow
def test_actors_come_and_go_and_the_coordinator_returns_with_nobody_else_started_again(
    tmp_path: Path, memory_dir: Path, free_port_block: int
) -> None:
    """A killed pod would be the same with its unfinished segments lost; see test_deaths. The one actor that stays makes
    the steps of all, and is at the end told to wait."""
    address = f"127.0.0.1:{free_port_block}"
    data = runs.paced(tmp_path, STEPS, pause=0.002, actors=2, num_learner_processes=1)
    coordinator = [
        "coordinator",
        "--open",
        str(runs.write(data, tmp_path)),
        "--run-dir",
        str(tmp_path / "run"),
        "--resident",
    ]
    coordinator += ["--bind", address]
    joining = ["--coordinator", f"tcp://{address}", *RESIDENT]
    with ExitStack() as stack:

        def begin(name: str, *command: str) -> runs.Worker:
            return stack.enter_context(runs.started(command, tmp_path, name))

        first = begin("coordinator-1", *coordinator)
        learner = begin("learner", "learner", "--name", "learner-0", *joining)
        runs.until(lambda: "learner-0" in runs.workers_of(tmp_path), what="the learner is there")
        actors = [begin(f"actor-{i}", "actor", *joining) for i in range(2)]
        runs.until(lambda: len(runs.workers_of(tmp_path)) == 4 and rejoined(tmp_path, 0), what="the run is on")
        first.popen.send_signal(signal.SIGTERM)
        assert first.wait() == 0, first.said
        assert not (tmp_path / "run" / "summary.json").exists()
        before = runs.agent_steps(tmp_path)
        second = begin("coordinator-2", *coordinator)
        actors[0].popen.send_signal(signal.SIGTERM)
        assert actors[0].wait() == 128 + signal.SIGTERM
        runs.until(lambda: rejoined(tmp_path, before), what="the run goes on")
        runs.until((tmp_path / "run" / "summary.json").exists, runs.PATIENCE, what="all steps are made")
        runs.until(
            lambda: "event=joined" in actors[1].said and actors[1].said.count("event=joined") > 1, what="rejoined"
        )
        living = [second, learner, actors[1]]
        assert [worker.popen.poll() for worker in living] == [None, None, None], "they stay when the run has ended"
        for worker in living:
            worker.popen.send_signal(signal.SIGTERM)
            worker.wait()
            assert "Traceback" not in worker.said
        told = runs.summary_of(tmp_path)
        assert begin("coordinator-3", *coordinator, "--until-end").wait() == 0
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert summary["agent_steps"] == STEPS
    assert summary["restarts"].get("learner-0", 0) == 0
    assert summary["restarts"]["coordinator"] == 1, "the third came when all was over"
    assert summary["segments"] == told["segments"], "one that comes back when all is over changes nothing"
    segments = summary["segments"]
    assert runs.balanced(segments), segments
    assert segments["in_flight"] == segments["lost_in_learner"] == segments["unexplained"] == 0
    assert sum(segments["dropped"].values()) == 0
