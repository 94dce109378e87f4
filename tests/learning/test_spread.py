"""Simple spread, learned in our own plane and tried in mpe2's, with exploration off."""

from __future__ import annotations

import importlib.util
import statistics
from pathlib import Path

import pytest

from launch.config_loader import load
from protocol.config.run import EnvironmentConfig
from tests.learning.greedy import make_run
from tests.learning.test_presets import SEEDS, train
from tests.playing import play
from tests.tools import skip_or_fail
from tests.trial import Trial
from workers.environments.registry import make
from workers.rollout.players.frozen_player import FrozenPlayer
from workers.tools.evaluate import frozen_policies, load_run

EPISODES, SEED, COPIES = 256, 20_000, 32
HERE = "environment.id=spread"


def spread_out(folder: Path) -> float:
    """What an agent earns on average in mpe2, of the newest policies in `folder`, which do the likeliest; random
    players earn -26.5."""
    if importlib.util.find_spec("mpe2") is None:
        skip_or_fail("mpe2 is not installed")
    planes = make(EnvironmentConfig(id="pettingzoo:mpe2.simple_spread_v3", copies=COPIES))
    run = load_run(folder)
    frozen = frozen_policies(folder, run, planes.world, {}, "newest")
    players = {agent: FrozenPlayer(frozen[policy], COPIES) for agent, policy in run.policy_of(planes.world).items()}
    found = play(planes, players, EPISODES, SEED)
    planes.close()
    return statistics.mean(mean for mean, *_ in found.values())


@pytest.mark.slow
def test_what_is_soon_learned_here_counts_in_mpe2(tmp_path: Path, trial: Trial) -> None:
    """E10: all three by one policy, which so learns from three times as much."""
    keys = [HERE, *(f"agents.agent_{i}=all" for i in range(3)), "policy.algorithm.minibatches=4"]
    keys += ["policy.learning_rate=0.003", *trial.keys]
    make_run(load("spread", keys, steps=trial.steps(200_000), seed=trial.seed), tmp_path)
    trial.reaches(spread_out(tmp_path), -23)


@pytest.mark.learning
@pytest.mark.timeout(1800)
def test_agents_spread_out_in_mpe2(tmp_path: Path) -> None:
    """Median of three seeds, separate workers."""
    found = []
    for seed in SEEDS:
        train("spread", tmp_path / str(seed), seed, set=HERE)
        found.append(spread_out(tmp_path / str(seed)))
    assert statistics.median(found) >= -13
