"""Training from Python: the same configurations, workers and progress as by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import launch
from launch.config_loader import load
from launch.local import supervisor
from protocol.errors import ConfigurationError
from tests.faults import raises


def test_train_makes_the_run_that_the_command_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def run(*given: Any) -> supervisor.RunOutcome:
        asked.append(given)
        given[2]({"policies": {}})
        return supervisor.RunOutcome(True, {"agent_steps": 10})

    monkeypatch.setattr(supervisor, "train", run)
    monkeypatch.setattr(supervisor, "train_sequential", run)
    done = launch.train(
        "cartpole",
        settings={"policy.learning_rate": 0.01, "policy.network.hidden": [8]},
        seed=3,
        run_dir=tmp_path / "r",
    )
    assert (done.complete, done.summary, done.folder) == (True, {"agent_steps": 10}, tmp_path / "r")
    made, folder, *_ = asked[0]
    assert folder == tmp_path / "r"
    assert (made.seed, made.policy.learning_rate, made.policy.network.hidden) == (3, 0.01, (8,))
    monkeypatch.chdir(tmp_path)
    assert launch.train(env="mine:make", progress=False, sequential=True).folder.parent == tmp_path / "runs"


def test_an_environment_named_alone_takes_the_place_of_the_presets_own() -> None:
    """What only the preset's world knows is left out; how many copies are played is kept."""
    run = load(None, env="pkg.worlds:make")
    assert (run.environment.id, run.environment.settings, run.environment.copies) == ("pkg.worlds:make", {}, 32)
    assert run.policy == load("cartpole").policy
    of_preset = load("treasure-hunt", ["environment.settings.size=3"], env="gymnasium:Acrobot-v1")
    assert (of_preset.environment.id, of_preset.environment.settings) == ("gymnasium:Acrobot-v1", {"size": 3})
    assert load(None) == load("treasure-hunt")


def test_a_mistake_is_one_sentence(tmp_path: Path) -> None:
    with raises(ConfigurationError, "unknown_key", key="stepz"):
        launch.train("cartpole", settings={"stepz": 1}, run_dir=tmp_path / "r")
    assert list(tmp_path.iterdir()) == []
