"""Games that are won together, with exploration off: shortened here, in full with `make nightly`."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.learning.greedy import greedy_returns
from tests.learning.test_presets import SEEDS, train
from tests.trial import Trial

pytestmark = pytest.mark.usefixtures("forked_rookery")
PENALTY = "environment.settings.game=penalty"


def test_the_penalty_game_is_soon_played_without_a_miss(run_dir: Path, trial: Trial) -> None:
    """E10: both players have found the same one of two equilibria; chance gets 61. In lock-step, so that so few steps
    give the same result each time."""
    keys = [PENALTY, "policy.learning_rate=0.005", "schedule=lockstep", *trial.keys]
    train("matrix-game", run_dir, trial.seed, steps=trial.steps(30_000), set=keys)
    trial.reaches(min(greedy_returns(run_dir).values()), 250)


@pytest.mark.learning
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("preset", "keys", "wanted"),
    [("matrix-game", [PENALTY], 250), ("matrix-game", [], 175), ("matrix-game-qmix", [], 250)],
    ids=["penalty", "climbing", "penalty by a team"],
)
def test_matrix_games_are_played_as_well_as_by_published_algorithms(
    tmp_path: Path, preset: str, keys: list[str], wanted: float
) -> None:
    """Median of three seeds; Papoudakis et al. 2021 (arXiv:2006.07869, table 3) have 250 and, mostly, 175."""
    found = []
    for seed in SEEDS:
        train(preset, tmp_path / str(seed), seed, set=keys)
        found.append(min(greedy_returns(tmp_path / str(seed)).values()))
    assert statistics.median(found) >= wanted
