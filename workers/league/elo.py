"""Elo ratings from all games that were counted, whatever their order. Pure.

In flow: how many games each pair played, and how many points of these one won. Out flow: a rating each.

Legend: `M` members.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FIRST = 1000.0
"""The rating of the first member, to which the others are relative."""
_SCALE = 400 / math.log(10)
"""Elo's points to a factor e in the odds: ten to one are 400."""

Array = NDArray[np.float64]


def elo(games: Array, points: Array, prior: float = 1.0, rounds: int = 1000, tolerance: float = 1e-6) -> Array:
    """[M]: the most likely ratings by the model of Bradley and Terry (1952), by the iteration of Hunter (2004, "MM
    algorithms for generalized Bradley-Terry models", Annals of Statistics 32).

    `games` [M, M] symmetric; `points` [M, M]: of row against column, a draw being a half. As if each pair that played
    had drawn `prior` games more, so that who never lost has a finite rating. Who never played has that of the first.
    """
    met = games > 0
    games, points = games + prior * met, points + prior / 2 * met
    strength, won = np.ones(len(games)), points.sum(1)
    for _ in range(rounds):
        expected = (games / (strength[:, None] + strength[None, :])).sum(1)
        following = np.where(expected > 0, won / np.where(expected > 0, expected, 1.0), 1.0)
        following /= np.exp(np.log(following).mean())
        moved = float(np.abs(np.log(following / strength)).max(initial=0.0))
        strength = following
        if moved < tolerance:
            break
    ratings = _SCALE * np.log(strength)
    ratings = np.where(met.any(1), ratings, ratings[0] if len(ratings) else 0.0)
    return FIRST + ratings - (ratings[0] if len(ratings) else 0.0)


def win_rates(games: Array, points: Array) -> Array:
    """[M, M]: points of row against column for each game; NaN where there was none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(games > 0, points / games, np.nan)
