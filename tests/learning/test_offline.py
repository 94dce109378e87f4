"""What is learned from datasets alone: by cloning an expert, and from the replay of a whole run (J5)."""

from __future__ import annotations

import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from launch.config_loader import load
from protocol.config.run import EnvironmentConfig
from tests.learning.greedy import make_run
from tests.learning.test_presets import SEEDS
from tests.playing import play
from tests.tools import require, skip_or_fail
from tests.trial import Trial
from workers.environments.registry import make
from workers.policies.export.frozen_policy import ExportedPolicy
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.tools.export import export

EPISODES, SEED = 100, 20_000
BALANCE = (0.1, 0.3, 3.0, 1.0)
"""Push towards where these weights of CartPole's state say it leans: every episode lasts its 500 steps."""


def earned(run: Path) -> float:
    """Mean return of the newest policy of a run on CartPole, exploration off, 100 episodes with seeds of their own."""
    frozen = ExportedPolicy.load(export(run, None, "safetensors", None, "newest"))
    world = make(EnvironmentConfig(id="gymnasium:CartPole-v1", copies=EPISODES), "evaluate")
    return play(world, {"agent": FrozenPlayer(frozen, EPISODES)}, EPISODES, SEED)["agent"][0]


def balanced(episodes: int, steps: int) -> str:
    """The ID of a Minari dataset of episodes of a controller, cut off after so many steps."""
    try:
        import minari
        from minari.data_collector import EpisodeBuffer
    except ImportError:
        skip_or_fail("minari is not installed")
    env = gymnasium.make("CartPole-v1")
    buffers = []
    for seed in range(episodes):
        seen = [env.reset(seed=seed)[0]]
        actions = []
        for _ in range(steps):
            actions.append(int(np.dot(BALANCE, seen[-1]) > 0))
            seen.append(env.step(actions[-1])[0])
        ends = [t == steps - 1 for t in range(steps)]
        told = {"rewards": [1.0] * steps, "terminations": [False] * steps, "truncations": ends, "infos": {}}
        buffers.append(EpisodeBuffer(observations=np.array(seen), actions=np.array(actions), **told))
    spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
    minari.create_dataset_from_buffers("test/balance-v0", buffers, env=None, **spaces)
    env.close()
    return "test/balance-v0"


@pytest.mark.filterwarnings("ignore::UserWarning:minari.utils")
def test_a_controller_is_cloned_from_a_minari_dataset_J5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: Trial
) -> None:
    """4,000 rows of a controller that never falls, read through Minari; the clone reaches 475."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    keys = ["actors=0", "policy.algorithm.name=bc", f"policy.dataset.minari={balanced(20, 200)}"]
    keys += ["policy.learning_rate=0.003", *trial.keys]
    make_run(load("cartpole", keys, steps=trial.steps(60_000), seed=trial.seed), tmp_path / "run")
    trial.reaches(earned(tmp_path / "run"), 475)


def train(source: str, folder: Path, settings: Sequence[str], steps: int | None = None, seed: int = 0) -> None:
    """A run of `rookery train` with these `--set`."""
    command = [require("rookery"), "train", source, "--seed", str(seed), "--no-progress", "--run-dir", str(folder)]
    command += ["--steps", str(steps)] if steps is not None else []
    command += [part for setting in settings for part in ("--set", setting)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_a_policy_that_was_recorded_is_cloned_and_reaches_475_J5(tmp_path: Path) -> None:
    """The newest 50,000 rows that PPO made while it learned; each of three seeds, separate workers."""
    train("cartpole", tmp_path / "expert", ["policy.record=true"], 200_000)
    data = f"policy.dataset.path={tmp_path / 'expert' / 'datasets'}"
    for seed in SEEDS:
        keys = ["actors=0", "policy.algorithm.name=bc", data, "policy.dataset.newest=50000"]
        train("cartpole", tmp_path / str(seed), keys, 500_000, seed)
        assert earned(tmp_path / str(seed)) >= 475


@pytest.mark.learning
@pytest.mark.timeout(3600)
def test_quantiles_are_learned_from_the_replay_of_a_whole_run_J5(tmp_path: Path) -> None:
    """All that IQN made while it learned, sampled by priority and without any new row; the median of three seeds."""
    train("cartpole-iqn", tmp_path / "explored", ["policy.record=true"])
    data = f"policy.dataset.path={tmp_path / 'explored' / 'datasets'}"
    found = []
    for seed in SEEDS:
        train("cartpole-iqn", tmp_path / str(seed), ["actors=0", data], 1_000_000, seed)
        found.append(earned(tmp_path / str(seed)))
    assert statistics.median(found) >= 450
