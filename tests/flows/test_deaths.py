"""kill -9 of any worker in the middle of a run: the run goes on, ends in order, and its books are exact."""

from __future__ import annotations

import json
import re
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.faults import kinds_in
from tests.flows import runs

pytestmark = pytest.mark.chaos


def killed(folder: Path, worker: str, number: int = signal.SIGKILL, at: int = 800, of: int = 4) -> int:
    """Ends `worker`, one `of` so many, once the run has made `at` steps and everyone is there; returns its pid."""
    runs.until(lambda: runs.agent_steps(folder) >= at and len(runs.workers_of(folder)) == of, what="the run is on")
    pid = runs.workers_of(folder)[worker]
    runs.kill(pid, number)
    return pid


def finished(
    folder: Path, worker: runs.Worker, memory: Path, restarts: dict[str, int], steps: int = 6_400
) -> dict[str, Any]:
    """The summary of a run that reached its end, with exact books and nothing left."""
    assert worker.wait() == 0, worker.said
    assert "Traceback" not in worker.said
    summary = runs.summary_of(folder)
    assert summary["complete"] is True
    assert summary["agent_steps"] >= steps
    assert summary["restarts"] == restarts
    assert runs.balanced(summary["segments"]), summary["segments"]
    assert min(v for v in (*summary["segments"]["dropped"].values(), summary["segments"]["lost_in_learner"])) >= 0
    assert runs.files(memory) == []
    return summary


def log_of(folder: Path, worker: str) -> str:
    """Its log."""
    return (folder / "run" / "logs" / f"{worker}.log").read_text()


@pytest.mark.slow
def test_a_killed_actor_is_started_again_and_makes_the_rest_G2(tmp_path: Path, memory_dir: Path) -> None:
    with runs.training(runs.paced(tmp_path, 6_400, pause=0.004), tmp_path) as worker:
        killed(tmp_path, "actor-0")
        summary = finished(tmp_path, worker, memory_dir, {"actor-0": 1})
    assert "was killed by signal 9 (SIGKILL); starting it again" in worker.said
    assert summary["agent_steps"] < 6_800


@pytest.mark.parametrize("transport", [pytest.param(one, marks=pytest.mark.slow) for one in ("auto", "tcp")])
def test_a_killed_learner_resumes_from_what_it_had_saved_or_published_G1_G9(
    tmp_path: Path, memory_dir: Path, transport: str
) -> None:
    """Never from random. The other learner and the actor are not restarted."""
    with runs.training(runs.paced(tmp_path, 6_400, pause=0.004, transport=transport), tmp_path) as worker:
        killed(tmp_path, "learner-agent_1")
        summary = finished(tmp_path, worker, memory_dir, {"learner-agent_1": 1})
    log = log_of(tmp_path, "learner-agent_1")
    resumed = [line for line in log.splitlines() if "event=resumed" in line]
    assert len(resumed) == 1
    assert "from=checkpoint" in resumed[0] or "from=last_published" in resumed[0]
    version = int(resumed[0].rpartition("version=")[2].split()[0])
    assert version > 5
    assert summary["versions"]["agent_1"] > version


def test_a_killed_coordinator_comes_back_and_knows_the_run_G2(tmp_path: Path, memory_dir: Path) -> None:
    """Nobody else is restarted; returns from before its death are in the summary."""
    begun = time.monotonic()
    with runs.training(runs.paced(tmp_path, 3_200, pause=0.008), tmp_path) as worker:
        killed(tmp_path, "coordinator", at=800)
        summary = finished(tmp_path, worker, memory_dir, {"coordinator": 1}, 3_200)
    kept = json.loads((tmp_path / "run" / "books.json").read_text())
    assert min(int(part) for part in kept["returns"]["agent_0"]["parts"]) < 50
    assert 2 < summary["seconds"] < time.monotonic() - begun


