"""One policy trained by two learner processes, each with its own actor: learning, killed, started by torchrun."""

from __future__ import annotations

import re
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs
from tests.flows.test_deaths import finished, killed, log_of

RANKED: dict[str, Any] = {"agents": {"agent_0": "shared", "agent_1": "shared"}, "actors": 2}
"""Both agents' policy, of two ranks with an actor each."""


@pytest.mark.timeout(1200)
def test_a_run_goes_on_when_one_of_its_ranks_is_killed_and_its_books_are_exact_G1(
    tmp_path: Path, memory_dir: Path
) -> None:
    """All ranks go back to the last checkpoint together; the actors are not restarted."""
    data = runs.paced(tmp_path, 6_400, pause=0.004, checkpoint_interval=0.5, policy={"ranks": 2}, **RANKED)
    with runs.training(data, tmp_path) as worker:
        saved = tmp_path / "run" / "checkpoints" / "shared"
        runs.until(lambda: list(saved.glob("[0-9]*")), seconds=600, what="a checkpoint")
        killed(tmp_path, "learner-shared-1", of=5)
        summary = finished(tmp_path, worker, memory_dir, {"learner-shared-0": 1, "learner-shared-1": 1})
    assert "was killed by signal 9 (SIGKILL); starting it again" in worker.said
    for rank in range(2):
        log = log_of(tmp_path, f"learner-shared-{rank}")
        assert log.count(f"event=ranks_connected policy=shared rank={rank} ranks=2 backend=gloo") == 2
        assert log.count("event=checkpoint ") == 0 or rank == 0
    first = log_of(tmp_path, "learner-shared-0")
    assert re.search(r"event=failed kind=rank_(left|lost) ", first)
    assert "event=resumed policy=shared from=checkpoint" in first
    assert summary["segments"]["trained"] > 0
    assert summary["train_steps"]["shared"] > 0


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_torchrun_starts_the_ranks_of_a_policy(tmp_path: Path, memory_dir: Path, free_port_block: int) -> None:
    """It says which of them each is, and where they meet; the rest they are told at joining."""
    path = str(runs.write(runs.config(steps=3_200, policy={"ranks": 2}, **RANKED), tmp_path))
    to = ["--coordinator", f"tcp://127.0.0.1:{free_port_block}"]
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    command += [str(free_port_block + 5), "-m", "workers.learner", *to, "--name", "learner-shared"]
    with ExitStack() as stack:
        line = [
            "coordinator",
            "--open",
            path,
            "--run-dir",
            str(tmp_path / "run"),
            "--bind",
            f"127.0.0.1:{free_port_block}",
        ]
        workers = [stack.enter_context(runs.started(line, tmp_path, "coordinator"))]
        runs.until((tmp_path / "run" / "coordinator.json").exists, what="coordinator is up")
        workers.append(stack.enter_context(runs.started(command, tmp_path, "torchrun")))
        for number in range(2):
            workers.append(stack.enter_context(runs.started(["actor", *to], tmp_path, f"actor-{number}")))
        for worker in workers:
            assert worker.wait(600) == 0, worker.said
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert runs.balanced(summary["segments"])
    assert summary["restarts"] == {}
    for rank in range(2):
        assert f"event=ranks_connected policy=shared rank={rank} ranks=2" in log_of(tmp_path, f"learner-shared-{rank}")
    assert runs.files(memory_dir) == []
