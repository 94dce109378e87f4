"""Whole runs tell what goes wrong with their learning, by configuration or world alone; sound learning has none."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.flows import runs

WORLD = """
import time
from pathlib import Path

import gymnasium
import numpy as np


class World(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)

    def __init__(self, turns_over, grows, choices, scale, ends, always, told):
        self.action_space = gymnasium.spaces.Discrete(choices)
        self.made, self.turn, self.turns, self.turns_over = np.random.default_rng(0), 0, 0, turns_over
        self.grows, self.scale, self.ends, self.always, self.told = grows, scale, ends, always, told

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return self.look(), {}

    def step(self, action):
        self.turn, self.turns = self.turn + 1, self.turns + 1
        if self.told and self.turns == 700:
            self.wait()
        other, over = self.turns > self.turns_over, self.turn == 20
        right = self.always or (action % 2 == int(self.seen[0] > 0)) != other
        reward = self.scale * (self.grows if other else 1) * right
        return self.look(), reward, over and self.ends, over and not self.ends, {}

    def look(self):
        self.seen = self.made.uniform(-1, 1, 4).astype(np.float32)
        return self.seen

    def wait(self):
        log, until = Path(__file__).parent / "run" / "logs" / "coordinator.log", time.monotonic() + 60
        while f"finding={self.told} " not in log.read_text() and time.monotonic() < until:
            time.sleep(0.02)


def make(turns_over=10**9, grows=1.0, choices=2, scale=1.0, ends=True, always=False, told=""):
    return World(turns_over, grows, choices, scale, ends, always, told)
"""
"""Where the sign of a number says whether an odd action is right, until the world turns over and rewards grow; or any
action always is. Before the half of the run it waits for the finding that is to be told."""
PPO: dict[str, Any] = {**runs.PPO, "gamma": 0.9}
DQN: dict[str, Any] = {
    "name": "dqn",
    "batch_size": 64,
    "learning_starts": 500,
    "buffer_capacity": 5_000,
    "replay_ratio": 16.0,
    "n_step": 1,
}
DIVERGING = {**DQN, "double": False, "target_update": "hard", "target_update_freq": 1}
C51 = {**DQN, "name": "c51", "gamma": 0.9, "target_update_freq": 20}
NARROW = {**C51, "v_min": 0.0, "v_max": 0.5}
FITTING = {**C51, "v_min": -10.0, "v_max": 10.0}
"""As far as returns of rewards of 1 that never end come."""
HUBER = {**DQN, "kappa": 1.0}
STEPS = 12_000
WITHOUT_LEARNING = {"no_better_than_random", "critic_explains_nothing"}
"""What is found besides where nothing is learned, whatever the reason."""
DIVERGES_TOO = {"gradient_grew", "reward_scale"}
"""What is found besides, sooner or later, where values diverge."""


def findings(
    folder: Path,
    algorithm: dict[str, Any],
    rate: float,
    until: int = STEPS,
    **world: Any,
) -> dict[str, dict[str, Any]]:
    """finding -> what the summary of a run says of it, which is over when `until` of its steps are made."""
    (folder / "world_of_this_test.py").write_text(WORLD)
    data = runs.config(
        algorithm,
        STEPS,
        until=until,
        environment={"id": "world_of_this_test:make", "copies": 8, "settings": world},
        policy={"learning_rate": rate, "network": {"hidden": [64, 64]}, "max_grad_norm": 1e3},
        baseline_episodes=30,  # which end before the world waits
        log_interval=20,
    )
    ended = runs.train(data, folder)
    assert ended.returncode == 0, ended.stderr
    return {one["finding"]: one for one in runs.summary_of(folder)["health"]["findings"]}


@pytest.mark.parametrize(
    ("algorithm", "rate", "world", "expected"),
    [
        pytest.param(PPO, 0.003, {}, None, id="sound"),
        pytest.param(DIVERGING, 0.3, {"choices": 60}, "values_impossible", id="diverging", marks=pytest.mark.slow),
        pytest.param(PPO, 1e-9, {}, "no_better_than_random", id="nothing-learned"),
        pytest.param(PPO, 0.003, {"turns_over": 900}, "forgotten", id="forgotten", marks=pytest.mark.slow),
        pytest.param(NARROW, 0.003, {}, "values_at_the_end", id="narrow", marks=pytest.mark.slow),
        pytest.param(FITTING, 0.003, {"ends": False}, None, id="fitting", marks=pytest.mark.slow),
    ],
)
def test_a_run_tells_what_goes_wrong_with_its_learning(
    tmp_path: Path, algorithm: dict[str, Any], rate: float, world: dict[str, Any], expected: str | None
) -> None:
    by_batches = expected in ("values_impossible", "values_at_the_end")  # these are told in the first half
    found = findings(tmp_path, algorithm, rate, STEPS // 2 if by_batches else STEPS, **world)
    if expected is None:
        assert found == {}
    else:
        besides = WITHOUT_LEARNING | DIVERGES_TOO if expected == "values_impossible" else WITHOUT_LEARNING
        assert found.keys() - besides == {expected} - besides
        assert found[expected]["layer"] == "learning"
        assert found[expected]["value"] != found[expected]["bound"]


def test_what_a_new_mixing_network_says_is_no_fault(tmp_path: Path) -> None:
    """It multiplies large observations, before any reward is seen."""
    data = runs.config(
        {"name": "qmix", "batch_size": 32, "learning_starts": 256, "replay_ratio": 2.0},
        2_000,
        seed=1,
        environment={"id": "foraging", "copies": 8, "teams": {"all": "all"}, "team_reward": "mean"},
        policy={"network": {"hidden": [64, 64]}, "publish_interval": 10, "sync_interval": 8},
        log_interval=20,
    )
    assert runs.train(data, tmp_path, "--sequential").returncode == 0
    assert runs.summary_of(tmp_path)["health"]["findings"] == []


@pytest.mark.slow
def test_errors_beyond_the_loss_are_told_in_the_first_half_of_a_run(tmp_path: Path) -> None:
    assert "reward_scale" in findings(tmp_path, HUBER, 0.003, until=STEPS // 2, scale=1e3)


@pytest.mark.slow
def test_a_gradient_that_grows_is_told_in_the_first_half_of_a_run(tmp_path: Path) -> None:
    found = findings(tmp_path, DQN, 0.003, until=STEPS // 2, turns_over=300, grows=1e5)["gradient_grew"]
    assert found["value"] > found["bound"]


def told_at(folder: Path, finding: str) -> float:
    """Agent steps when the coordinator told of it first; never: infinity."""
    log = (folder / "run" / "logs" / "coordinator.log").read_text()
    return min((int(one) for one in re.findall(rf"finding={finding} agent_steps=(\d+) ", log)), default=math.inf)


def test_a_policy_that_always_does_the_same_is_told_in_the_first_half_of_a_run(tmp_path: Path) -> None:
    findings(tmp_path, {**PPO, "entropy_coefficient": 0.0}, 0.3, STEPS // 2, always=True, told="entropy_collapsed")
    assert told_at(tmp_path, "entropy_collapsed") < STEPS / 2


def test_a_critic_that_explains_nothing_is_told_in_the_first_half_of_a_run(tmp_path: Path) -> None:
    """One that does not learn, beside returns that are large."""
    found = findings(tmp_path, PPO, 1e-9, STEPS // 2, scale=100.0, always=True, told="critic_explains_nothing")
    assert found["critic_explains_nothing"]["value"] < found["critic_explains_nothing"]["bound"]
    assert told_at(tmp_path, "critic_explains_nothing") < STEPS / 2