@pytest.mark.slow
def test_a_run_that_died_goes_on_where_one_of_its_actors_had_done_its_part(tmp_path: Path, memory_dir: Path) -> None:
    with runs.training(config := runs.paced(tmp_path, 3_200, pause=0.004, actors=2), tmp_path) as worker:
        runs.until(lambda: len(runs.workers_of(tmp_path)) == 5, what="everyone is there")
        pids = runs.workers_of(tmp_path)
        runs.kill(pids["actor-1"], signal.SIGSTOP)
        runs.until(lambda: "event=left worker=actor-0 " in log_of(tmp_path, "coordinator"), what="one is done")
        for pid in (worker.popen.pid, *pids.values()):
            runs.kill(pid)
        worker.wait()
    with runs.training(config, tmp_path) as worker:
        assert worker.wait() == 0, worker.said
    assert runs.summary_of(tmp_path)["complete"] is True
    assert runs.balanced(runs.summary_of(tmp_path)["segments"])
    assert runs.files(memory_dir) == []


def test_who_is_started_again_does_not_take_the_place_of_one_that_is_only_stopped(
    tmp_path: Path, memory_dir: Path
) -> None:
    """That one comes back, would be refused and end in order, and nobody would do what the other had left to do."""
    with runs.training(runs.paced(tmp_path, 6_400, pause=0.012, actors=2, actor_timeout=2), tmp_path) as worker:
        stopped = killed(tmp_path, "actor-0", signal.SIGSTOP, of=5)
        runs.until(lambda: "event=lease_ended worker=actor-0 " in log_of(tmp_path, "coordinator"), what="it is missed")
        runs.kill(runs.workers_of(tmp_path)["actor-1"])
        again = re.compile(r"event=joined worker=actor-\d incarnation=2 ")
        runs.until(lambda: bool(again.search(log_of(tmp_path, "coordinator"))), what="the other is there again")
        with suppress(ProcessLookupError):  # where that took long it was killed
            runs.kill(stopped, signal.SIGCONT)
        assert worker.wait() == 0, worker.said
    assert "join_refused" not in log_of(tmp_path, "coordinator")
    assert runs.summary_of(tmp_path)["complete"] is True
    assert runs.balanced(runs.summary_of(tmp_path)["segments"])
    assert runs.files(memory_dir) == []


def test_a_worker_that_is_told_to_end_by_others_is_started_again(tmp_path: Path, memory_dir: Path) -> None:
    """SIGTERM from outside: it ends in order, nothing is lost, and the run does not wait for it for ever."""
    with runs.training(runs.paced(tmp_path, 3_200, pause=0.008), tmp_path) as worker:
        killed(tmp_path, "actor-0", signal.SIGTERM, at=400)
        summary = finished(tmp_path, worker, memory_dir, {"actor-0": 1}, 3_200)
    segments = summary["segments"]
    assert segments["in_flight"] == segments["dropped"]["actor_lost"] == 0
    assert segments["dropped"]["undelivered"] == 0


def test_a_worker_that_dies_again_and_again_ends_the_run_with_its_last_words_G5_U13(
    tmp_path: Path, memory_dir: Path
) -> None:
    """Bounded, one sentence, exit code not 0, and the summary of what was done; the world's frames are shown once, ours
    are folded, the log has them all, and an error that comes twice at the same place is not tried a third time."""
    data = runs.paced(tmp_path, 6_400, fault="raise", after=40, restarts=3)
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert kinds_in(last) == ["environment_raised", "worker_lost"]
    assert "the floor gave way" in last
    assert "step (worlds_of_this_test.py:" in last
    assert result.stderr.count("starting it again") == 1
    assert result.stderr.count("Traceback") == 1
    trace = result.stderr.partition("Traceback")[2].splitlines()
    assert [re.findall(r"of rookery|worlds_of_this_test.py", line) for line in trace[1:3]] == [
        ["of rookery"],
        ["worlds_of_this_test.py"],
    ]
    assert "checked_environment.py" not in result.stderr
    assert "checked_environment.py" in log_of(tmp_path, "actor-0")
    assert all("worlds_of_this_test.py" in one["error"] for one in runs.summary_of(tmp_path)["errors"])
    assert runs.summary_of(tmp_path)["complete"] is False
    assert runs.balanced(runs.summary_of(tmp_path)["segments"])
    assert runs.files(memory_dir) == []


