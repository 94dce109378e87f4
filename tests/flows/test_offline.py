"""A run keeps what it trained on, and another learns from it with a coordinator and learners alone (J5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from protocol.config.run import EnvironmentConfig
from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.flows.runs import balanced, config, rookery, summary_of, train, workers_of
from tests.playing import play
from tests.waiting import until
from workers.environments.registry import make
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer

POLICIES = ("agent_0", "agent_1")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two policies that was recorded."""
    folder = tmp_path_factory.mktemp("recorded")
    made = train(config(steps=3_000, policy={"record": True}), folder, "--no-progress")
    assert made.returncode == 0, made.stderr
    return folder / "run"


def offline(path: Path, algorithm: dict[str, Any], steps: int = 2_000, **keys: Any) -> dict[str, Any]:
    return config(algorithm, steps, actors=0, policy={"dataset": {"path": str(path / "datasets")}}, **keys)


def test_everything_received_is_recorded_J5(recorded: Path) -> None:
    summary = json.loads((recorded / "summary.json").read_text())
    assert sum(summary["recorded"].values()) == summary["segments"]["received"] > 100
    assert sorted(path.name for path in (recorded / "datasets").iterdir()) == list(POLICIES)
    assert summary["rows"] == {p: {"read": 0, "trained": summary["rows"][p]["trained"]} for p in POLICIES}


BC = {"name": "bc", "batch_size": 16}
IQN = {**runs.IQN, "frames": 2}


@pytest.fixture(scope="module")
def cloned(recorded: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that learned from it by a coordinator and two learners."""
    folder = tmp_path_factory.mktemp("cloned")
    result = train(offline(recorded, BC), folder, "--no-progress")
    assert result.returncode == 0, result.stderr
    return folder


def accounted(summary: dict[str, Any], recorded: Path, stream: bool) -> None:
    """Everything recorded was read, and a thousand rows of each policy were trained on, and no batch more."""
    was = json.loads((recorded / "summary.json").read_text())
    assert summary["complete"]
    assert (summary["agent_steps"], summary["env_steps"]) == (0, 0)
    assert balanced(summary["segments"], stream)
    assert summary["segments"]["produced"] == sum(was["recorded"].values())
    assert summary["segments"]["unexplained"] == 0
    for policy in POLICIES:
        rows = summary["rows"][policy]
        assert rows["read"] == 8 * was["recorded"][policy]
        assert 1_000 <= rows["trained"] < 1_000 + 16
        assert summary["train_steps"][policy] == rows["trained"] // 16
        assert summary["versions"][policy] >= summary["train_steps"][policy]
    assert summary["lag"] == {"mean": 0, "max": 0}
    assert summary["verdict"] in ("starting", "learner-bound")


def test_learners_train_without_any_actor_and_end_by_themselves_J5(recorded: Path, cloned: Path) -> None:
    accounted(summary_of(cloned), recorded, stream=True)
    state = json.loads((cloned / "run" / "state.json").read_text())
    assert sorted(state["incarnations"])[:2] == ["learner-agent_0", "learner-agent_1"]
    assert not any(name.startswith("actor") for name in state["incarnations"])


def test_one_process_does_the_same_with_replay_of_stacked_frames_J5(recorded: Path, tmp_path: Path) -> None:
    result = train(offline(recorded, IQN), tmp_path, "--no-progress", "--sequential")
    assert result.returncode == 0, result.stderr
    accounted(summary_of(tmp_path), recorded, stream=False)


def test_what_was_cloned_is_exported_and_plays_J5(cloned: Path) -> None:
    told = rookery("export", "run", "--policy", "agent_0", "--out", "cloned.safetensors", cwd=cloned)
    assert told.returncode == 0, told.stderr
    frozen = ExportedPolicy.load(cloned / "cloned.safetensors")
    assert frozen.manifest.config.algorithm.name == "bc"
    world = make(EnvironmentConfig(copies=4, settings={"width": 9, "height": 9, "turns": 20}))
    returns = play(world, {name: FrozenPlayer(frozen, 4) for name in POLICIES}, 4, seed=1)
    assert all(np.isfinite(mean) for mean, _ in returns.values())


@pytest.mark.slow
def test_a_learner_that_is_killed_goes_on_from_its_checkpoint_J5(recorded: Path, tmp_path: Path) -> None:
    data = offline(recorded, BC, 30_000, checkpoint_interval=0.5)
    with runs.training(data, tmp_path) as worker:
        checkpoints = tmp_path / "run" / "checkpoints" / "agent_0"
        until(lambda: checkpoints.is_dir() and any(path.name.isdigit() for path in checkpoints.iterdir()))
        psutil.Process(workers_of(tmp_path)["learner-agent_0"]).kill()
        assert worker.wait() == 0, worker.said
    summary = summary_of(tmp_path)
    assert summary["restarts"] == {"learner-agent_0": 1}
    assert summary["rows"]["agent_0"]["trained"] >= 15_000  # what was trained after the checkpoint is trained again
    assert 15_000 <= summary["rows"]["agent_1"]["trained"] < 15_016
    assert balanced(summary["segments"])
    assert summary["segments"]["unexplained"] == 0


@pytest.mark.parametrize(
    "how", [(), pytest.param(("--sequential",), marks=pytest.mark.slow)], ids=["workers", "sequential"]
)
def test_what_cannot_be_learned_from_ends_the_run_with_a_sentence_J5(
    recorded: Path, tmp_path: Path, memory_dir: Path, how: tuple[str, ...]
) -> None:
    data = offline(recorded, BC)
    data["environment"] = {"id": "tag", "copies": 8}
    data["policy"]["dataset"]["path"] += "/agent_0"
    result = train(data, tmp_path, "--no-progress", *how)
    assert result.returncode != 0
    assert "Traceback" not in result.stderr
    last = result.stderr.strip().splitlines()[-1]
    assert kinds_in(last)[0] == "dataset_agent_mismatch", result.stderr
    assert "observation" in words_in(last)
    assert runs.files(memory_dir) == []
