"""However a run is ended: bounded, with a meaningful exit code, and nothing of it stays."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.flows import runs

BOUND = 25.0
STEPS = 6_000
STARTS = 10.0
"""Seconds in which a run begins, as long as its machine has nothing else to do."""


def everyone(folder: Path) -> tuple[list[int], float]:
    """The pids of all workers of a run that was just started, once all are there and act; and how many times as long
    as on an idle machine everything takes here: at least 1."""
    begun = time.monotonic()
    runs.until(lambda: runs.agent_steps(folder) and len(runs.workers_of(folder)) == 4, what="the run is on")
    return list(runs.workers_of(folder).values()), max(1.0, (time.monotonic() - begun) / STARTS)


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        signal.SIGTERM,
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_a_signal_ends_the_run_in_order_and_the_same_command_goes_on_with_it_B11_G4(
    tmp_path: Path, memory_dir: Path, number: int
) -> None:
    config = runs.paced(tmp_path, STEPS, pause=0.008)
    with runs.training(config, tmp_path) as worker:
        pids, slowness = everyone(tmp_path)
        start = time.monotonic()
        worker.popen.send_signal(number)
        assert worker.wait() == 1
        assert time.monotonic() - start < 15 * slowness  # nobody hangs: nobody has to be waited for until the bound
    assert "stopping: workers finish their turn" in worker.said
    assert "Traceback" not in worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is False
    made = summary["agent_steps"]
    assert 0 < made < STEPS
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert summary["segments"]["in_flight"] == summary["segments"]["lost_in_learner"] == 0
    assert summary["segments"]["dropped"]["undelivered"] == 0
    assert list((tmp_path / "run" / "checkpoints" / "agent_0").iterdir())
    assert runs.alive(pids) == []
    assert runs.files(memory_dir) == []
    gone_on = runs.train(config, tmp_path)
    assert gone_on.returncode == 0, gone_on.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert STEPS <= summary["agent_steps"] < STEPS + made
    assert runs.balanced(summary["segments"]), summary["segments"]


def test_a_second_interrupt_ends_a_hanging_run_at_once_G4(tmp_path: Path, memory_dir: Path) -> None:
    """The world hangs, so that the actor cannot end in order."""
    with runs.training(runs.paced(tmp_path, 1_000_000, fault="hang", after=100), tmp_path) as worker:
        pids, slowness = everyone(tmp_path)
        worker.popen.send_signal(signal.SIGINT)
        runs.until(lambda: "stopping" in worker.said, what="the first interrupt is heard")
        start = time.monotonic()
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1
        assert time.monotonic() - start < 6 * slowness
    assert "Traceback" not in worker.said
    assert runs.alive(pids) == []
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_one_interrupt_ends_even_a_hanging_run_within_the_bound_G4(tmp_path: Path, memory_dir: Path) -> None:
    with runs.training(runs.paced(tmp_path, 1_000_000, fault="hang", after=100), tmp_path) as worker:
        pids, slowness = everyone(tmp_path)
        start = time.monotonic()
        worker.popen.send_signal(signal.SIGINT)
        assert worker.wait() == 1
        assert time.monotonic() - start < BOUND * slowness
    assert runs.summary_of(tmp_path)["complete"] is False
    assert runs.alive(pids) == []
    assert runs.files(memory_dir) == []


@pytest.mark.chaos
def test_when_the_supervisor_is_killed_all_workers_end_and_clear_away_B11(tmp_path: Path, memory_dir: Path) -> None:
    """kill -9 of `rookery train` itself; nobody sweeps afterwards."""
    with runs.training(runs.paced(tmp_path, 1_000_000, pause=0.002), tmp_path) as worker:
        pids, _ = everyone(tmp_path)
        assert runs.files(memory_dir) != []
        worker.popen.kill()
        runs.until(lambda: not runs.alive(pids), what="all workers have ended")
    assert runs.files(memory_dir) == []
    assert runs.summary_of(tmp_path)["complete"] is False


@pytest.mark.chaos
def test_when_supervisor_and_coordinator_are_killed_the_rest_still_clears_away_B11(
    tmp_path: Path, memory_dir: Path
) -> None:
    with runs.training(runs.paced(tmp_path, 1_000_000, pause=0.002), tmp_path) as worker:
        pids, _ = everyone(tmp_path)
        worker.popen.kill()
        runs.kill(runs.workers_of(tmp_path)["coordinator"])
        runs.until(lambda: not runs.alive(pids), what="all workers have ended")
    assert runs.files(memory_dir) == []


@pytest.mark.chaos
@pytest.mark.slow
def test_an_orphan_that_hangs_ends_itself_B11(tmp_path: Path) -> None:
    with runs.training(runs.paced(tmp_path, 1_000_000, fault="hang", after=100), tmp_path) as worker:
        pids, _ = everyone(tmp_path)
        worker.popen.kill()
        runs.until(lambda: not runs.alive(pids), what="all workers have ended")


@pytest.mark.chaos
@pytest.mark.slow
def test_the_next_start_sweeps_what_a_killed_machine_left_B11_U14(tmp_path: Path, memory_dir: Path) -> None:
    """Everything is killed at once; a leftover in use by nobody goes, the next run is not disturbed."""
    with runs.training(runs.paced(tmp_path, 1_000_000, pause=0.002), tmp_path) as worker:
        pids, _ = everyone(tmp_path)
        worker.popen.kill()
        for pid in pids:
            runs.kill(pid)
        runs.until(lambda: not runs.alive(pids), what="all workers have ended")
    assert runs.files(memory_dir) != []
    second = tmp_path / "second"
    second.mkdir()
    assert runs.train(runs.config(steps=1_600), second).returncode == 0
    assert runs.files(memory_dir) == []
