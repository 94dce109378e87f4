"""With which chances a player meets each member of the library. Pure.

In flows: the kind of matchmaking, what is known of their games. Out flow: chances that sum to 1.

Legend: `N` members that the player may meet, `M` members that stand for the player in the meta-game.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from protocol.config.league import Matchmaking
from workers.league.empirical_game import solve

Array = NDArray[np.float64]


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
