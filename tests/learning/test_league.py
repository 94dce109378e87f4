"""Leagues whose members together are hard to exploit: in full with `make nightly`.

What is measured is the strategy that draws one of the library's members: by PSRO with the chance that it has in the
equilibrium of the members' own game, as `summary.json` tells it; by fictitious play with a chance that grows as its
number, which forgets the first ones (linear averaging, Tammelin 2014, arXiv:1407.5042).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.learning.test_presets import SEEDS, train
from tests.workers.league.exploitability import exploitability, mixture
from tests.workers.league.games import member, strategy_of, tree_of
from workers.environments.adapters.openspiel_adapter import load_game
from workers.league import policy_pool


def shares(folder: Path, summary: dict[str, Any]) -> list[tuple[float, Any]]:
    """(chance, what the member does) of each."""
    chance = {one["name"]: one["chance"] for one in summary["league"]["members"]}
    entries = policy_pool.entries(folder, "player")
    assert [entry.name for entry in entries] == [*chance]
    return [(chance[entry.name], member(entry.path(folder))) for entry in entries]


def exploited_in_rock_paper_scissors(folder: Path, summary: dict[str, Any]) -> float:
    """What the best of three answers wins in a turn."""
    found = [(chance, act(np.ones(1, np.float32))) for chance, act in shares(folder, summary)]
    mixed = sum(chance * chances for chance, chances in found) / sum(chance for chance, _ in found)
    return float((np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]]) @ mixed).max())


def exploited_in_poker(folder: Path, summary: dict[str, Any], game: str = "openspiel:kuhn_poker") -> float:
    """In chips a game, on average over both seats."""
    root, seen = tree_of(load_game(game, {}))
    weighed = [(float(number), strategy_of(seen, act)) for number, (_, act) in enumerate(shares(folder, summary))]
    return exploitability(root, mixture(root, weighed))


MEASURES = {
    "rock-paper-scissors-psro": exploited_in_rock_paper_scissors,
    "kuhn-poker": exploited_in_poker,
}


@pytest.mark.learning
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("preset", [*MEASURES])
def test_what_answers_to_all_before_it_ends_in_a_mixture_that_is_hard_to_exploit(preset: str, tmp_path: Path) -> None:
    """J7: at most 0.05 within ten minutes, for each of three seeds."""
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        summary = train(preset, folder, seed)
        assert summary["seconds"] < 600
        assert MEASURES[preset](folder, summary) <= 0.05


@pytest.mark.learning
@pytest.mark.timeout(1900)
def test_a_league_of_eight_is_a_ladder_on_which_each_beats_the_one_before_J7(tmp_path: Path) -> None:
    for seed in SEEDS:
        league = train("tic-tac-toe-league", tmp_path / str(seed), seed)["league"]
        ratings = [member["elo"] for member in league["members"]]
        assert len(ratings) == 8
        assert ratings == sorted(ratings)
        assert all(league["win_rates"][number + 1][number] > 0.5 for number in range(7))