@pytest.mark.parametrize("how", [(), ("--sequential",)], ids=["workers", "sequential"])
def test_a_run_that_trained_nothing_is_no_success(tmp_path: Path, memory_dir: Path, how: tuple[str, ...]) -> None:
    result = runs.train(runs.config(steps=64), tmp_path, *how)
    assert (result.returncode, result.stdout) == (1, "")
    assert kinds_in(result.stderr) == ["nothing_trained"]
    summary = runs.summary_of(tmp_path)
    assert (summary["complete"], summary["untrained"]) == (False, ["agent_0", "agent_1"])
    again = kinds_in(runs.train(runs.config(steps=64), tmp_path, *how).stderr)
    assert again == (["sequential_run_stopped"] if how else ["nothing_trained"])
    assert runs.files(memory_dir) == []


def test_a_worker_that_cannot_even_be_imported_ends_the_run_bounded_G5_U13(
    tmp_path: Path, memory_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor dies at import: a module it needs is broken on this machine. Learners are never there."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "sitecustomize.py").write_text(
        "import sys, time\n"
        "if 'workers.actor' in sys.orig_argv:\n    sys.modules['torch'] = None\n"
        "if 'workers.learner' in sys.orig_argv:\n    time.sleep(100)\n"
    )
    monkeypatch.setattr(runs, "EXTRA_PATH", str(broken))
    result = runs.train(runs.config(restarts=1), tmp_path, "--no-progress")
    assert result.returncode == 1
    assert re.search(r"actor \(pid \d+\) said:\nTraceback \(most recent call last\):", result.stderr)
    assert "actor ended with exit code 1" in result.stderr.splitlines()[-1]
    assert kinds_in(result.stderr.splitlines()[-1]) == ["worker_lost"]
    assert "torch" in result.stderr.splitlines()[-1]
    assert runs.files(memory_dir) == []


def test_a_world_that_hangs_is_told_with_its_place_and_ends_its_actor_G3_G6(tmp_path: Path, memory_dir: Path) -> None:
    """Its heartbeats go on, so that no lease ends. The coordinator is told; all stacks are in the actor's output."""
    data = runs.paced(tmp_path, 64_000, fault="hang", after=40, stall_timeout=6, restarts=0, num_learner_processes=1)
    result = runs.train(data, tmp_path, "--no-progress")
    assert result.returncode == 1
    last = result.stderr.splitlines()[-1]
    assert re.search(r"actor ended with exit code 4: no turn for \d+ s: it hangs in step ", last), last
    output = (tmp_path / "run" / "logs" / "actor-0.out").read_text()
    assert "(most recent call first)" in output
    assert "worlds_of_this_test.py" in output
    (error,) = runs.summary_of(tmp_path)["errors"]
    assert error["worker"] == "actor-0"
    assert "it hangs in step" in error["error"]
    assert runs.files(memory_dir) == []


@pytest.mark.slow
def test_an_actor_that_hangs_is_killed_and_started_again(tmp_path: Path, memory_dir: Path) -> None:
    """It does not die by itself: the coordinator loses sight of it, and the supervisor acts."""
    with runs.training(runs.paced(tmp_path, 6_400, pause=0.004, actor_timeout=6), tmp_path) as worker:
        pid = killed(tmp_path, "actor-0", signal.SIGSTOP)
        finished(tmp_path, worker, memory_dir, {"actor-0": 1})
    assert re.search(rf"actor \(pid {pid}\) did not answer for \d+ s; killed, starting it again", worker.said)


@pytest.mark.slow
def test_a_coordinator_that_crashes_fails_the_run_with_its_last_words(tmp_path: Path, memory_dir: Path) -> None:
    """Its exit code is not taken for that of a run that was ended early."""
    with runs.training(runs.paced(tmp_path, 64_000, pause=0.004), tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) and len(runs.workers_of(tmp_path)) == 4, what="the run is on")
        (tmp_path / "run" / ".state.json").mkdir()  # where it writes its state aside
        assert worker.wait() == 1
    last = worker.said.strip().splitlines()[-1]
    assert kinds_in(last) == ["file_not_writable", "coordinator_failed"]
    assert "Traceback" not in worker.said
    assert runs.files(memory_dir) == []
