"""Equilibria of tables of payoffs, ratings and chances, beside what is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from workers.league.empirical_game import elo, exploitability, opponent_distribution, pair_chances, solve, win_rates

ROCK_PAPER_SCISSORS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def test_a_game_with_a_known_mixture_is_solved() -> None:
    """J7. Osborne & Rubinstein 1994: rows mix by the difference of the other's payoffs: 2/5 and 3/5, value 1/5."""
    found = solve(np.array([[2.0, -1.0], [-1.0, 1.0]]), tolerance=1e-4)
    np.testing.assert_allclose(found.rows, [0.4, 0.6], atol=2e-3)
    np.testing.assert_allclose(found.columns, [0.4, 0.6], atol=2e-3)
    assert found.value == pytest.approx(0.2, abs=1e-3)


def test_the_gap_is_what_both_could_gain_and_small_for_any_table() -> None:
    generator = np.random.default_rng(3)
    for shape in ((1, 1), (5, 2), (7, 20), (30, 30)):
        table = generator.normal(size=shape)
        found = solve(table, tolerance=0.01)
        assert found.gap == pytest.approx(exploitability(table, found.rows, found.columns), abs=1e-9)
        assert found.gap <= 0.01 * np.abs(table).max() + 1e-12


def test_ratings_follow_the_odds_and_not_the_order_of_games() -> None:
    """J7: 10 to 1 is 400 points of Elo; two steps of it add up although the outer pair never met."""
    games = np.array([[0, 1100, 0], [1100, 0, 1100], [0, 1100, 0]], float)
    points = np.array([[0, 100, 0], [1000, 0, 100], [0, 1000, 0]], float)
    found = elo(games, points, prior=1e-9)
    np.testing.assert_allclose(found, [1000, 1400, 1800], atol=0.1)
    order = [2, 0, 1]
    again = elo(games[np.ix_(order, order)], points[np.ix_(order, order)], prior=1e-9)
    np.testing.assert_allclose(again - again[1], (found - found[0])[order], atol=0.1)


def test_who_never_lost_has_a_finite_rating_and_who_never_played_that_of_the_first() -> None:
    games = np.array([[0, 5, 0], [5, 0, 0], [0, 0, 0]], float)
    points = np.array([[0, 0, 0], [5, 0, 0], [0, 0, 0]], float)
    found = elo(games, points)
    assert 1000 < found[1] < 2000
    assert found[2] == 1000
    rates = win_rates(games, points)
    assert rates[1, 0] == 1
    assert np.isnan(rates[0, 2])


def test_each_matchmaking_meets_whom_it_says() -> None:
    """J7: uniform all alike; prioritised who beats us; nash the support of the equilibrium."""
    games, points = np.array([100.0, 100, 100]), np.array([98.0, 50, 2])
    np.testing.assert_allclose(opponent_distribution("uniform", games, points, ROCK_PAPER_SCISSORS), 1 / 3)
    hard = opponent_distribution("prioritised", games, points, ROCK_PAPER_SCISSORS)
    assert hard[0] < 0.01 < hard[1] < hard[2]
    dominated = np.array([[0.0, 1, 3], [-1, 0, 3], [-3, -3, 0]])
    assert opponent_distribution("nash", games, points, dominated)[0] > 0.99
    for kind in ("uniform", "prioritised", "nash"):
        assert opponent_distribution(kind, games, points, ROCK_PAPER_SCISSORS).sum() == pytest.approx(1)


def test_pairs_that_met_seldom_meet_next() -> None:
    found = pair_chances(np.array([0.0, 10, 1000]), np.ones(3))
    assert found.sum() == pytest.approx(1)
    assert found[0] == pytest.approx(4 * found[1])
    assert found[2] < 0.001


def test_games_of_pairs_come_to_stand_to_each_other_as_their_weights() -> None:
    """J7: whose payoffs the equilibrium rests on are known best."""
    weights, games = np.array([4.0, 2.0, 1.0]), np.zeros(3)
    for _ in range(300):
        games += 100 * pair_chances(games, weights)
    np.testing.assert_allclose(games / games[2], weights, rtol=0.05)
