"""How a league stands: its members, their games, ratings and equilibrium, and whom each player is to meet next.

In flows: the files of the library; counters of the actors, which survive any death. Out flows: what actors are told,
what people see, what the summary says. Nothing is kept beside: a coordinator that returns finds all of it again.

Points are counted in halves: two for a win, one for a draw. A margin is half of what one earned more than the mean of
the others: in a zero-sum game of two, what one earned.

Legend: `M` members there are.
"""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.league import policy_pool
from workers.league.empirical_game import elo, opponent_distribution, pair_chances, solve, win_rates
from workers.metrics.segment_accounting import Pages
from workers.planning.league_plan import ADDED, LeaguePlan, PlayerPlan

log = logging.getLogger(__name__)

_EVERY = 1.0
Array = NDArray[np.float64]


class LeagueState:
    """Of the league `plan`, whose library lies in the run's `folder`."""

    def __init__(self, plan: LeaguePlan, folder: Path) -> None:
        self._plan, self._folder = plan, folder
        self._entries: list[policy_pool.PoolEntry] = []
        self._kinds = ("games", "points", "margin")
        self._names = {pair: [f"league.{kind}.{pair[0]}:{pair[1]}" for kind in self._kinds] for pair in plan.pairs}
        self._since: dict[tuple[str, str], tuple[float, float]] = {}
        """(player, member) -> games and points when the player's newest snapshot joined."""
        self._looked_at = -math.inf
        self._solved = any(player.matchmaking == "nash" for player in plan.players.values())
        self.instructions: dict[str, Any] = {}
        """What actors need."""
        self.view: dict[str, Any] = {}
        """What people see."""

    def update(self, actors: Pages, now: float) -> None:
        """Brings everything up to date, unless that was done within the last second before `now`."""
        if now - self._looked_at < _EVERY:
            return
        self._looked_at = now
        found = [entry for player in self._plan.players for entry in policy_pool.entries(self._folder, player)]
        pages = list(actors.values())
        counts = {
            pair: [sum(page.get(name, 0.0) for page in pages) for name in names] for pair, names in self._names.items()
        }
        for entry in found:
            if entry not in self._entries:
                log.info("event=pool_member_added member=%s checksum=%s", entry.name, entry.checksum)
                for pair, (played, halves, _) in counts.items():
                    if pair[0] == entry.policy and entry.number < ADDED:
                        self._since[pair] = (played, halves)
        self._entries = found
        if not found:
            return
        names = [entry.name for entry in found]
        games, points, margins = self._tables(names, counts)
        payoffs: Array = margins / (games + 1)  # as if each had drawn once more, so that one game says little
        mixed = self._mixture(names, payoffs)
        ratings = elo(games, points)
        whom = {
            player.name: self._opponent_distribution(player, names, payoffs, counts)
            for player in self._plan.players.values()
        }
        self._tell(whom, names, games, mixed if self._solved else {})
        self._show(
            whom, names, (games, points, margins), ratings, mixed, sum(page.get("league_loads", 0.0) for page in pages)
        )

    def _tables(self, names: list[str], counts: dict[tuple[str, str], list[float]]) -> tuple[Array, Array, Array]:
        """[M, M] each: games, points (a win is 1) and margins of row against column."""
        size = len(names)
        games, points, margins = np.zeros((3, size, size))
        at = {name: i for i, name in enumerate(names)}
        for (one, other), (played, halves, margin) in counts.items():
            if one in at and other in at:
                i, j = at[one], at[other]
                games[i, j] = games[j, i] = played
                points[i, j], points[j, i] = halves / 2, played - halves / 2
                margins[i, j], margins[j, i] = margin, -margin
        return games, points, margins

    def _mixture(self, names: list[str], payoffs: Array) -> dict[str, float]:
        """member -> its chance in the equilibrium of the members' game: of each player's members among themselves, if
        they can meet, or against those of its opponents."""
        mixed: dict[str, float] = {}
        for player in self._plan.players.values():
            rows, columns = self._own(player, names), self._opponents(player, names)
            if rows and columns:
                found = solve(payoffs[np.ix_(rows, columns)])
                mixed |= {names[i]: float(chance) for i, chance in zip(rows, found.rows, strict=True)}
        return mixed

    def _own(self, player: PlayerPlan, names: list[str]) -> list[int]:
        return [i for i, name in enumerate(names) if name in player.members]

    def _opponents(self, player: PlayerPlan, names: list[str]) -> list[int]:
        theirs = {member for opponent in player.opponents for member in self._plan.players[opponent].members}
        return [i for i, name in enumerate(names) if name in theirs]

    def _opponent_distribution(
        self, player: PlayerPlan, names: list[str], payoffs: Array, counts: dict[tuple[str, str], list[float]]
    ) -> dict[str, float]:
        """Whom a player is to meet, with which chances: members, or as NAME a player with its newest weights."""
        columns = self._opponents(player, names)
        share = 1.0 if player.matchmaking == "latest" or not columns else player.latest
        found = dict.fromkeys(player.opponents, share / len(player.opponents)) if share else {}
        if share < 1.0:
            now = [counts[player.name, names[j]] for j in columns]
            since = [self._since.get((player.name, names[j]), (0.0, 0.0)) for j in columns]
            games = np.array([a[0] - b[0] for a, b in zip(now, since, strict=True)])
            points = np.array([a[1] - b[1] for a, b in zip(now, since, strict=True)]) / 2
            table = payoffs[np.ix_(self._own(player, names), columns)]
            weighed = (1 - share) * opponent_distribution(player.matchmaking, games, points, table)
            found |= {names[j]: float(chance) for j, chance in zip(columns, weighed, strict=True)}
        return found

    def _tell(self, whom: dict[str, dict[str, float]], names: list[str], games: Array, mixed: dict[str, float]) -> None:
        """`mixed`: chances by which pairs are measured, since the error of an equilibrium is that of the payoffs
        against whom it mixes; an even share beside it is for newcomers."""
        at = {name: i for i, name in enumerate(names)}
        pairs = [pair for pair in self._names if pair[0] in at and pair[1] in at]
        even = 1 / len(names)
        weights = np.array([even + sum(mixed.get(name, 0.0) for name in pair) for pair in pairs])
        wanted = pair_chances(np.array([games[at[one], at[other]] for one, other in pairs]), weights)
        self.instructions = {
            "files": {entry.name: entry.checksum for entry in self._entries},
            "whom": whom,
            "pairs": [[*pair, round(float(chance), 6)] for pair, chance in zip(pairs, wanted, strict=True)],
        }

    def _show(
        self,
        whom: dict[str, dict[str, float]],
        names: list[str],
        tables: tuple[Array, Array, Array],
        ratings: Array,
        mixed: dict[str, float],
        loads: float,
    ) -> None:
        games, points, margins = tables
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(games > 0, margins / games, np.nan)
        self.view = {
            "members": [
                {
                    "name": entry.name,
                    "policy": entry.policy,
                    "checksum": entry.checksum,
                    "elo": round(float(ratings[i]), 1),
                    "games": int(games[i].sum()),
                    "chance": round(mixed.get(entry.name, 0.0), 4),
                }
                for i, entry in enumerate(self._entries)
            ],
            "size": self._plan.config.size,
            "games": games.astype(int).tolist(),
            "win_rates": _plain(win_rates(games, points)),
            "payoffs": _plain(mean),
            "whom": {player: {k: round(v, 4) for k, v in each.items()} for player, each in whom.items()},
            "loads": int(loads),
        }


def _plain(table: Array) -> list[list[float | None]]:
    """For JSON; None where nobody played."""
    return [[None if np.isnan(value) else round(float(value), 4) for value in row] for row in table]
