"""The presets learn what they promise: shortened here, in full with `make nightly`.

Each run is the real pipeline: coordinator, actor and a learner for each policy, as processes of their own.
"""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.learning.greedy import greedy_returns
from tests.trial import Trial

SEEDS = (0, 1, 2)
pytestmark = pytest.mark.usefixtures("forked_rookery")


def train(preset: str, folder: Path, seed: int = 0, **options: object) -> dict[str, Any]:
    """The summary of one run of `rookery train`."""
    command = ["rookery", "train", preset, "--seed", str(seed), "--json", "--no-progress"]
    command += ["--run-dir", str(folder)]
    for name, value in options.items():
        for one in value if isinstance(value, list) else [value]:
            command += [f"--{name}"] if one is True else [f"--{name}", str(one)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr
    summary: dict[str, Any] = json.loads(ended.stdout)
    check_books(summary["segments"])
    return summary


def check_books(books: dict[str, Any]) -> None:
    """Every finished segment is accounted for, and none was torn."""
    assert books["torn"] == 0
    assert books["produced"] == books["received"] - books["duplicates"] + books["in_flight"] + sum(
        books["dropped"].values()
    )
    used = books["trained"] + books["duplicates"] + books["rejected"] + books["held"] + books["lost_in_learner"]
    assert books["received"] == used


def last(summary: dict[str, Any], policy: str) -> float:
    """Mean return over the last 5 % of the run."""
    return float(summary["returns"][policy]["last"])


def way_to_scripted(summary: dict[str, Any]) -> list[float]:
    """How far each policy came at the end from a random player (0) to the scripted one (1)."""
    return [
        (last(summary, policy) - known["random"]) / (known["scripted"] - known["random"])
        for policy, known in summary["baselines"].items()
    ]


def finished(preset: str, folder: Path) -> tuple[list[dict[str, Any]], list[float]]:
    """(summaries, returns with exploration off, 100 episodes with fixed seeds) of three seeds."""
    runs = [train(preset, folder / str(seed), seed) for seed in SEEDS]
    return runs, [greedy_returns(folder / str(seed))["agent"] for seed in SEEDS]


@pytest.mark.slow
def test_treasure_hunt_by_ppo_soon_leaves_random_behind(run_dir: Path, trial: Trial) -> None:
    """E10: both policies learn, each in a learner of its own."""
    summary = train("treasure-hunt", run_dir, trial.seed, steps=trial.steps(1_200_000), set=trial.keys)
    trial.reaches(min(way_to_scripted(summary)), 0.25)


@pytest.mark.slow
def test_treasure_hunt_by_iqn_soon_leaves_random_behind(run_dir: Path, trial: Trial) -> None:
    """E10 for the replay mode."""
    summary = train("treasure-hunt-iqn", run_dir, trial.seed, steps=trial.steps(150_000), set=trial.keys)
    trial.reaches(min(way_to_scripted(summary)), 0.25)


def test_cartpole_by_ppo_soon_balances(run_dir: Path, trial: Trial) -> None:
    """E10, E11: the asynchronous pipeline corrects for lag well enough to solve the task in a third of its budget. By a
    hundred episodes, as the last 5 % of the run are seventeen, of which chance spoils a few."""
    train("cartpole", run_dir, trial.seed, steps=trial.steps(160_000), set=trial.keys)
    trial.reaches(greedy_returns(run_dir)["agent"], 400)


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_acrobot_by_ppo_reaches_minus_90(tmp_path: Path) -> None:
    """Median of three seeds, within 500,000 steps, exploration off, 100 episodes with fixed seeds."""
    runs, greedy = finished("acrobot", tmp_path)
    assert max(run["agent_steps"] for run in runs) <= 500_100
    assert statistics.median(greedy) >= -90


@pytest.mark.slow
def test_pendulum_by_sac_soon_swings_up(run_dir: Path, trial: Trial) -> None:
    """E10 for actions that are numbers, on replay, exploration off: random is -1200. Most seeds come to -150, and some
    still have to swing longer."""
    keys = ["policy.algorithm.replay_ratio=64", *trial.keys]
    train("pendulum", run_dir, trial.seed, steps=trial.steps(10_000), set=keys)
    trial.reaches(greedy_returns(run_dir)["agent"], -1000)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_cartpole_by_choices_of_sac_balances(run_dir: Path, trial: Trial) -> None:
    """Exploration off: with it, it draws nearly evenly, as its temperature asks for."""
    keys = ["environment={id: 'gymnasium:CartPole-v1', copies: 4}", "policy={algorithm: {name: sac}}", *trial.keys]
    train("cartpole", run_dir, trial.seed, steps=trial.steps(30_000), set=keys)
    trial.reaches(greedy_returns(run_dir)["agent"], 300)


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_rendezvous_comes_close_to_the_scripted_player(run_dir: Path) -> None:
    """For each of the three policies, who still try things out."""
    summary = train("rendezvous", run_dir)
    for policy, known in summary["baselines"].items():
        assert last(summary, policy) > known["scripted"] - 2


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_treasure_hunt_beats_the_scripted_player(tmp_path: Path) -> None:
    """Median of three seeds, every policy, within two minutes of training."""
    runs = [train("treasure-hunt", tmp_path / str(seed), seed) for seed in SEEDS]
    for policy in ("agent_0", "agent_1"):
        scripted = statistics.median(run["baselines"][policy]["scripted"] for run in runs)
        assert statistics.median(last(run, policy) for run in runs) > scripted


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_treasure_hunt_by_iqn_gets_a_quarter_of_the_way_to_the_scripted_player(tmp_path: Path) -> None:
    """Median of three seeds, every policy."""
    runs = [train("treasure-hunt-iqn", tmp_path / str(seed), seed) for seed in SEEDS]
    for policy in ("agent_0", "agent_1"):
        known = runs[0]["baselines"][policy]
        wanted = known["random"] + 0.25 * (known["scripted"] - known["random"])
        assert statistics.median(last(run, policy) for run in runs) >= wanted


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_cartpole_by_ppo_reaches_495(tmp_path: Path) -> None:
    """Median of three seeds within 500,000 steps, exploration off; each comes to 475 while it still explores."""
    runs, greedy = finished("cartpole", tmp_path)
    assert max(run["agent_steps"] for run in runs) <= 500_100
    assert min(last(run, "agent") for run in runs) >= 475
    assert statistics.median(greedy) >= 495


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_cartpole_by_iqn_reaches_495(tmp_path: Path) -> None:
    """Median of three seeds, within 200,000 steps: with one action in a hundred still at random, and with none."""
    runs, greedy = finished("cartpole-iqn", tmp_path)
    assert max(run["agent_steps"] for run in runs) <= 200_100
    assert statistics.median(last(run, "agent") for run in runs) >= 495
    assert statistics.median(greedy) >= 495


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_pendulum_by_sac_reaches_minus_200(tmp_path: Path) -> None:
    """Median of three seeds, within 30,000 steps, of a policy that still tries things out, and of one that does not."""
    runs, greedy = finished("pendulum", tmp_path)
    assert max(run["agent_steps"] for run in runs) <= 30_100
    assert statistics.median(last(run, "agent") for run in runs) >= -200
    assert statistics.median(greedy) >= -200


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_spread_ends_three_standard_errors_above_random(run_dir: Path) -> None:
    """For each of the three policies."""
    summary = train("spread", run_dir)
    for policy, known in summary["baselines"].items():
        assert last(summary, policy) >= known["random"] + 3 * known["random_stderr"]


@pytest.mark.learning
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("preset", "steps"), [("treasure-hunt", 12_000_000), ("treasure-hunt-iqn", 500_000)])
def test_separate_workers_learn_no_less_than_one_process_from_equal_steps(
    tmp_path: Path, preset: str, steps: int
) -> None:
    """Median over three seeds of the difference of both policies' last returns; a tenth of what the scripted player
    gets is the noise allowed."""
    differences, scripted = [], 0.0
    for seed in SEEDS:
        apart = train(preset, tmp_path / f"apart-{seed}", seed, steps=steps)
        alone = train(preset, tmp_path / f"alone-{seed}", seed, steps=steps, sequential=True)
        differences.append(statistics.mean(last(apart, p) - last(alone, p) for p in apart["returns"]))
        scripted = apart["baselines"]["agent_0"]["scripted"]
    assert statistics.median(differences) >= -0.1 * scripted
