"""`rookery train` from beginning to end: separate processes, exact books, a whole folder, nothing left behind."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs
from tests.waiting import until
from workers.policies import checkpoint

FILES = ("config.yaml", "summary.json", "metrics.jsonl", "tensorboard", "logs", "checkpoints")


def check(folder: Path, memory: Path, result: Any, policies: dict[str, str], steps: int) -> dict[str, Any]:
    """What holds for every finished run; returns its summary."""
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    summary = json.loads(result.stdout)
    assert summary == runs.summary_of(folder)
    assert summary.keys() >= runs.SUMMARY
    assert summary["complete"] is True
    assert steps <= summary["agent_steps"] < steps + 1_000
    assert summary["agent_steps"] == 2 * summary["env_steps"]
    for policy in policies:
        assert summary["train_steps"][policy] > 0
        assert summary["versions"][policy] > 1
        assert summary["baselines"][policy].keys() >= {"random", "scripted"} or summary["baselines_missing"]
        assert set(summary["returns"][policy]) == {"first", "last", "best"}
        kept = list((folder / "run" / "checkpoints" / policy).iterdir())
        assert 1 <= len(kept) <= 3, "the newest two and the best"
        names = {file.name for file in max(kept, key=lambda path: int(path.name)).iterdir()}
        assert names >= {"weights.safetensors", "manifest.json", "optimizer.safetensors"}
    segments = summary["segments"]
    assert runs.balanced(segments, stream=set(policies.values()) == {"ppo"}), segments
    assert segments["produced"] > 0
    assert segments["torn"] == segments["in_flight"] == segments["lost_in_learner"] == 0
    assert segments["dropped"]["undelivered"] == 0
    assert all((folder / "run" / name).exists() for name in FILES)
    assert (folder / "run" / "logs" / "actor-0.log").stat().st_size > 0
    assert runs.files(memory) == []
    return summary


def pids(folder: Path) -> set[int]:
    """Of all workers that ever joined, from the coordinator's log."""
    log = (folder / "run" / "logs" / "coordinator.log").read_text()
    joined = [line for line in log.splitlines() if "event=joined" in line and "supervisor" not in line]
    return {int(line.rpartition("pid=")[2]) for line in joined}


LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - (\S+) - (DEBUG|INFO|WARNING|ERROR) - \S.*")


@pytest.mark.parametrize(
    "transport", ["auto", *(pytest.param(other, marks=pytest.mark.slow) for other in ("memory", "tcp"))]
)
def test_ppo_trains_through_separate_processes_A1_A3_A6_H3_H4(tmp_path: Path, memory_dir: Path, transport: str) -> None:
    """Two learners, one actor, whatever carries the segments; the workers' processes are all different."""
    data = runs.config(steps=4_000, transport=transport, log_interval=1, baseline_episodes=200)
    result = runs.train(data, tmp_path)
    summary = check(tmp_path, memory_dir, result, {"agent_0": "ppo", "agent_1": "ppo"}, 4_000)
    assert len(pids(tmp_path)) == 3
    causes = ("overwritten", "no_credit", "recycled", "stale", "frozen", "actor_lost", "undelivered")
    assert summary["segments"]["dropped"] == dict.fromkeys(causes, 0)
    assert summary["segments"]["trained"] >= 0.9 * summary["segments"]["produced"]
    logs = {path.stem: path.read_text().splitlines() for path in (tmp_path / "run" / "logs").glob("*.log")}
    assert logs.keys() == {"actor-0", "baselines", "coordinator", "learner-agent_0", "learner-agent_1"}
    for name, lines in logs.items():  # time, name, level, message
        assert {matched[1] if (matched := LINE.fullmatch(line)) else line for line in lines} == {name}
    assert summary["env_steps_per_second"] > 0
    assert summary["train_steps_per_second"] > 0
    assert summary["waits"].keys() >= {f"{what}.agent_{n}" for what in ("data", "credit") for n in (0, 1)}


@pytest.mark.parametrize("transport", [pytest.param("auto", marks=pytest.mark.slow), "tcp"])
def test_iqn_trains_through_separate_processes_B6_C5(tmp_path: Path, memory_dir: Path, transport: str) -> None:
    data = runs.config(runs.IQN | {"frames": 3}, steps=4_000, transport=transport)
    summary = check(tmp_path, memory_dir, runs.train(data, tmp_path), {"agent_0": "iqn", "agent_1": "iqn"}, 4_000)
    assert 0.2 < summary["rows_trained_per_row_made"] < 0.6


def test_policies_of_one_run_differ_in_algorithm_network_and_rates_A3_A4(tmp_path: Path, memory_dir: Path) -> None:
    """One learner process serves both in turn, two actors feed it."""
    other = {"algorithm": runs.IQN, "network": {"hidden": [8, 8]}, "learning_rate": 0.003, "segment_length": 4}
    data = runs.config(steps=3_200, policies={"agent_1": other}, num_learner_processes=1, actors=2)
    summary = check(tmp_path, memory_dir, runs.train(data, tmp_path), {"agent_0": "ppo", "agent_1": "iqn"}, 3_200)
    assert len(pids(tmp_path)) == 3
    for policy, algorithm, hidden in (("agent_0", "ppo", [16]), ("agent_1", "iqn", [8, 8])):
        newest = max((tmp_path / "run" / "checkpoints" / policy).iterdir(), key=lambda path: int(path.name))
        manifest = json.loads((newest / "manifest.json").read_text())
        assert manifest["config"]["algorithm"]["name"] == algorithm
        assert manifest["config"]["network"]["hidden"] == hidden
    assert summary["restarts"] == {}


def test_a_run_ends_at_its_seconds_too(tmp_path: Path, memory_dir: Path) -> None:
    data = runs.paced(tmp_path, 100_000_000, pause=0.002, seconds=1.5)
    result = runs.train(data, tmp_path)
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert 1.4 < summary["seconds"] < 60
    assert runs.balanced(summary["segments"])
    assert runs.files(memory_dir) == []


def test_the_best_is_on_disk_while_the_run_goes_on_however_long_the_clock_is(tmp_path: Path, memory_dir: Path) -> None:
    """No checkpoint is due by time or by steps."""
    folder = tmp_path / "run" / "checkpoints" / "agent_0"

    def best() -> int | None:
        return checkpoint.best(folder) if folder.is_dir() else None

    with runs.training(runs.config(steps=10**9, checkpoint_interval=10_000.0), tmp_path) as worker:
        assert until(best, what="a checkpoint that knows of its return")
        worker.popen.send_signal(signal.SIGINT)
        worker.wait()
