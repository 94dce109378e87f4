"""Equilibria of a table of payoffs, as of the game in which one chooses who of a population is to play. Pure.

In flow: what each row earns from each column. Out flow: with which chances each side should choose.

Legend: `M` rows, `N` columns.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
