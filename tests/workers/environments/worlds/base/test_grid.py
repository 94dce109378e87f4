"""Cheap exact chance: the rate, the independence and the limits of `SparseBernoulli`."""

from __future__ import annotations

import numpy as np
import pytest

from workers.environments.worlds.base.grid import SparseBernoulli


def _draw(cells: int, probability: float, turns: int, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    sparks = SparseBernoulli(np.random.default_rng(seed), cells, probability, kinds=3)
    return [tuple(np.copy(part) for part in sparks.draw()) for _ in range(turns)]  # type: ignore[misc]


@pytest.mark.parametrize(("cells", "probability"), [(50, 0.03), (7, 0.5), (40_000, 0.005)])
def test_every_cell_succeeds_with_the_given_probability(cells: int, probability: float) -> None:
    turns = 200_000 // cells + 200
    drawn = _draw(cells, probability, turns)
    hits = np.bincount(np.concatenate([where for where, _ in drawn]), minlength=cells)
    trials = cells * turns
    deviation = (hits.sum() - trials * probability) / np.sqrt(trials * probability * (1 - probability))
    assert abs(deviation) < 4
    # No cell is preferred: the counts of single cells vary as binomial ones do (chi-square within 5 deviations).
    chi = ((hits - turns * probability) ** 2 / (turns * probability * (1 - probability))).sum()
    assert abs(chi - cells) < 5 * np.sqrt(2 * cells)
    # Nor does the number of successes in a turn vary otherwise than that of independent cells.
    counts = np.array([where.size for where, _ in drawn])
    assert counts.var() == pytest.approx(cells * probability * (1 - probability), rel=0.35)


def test_cells_of_a_turn_increase_and_lie_within_the_grid() -> None:
    for where, kind in _draw(30, 0.3, 500):
        assert where.size == kind.size
        assert (np.diff(where) > 0).all()
        assert where.size == 0 or (where[0] >= 0 and where[-1] < 30)


def test_kinds_are_equally_likely() -> None:
    kinds = np.concatenate([kind for _, kind in _draw(10_000, 0.01, 300)])
    counts = np.bincount(kinds, minlength=3)
    assert counts.size == 3
    assert ((counts - kinds.size / 3) ** 2 / (kinds.size / 3)).sum() < 13.8  # chi-square, 2 degrees, p = 0.001


def test_neighbouring_turns_are_independent() -> None:
    hits = np.zeros((20_000, 5), np.bool_)
    for turn, (where, _) in enumerate(_draw(5, 0.2, len(hits))):
        hits[turn, where] = True
    assert abs((hits[1:] & hits[:-1]).mean() - 0.04) < 0.004
    assert abs((hits[:, 1:] & hits[:, :-1]).mean() - 0.04) < 0.004


def test_probability_one_fills_every_cell_and_zero_none() -> None:
    assert all(np.array_equal(where, np.arange(9)) for where, _ in _draw(9, 1.0, 5_000))
    assert all(where.size == 0 for where, _ in _draw(9, 0.0, 100))


def test_a_tiny_probability_overflows_nothing() -> None:
    assert all(where.size == 0 for where, _ in _draw(1_000, 1e-300, 100))
