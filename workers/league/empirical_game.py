"""The game in which one chooses who of a population is to play: equilibria of its payoffs, by which chances a player
meets each member of the library, and Elo ratings from all games that were counted, whatever their order. Pure.

In flows: what each row earns from each column, how many games each pair has played, and how many points of these one
won. Out flows: chances that sum to 1, a rating each.

Legend: `M` rows, `N` columns; in matchmaking `N` members that the player may meet, `M` that stand for it in the
meta-game, `P` pairs; in ratings `M` members.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocol.config.league import Matchmaking

Array = NDArray[np.float64]


class Equilibrium(NamedTuple):
    """`rows` [M] and `columns` [N]: chances; `gap`: what both could gain together by another choice."""

    rows: Array
    columns: Array
    value: float
    gap: float


def solve(payoffs: Array, tolerance: float = 1e-3, rounds: int = 20_000) -> Equilibrium:
    """Of the zero-sum game `payoffs` [M, N], which rows want to be large: by regret matching+ with alternating moves
    and averages weighted by the round (Tammelin 2014, arXiv:1407.5042; Zinkevich et al. 2007 for the bound), until the
    gap is `tolerance` of the largest payoff, or after `rounds`."""
    scale = max(1e-12, float(np.abs(payoffs).max(initial=0.0)))
    table = payoffs / scale
    regrets = [np.zeros(length) for length in table.shape]
    sums = [np.zeros(length) for length in table.shape]
    row, column = (_matched(one) for one in regrets)
    best: tuple[Array, Array, float] = (row, column, exploitability(table, row, column))
    for number in range(1, rounds + 1):
        earned = table @ column
        regrets[0] = np.maximum(regrets[0] + earned - row @ earned, 0.0)
        row = _matched(regrets[0])
        lost = row @ table
        regrets[1] = np.maximum(regrets[1] + lost @ column - lost, 0.0)
        column = _matched(regrets[1])
        sums[0] += number * row
        sums[1] += number * column
        if number % 50 == 0:
            means = [one / one.sum() for one in sums]
            gap = exploitability(table, *means)
            if gap < best[2]:
                best = (*means, gap)
            if gap <= tolerance:
                break
    return Equilibrium(best[0], best[1], float(best[0] @ payoffs @ best[1]), best[2] * scale)


def exploitability(payoffs: Array, rows: Array, columns: Array) -> float:
    """What a best row earns from `columns` [N], and a best column saves from `rows` [M]: 0 in equilibrium."""
    return float((payoffs @ columns).max() - (rows @ payoffs).min())


def _matched(regrets: Array) -> Array:
    total = regrets.sum()
    return regrets / total if total > 0 else np.full(len(regrets), 1 / len(regrets))


def opponent_distribution(kind: Matchmaking, games: Array, points: Array, payoffs: Array) -> Array:
    """[N]: `games` and `points` [N] are the player's with each as it learns now; `payoffs` [M, N] those of its frozen
    members with them.

    `prioritised` is prioritised fictitious self-play: (1 - win rate)^2, so that whoever is beaten is met seldom and who
    is not often (Vinyals et al. 2019, "Grandmaster level in StarCraft II", methods); two draws are assumed of each.
    """
    count = payoffs.shape[1]
    if kind == "nash" and len(payoffs):
        return solve(payoffs).columns
    if kind == "prioritised":
        hard = (1 - (points + 1) / (games + 2)) ** 2
        return hard / hard.sum()
    return np.full(count, 1 / count)


def pair_chances(games: Array, weights: Array) -> Array:
    """[P]: with which pairs of members meet in the arena that have played `games` [P], so that these come to stand to
    each other as `weights` [P]. Of equal weights, who has met half as often is four times as likely to; so that games
    grow as the weights, which solve g' = w^3 / g^2."""
    wanted = weights**3 / (games + 10.0) ** 2
    return wanted / wanted.sum()


FIRST = 1000.0
"""The rating of the first member, to which the others are relative."""
_SCALE = 400 / math.log(10)
"""Elo's points to a factor e in the odds: ten to one are 400."""


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
