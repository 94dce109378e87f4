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


@pytest.mark.learning
@pytest.mark.timeout(900)
def test_players_who_share_a_policy_do_different_things_where_they_are_told_who_they_are(tmp_path: Path) -> None:
    """Both earn 1 a turn where they differ, and see nothing: the likeliest action is the same for both, but for what
    `environment.observe.add` shows them."""
    differ = "environment.settings={game: own, payoffs: [[[0, 0], [1, 1]], [[1, 1], [0, 0]]]}"
    keys = [differ, "agents={player_0: both, player_1: both}"]
    for added, wanted in (({"agent"}, 25.0), ({"last_reward"}, 0.0)):
        add = f"environment.observe={{add: [{', '.join(added)}]}}"
        train("matrix-game", tmp_path / wanted.hex(), 0, steps=100_000, set=[*keys, add])
        assert greedy_returns(tmp_path / wanted.hex()) == {"both": wanted}
