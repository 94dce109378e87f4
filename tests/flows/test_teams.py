"""Teams in whole runs: apart and in one process, and what is left of one as a file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import EnvironmentFault
from tests.faults import kinds_in, words_in
from tests.flows import runs
from tests.playing import play
from tests.trial import Trial
from workers.environments.registry import make
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer

VDN = {
    **runs.SAC,
    "name": "vdn",
    "gamma": 0.5,
    "batch_size": 32,
    "replay_ratio": 4.0,
    "epsilon_decay": 0.1,
    "epsilon_decay_freq": 5,
}


def game(steps: int = 2_000) -> dict[str, Any]:
    """A short game, played by both players as one: it pays each who does the right thing."""
    settings = {"game": "own", "payoffs": [[[0, 1], [0, 0]], [[1, 1], [1, 0]]], "turns": 5, "observe": "last"}
    environment = {"id": "matrix_game", "copies": 8, "settings": settings, "teams": {"pair": "all"}}
    data = runs.config(VDN, steps=steps, policy={"learning_rate": 0.01})
    return {**data, "environment": {**environment, "team_reward": "mean"}, "baseline_episodes": 20}


def test_a_team_is_trained_and_its_policy_plays_without_the_run_J7(
    tmp_path: Path, memory_dir: Path, trial: Trial
) -> None:
    """One policy for both; its books are exact; exported, it does what is best."""
    data = game(trial.steps(3_000))
    data["policy"]["learning_rate"] = trial.rate(data["policy"]["learning_rate"])
    result = runs.train(data, tmp_path, "--seed", str(trial.seed))
    assert result.returncode == 0, result.stderr
    summary = runs.summary_of(tmp_path)
    assert summary["complete"] is True
    assert set(summary["returns"]) == {"pair"}
    assert summary["agent_steps"] == summary["env_steps"], "a team takes one step a turn"
    assert summary["baselines"]["pair"].get("scripted", 5) == 5
    assert runs.balanced(summary["segments"], stream=False), summary["segments"]
    assert runs.files(memory_dir) == []
    told = runs.rookery("export", "run", "--out", "pair.safetensors", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    frozen = ExportedPolicy.load(tmp_path / "pair.safetensors")
    world = make(EnvironmentConfig.model_validate({**game()["environment"], "copies": 4}))
    ((mean, _),) = play(world, {"pair": FrozenPlayer(frozen, 4)}, 4, seed=0).values()
    trial.reaches(mean, 5)
    assert summary["train_steps"]["pair"] > 100


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bits_in_one_process_A9(tmp_path: Path) -> None:
    weights = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        result = runs.train(game(600), tmp_path / name, "--sequential")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["train_steps"]["pair"] > 10
        places = sorted((tmp_path / name / "run" / "checkpoints").rglob("*.safetensors"))
        weights.append([place.read_bytes() for place in places])
    assert weights[0] == weights[1]


def test_agents_that_take_turns_are_no_team_and_the_run_says_so(tmp_path: Path) -> None:
    data = runs.config(steps=500)
    data["environment"]["teams"] = {"hunters": "all"}
    result = runs.train(data, tmp_path)
    assert result.returncode == EnvironmentFault.exit_code
    assert kinds_in(result.stderr) == ["teammate_absent"]
    assert "'hunters'" in words_in(result.stderr)
    assert "Traceback" not in result.stderr
