"""What only a policy that remembers can do, and only if it forgets where an episode ends (K6)."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from launch.config_loader import load
from protocol.config.run import Run
from tests.learning.greedy import greedy_returns, make_run
from tests.learning.test_presets import SEEDS, train
from tests.trial import Trial
from workers.rollout.stream_state import RecurrentState

REMEMBERED = 0.8
"""What remembering earns, and nothing else."""


def learn(run: Run, folder: Path) -> float:
    """The return over the last 5 % of `run`, which is made within this process."""
    make_run(run, folder)
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    (returns,) = summary["returns"].values()
    return float(returns["last"])


@pytest.fixture
def never_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Acting goes on with what was remembered of the episode before; training does not."""
    monkeypatch.setattr(RecurrentState, "reset", lambda self, streams: None)


def test_a_cue_is_remembered_by_an_lstm(tmp_path: Path, trial: Trial) -> None:
    trial.reaches(learn(load("memory", trial.keys, steps=trial.steps(30_000), seed=trial.seed), tmp_path), REMEMBERED)


@pytest.mark.learning
@pytest.mark.parametrize(("window", "remembers"), [(16, True), (4, False)])
def test_a_cue_is_remembered_by_attention_as_far_as_it_looks_back(tmp_path: Path, window: int, remembers: bool) -> None:
    """Eight steps lie between the cue and the time to act on it."""
    core = f"policy.network.core={{name: attention, size: 32, window: {window}}}"
    found = learn(load("memory", [core], steps=30_000), tmp_path)
    assert found > REMEMBERED if remembers else found < 0.4


@pytest.mark.slow
def test_it_is_not_where_the_state_is_not_reset(tmp_path: Path, never_forgets: None, trial: Trial) -> None:
    """Episodes of ten steps show it; in long ones, as of CartPole, a start is too rare to keep a policy from learning,
    and what tells there is the probability of each row (tests/workers/test_recurrent.py)."""
    run = load("memory", trial.keys, steps=trial.steps(30_000), seed=trial.seed)
    trial.stays_below(learn(run, tmp_path), REMEMBERED)


@pytest.mark.slow
def test_nor_by_a_policy_without_memory(tmp_path: Path) -> None:
    """Four cues: by chance a quarter."""
    assert learn(load("memory", ["policy.network.core=null"], steps=30_000), tmp_path) < 0.4


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["lstm", "gru", "attention"])
def test_the_memory_task_is_solved_by_what_remembers_alone(tmp_path: Path, kind: str) -> None:
    """Separate workers, exploration off; the feed-forward policy is given as many steps."""
    keys = f"policy.network.core={kind}"
    train("memory", tmp_path / "with", set=keys)
    (found,) = greedy_returns(tmp_path / "with").values()
    assert found >= 0.99
    keys = "policy.network.core=null"
    train("memory", tmp_path / "without", set=keys)
    (found,) = greedy_returns(tmp_path / "without").values()
    assert found < 0.5


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_cartpole_without_velocities_is_played_by_values_that_remember(tmp_path: Path) -> None:
    """Whole segments are replayed from the states that they began in; separate workers, exploration off."""
    keys = ["policy={algorithm: {name: dqn, burn_in: 8}, network: {core: {name: lstm, size: 64}}}"]
    train("cartpole-blind", tmp_path, steps=200_000, set=[*keys, "environment.copies=8"])
    (found,) = greedy_returns(tmp_path).values()
    assert found >= 450


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["iqn", "c51, v_min: -1, v_max: 1, atoms: 51"])
def test_a_cue_is_remembered_by_distributions_of_returns(tmp_path: Path, algorithm: str) -> None:
    keys = [f"policy={{algorithm: {{name: {algorithm}}}, network: {{core: gru}}}}", "environment.copies=8"]
    train("memory", tmp_path, steps=60_000, set=keys)
    (found,) = greedy_returns(tmp_path).values()
    assert found >= 0.9


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("algorithm", ["vdn", "qmix"])
def test_each_member_of_a_team_remembers_a_cue_of_its_own(tmp_path: Path, algorithm: str) -> None:
    keys = [f"policy={{algorithm: {{name: {algorithm}}}, network: {{core: gru}}}}", "environment.copies=8"]
    keys += ["environment.settings.agents=2", "environment.teams={both: all}"]
    train("memory", tmp_path, steps=60_000, set=keys)
    (found,) = greedy_returns(tmp_path).values()
    assert found >= 1.8


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stacked_frames_tell_velocities(tmp_path: Path, trial: Trial) -> None:
    """Without them, and without memory, it comes to 49."""
    keys = [*trial.keys, "policy.network.core=null", "policy.algorithm.frames=4"]
    trial.reaches(learn(load("cartpole-blind", keys, steps=trial.steps(400_000), seed=trial.seed), tmp_path), 400)


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_cartpole_without_velocities_reaches_490(tmp_path: Path) -> None:
    """Median of three seeds, separate workers, exploration off; 1,500,000 steps."""
    found = []
    for seed in SEEDS:
        train("cartpole-blind", tmp_path / str(seed), seed)
        found.append(greedy_returns(tmp_path / str(seed))["agent"])
    assert statistics.median(found) >= 490


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_a_policy_without_memory_does_not_balance_what_it_sees_half_of(tmp_path: Path) -> None:
    run = load("cartpole-blind", ["policy.network.core=null"], steps=500_000)
    assert learn(run, tmp_path) < 150
