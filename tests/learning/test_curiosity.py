"""What only a policy that looks for what is new can do: find a reward that chance does not find."""

from __future__ import annotations

from pathlib import Path

import pytest

from launch.config_loader import load
from tests.learning.greedy import greedy_returns
from tests.learning.test_presets import SEEDS, last, train
from tests.learning.test_recurrent import learn
from tests.trial import Trial

WITHOUT = "policy.algorithm.curiosity.coefficient=0"
SHALLOW = "environment.settings.size=12"


def test_the_treasure_is_found_by_a_policy_that_is_curious(tmp_path: Path, trial: Trial) -> None:
    """One way of 4,096, of which a dive takes one."""
    run = load("deep-sea", [SHALLOW, *trial.keys], steps=trial.steps(20_000), seed=trial.seed)
    trial.reaches(learn(run, tmp_path), 0.8)


@pytest.mark.learning
def test_and_not_by_one_that_is_not(tmp_path: Path) -> None:
    """The same to the last key, but for the weight of the bonus."""
    assert learn(load("deep-sea", [SHALLOW, WITHOUT], steps=20_000), tmp_path) < 0.1


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_the_preset_finds_one_way_of_a_million_and_goes_it_always(tmp_path: Path, seed: int) -> None:
    """Separate workers, for each seed; exploration off in the end, and one without curiosity beside it."""
    curious, alone = tmp_path / "curious", tmp_path / "alone"
    assert last(train("deep-sea", curious, seed), "diver") > 0.9
    assert greedy_returns(curious)["diver"] == pytest.approx(0.99)
    assert last(train("deep-sea", alone, seed, set=WITHOUT), "diver") < 0.01
