"""A run as its machine sees it: what its workers share and what they cost while they wait."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil

from tests.flows import runs


def end(worker: runs.Worker) -> None:
    """In order."""
    worker.popen.send_signal(signal.SIGINT)
    assert worker.wait() == 1


def test_workers_share_rings_and_weights_beside_their_pages_A5(tmp_path: Path, memory_dir: Path) -> None:
    """In memory a ring for each actor and policy and the weights of each policy; the stop flag is a message, counters
    and ledgers are pages in the run's folder."""
    with runs.training(runs.paced(tmp_path, 1_000_000, pause=0.02), tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path) and len(runs.workers_of(tmp_path)) == 4, what="the run is on")
        run = (tmp_path / "run" / "run_id").read_text().strip()
        expected = [f"rookery-{run}-actor-0.1-agent_{n}.ring" for n in (0, 1)]
        expected += [f"rookery-{run}-agent_{n}.weights" for n in (0, 1)]
        runs.until(lambda: runs.files(memory_dir) == sorted(expected), what="only these files lie in memory")
        mapped = {
            Path(place.path).relative_to(tmp_path / "run").parts[0]
            for pid in runs.workers_of(tmp_path).values()
            for place in psutil.Process(pid).memory_maps(grouped=False)
            if place.path.startswith(str(tmp_path / "run"))
        }
        assert mapped <= {"counters", "ledgers"}
        end(worker)


def test_a_starved_learner_costs_next_to_nothing_E7(tmp_path: Path) -> None:
    """Its world takes half a second a turn."""
    with runs.training(runs.paced(tmp_path, 1_000_000, pause=0.5), tmp_path) as worker:
        runs.until(lambda: runs.agent_steps(tmp_path), what="the run is on")
        learners = [
            psutil.Process(pid) for name, pid in runs.workers_of(tmp_path).items() if name.startswith("learner")
        ]
        assert len(learners) == 2
        shares: list[float] = []
        # the first window may see the end of a start, and on a busy machine the same turns take more processor time
        while not shares or (min(shares) >= 0.05 and len(shares) < 20):
            before, start = [sum(one.cpu_times()[:2]) for one in learners], time.monotonic()
            time.sleep(3.0)
            spent = [sum(one.cpu_times()[:2]) - was for one, was in zip(learners, before, strict=True)]
            shares.append(max(spent) / (time.monotonic() - start))
        assert min(shares) < 0.05, shares
        end(worker)
