"""How sure a mean is: bootstrap intervals, and the interquartile mean; and how it is written.

In flow: scores, of episodes or of runs. Out flow: an estimate with the bounds of its 95 % interval, and text. Pure; the
same scores give the same bounds.

Intervals are percentiles of the statistic over scores drawn with replacement (Efron and Tibshirani, An Introduction to
the Bootstrap, 1993, section 13.3). The interquartile mean is the mean of what lies between the quartiles, and is what
Agarwal et al. (Deep Reinforcement Learning at the Edge of the Statistical Precipice, 2021, section 4.2) advise for few
runs: steadier than the median, and not led by one lucky run as the mean is.

Legend: `n` scores, `R` draws, `P` points of a curve.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_DRAWS = 2_000
_LEVEL = 0.95
_Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Of one statistic, or of P. The bounds are those of a 95 % interval, and NaN where there is a single score."""

    value: _Scores
    low: _Scores
    high: _Scores


def mean(scores: _Scores) -> _Scores:
    """[n, *rest] -> [*rest]."""
    return np.asarray(scores.mean(0))


def interquartile_mean(scores: _Scores) -> _Scores:
    """[n, *rest] -> [*rest]: the mean without the floor(n / 4) lowest and the floor(n / 4) highest scores."""
    cut = len(scores) // 4
    return np.asarray(np.sort(scores, 0)[cut : len(scores) - cut].mean(0))


def interval(scores: _Scores, statistic: Callable[[_Scores], _Scores] = mean) -> Estimate:
    """`statistic` of `scores` [n] or [n, P], of which each row is one run or episode and is drawn as a whole."""
    value = statistic(scores)
    if len(scores) < 2:
        nothing = np.full_like(value, np.nan)
        return Estimate(value, nothing, nothing)
    draw = np.random.default_rng(0)
    drawn = np.stack([statistic(scores[draw.integers(0, len(scores), len(scores))]) for _ in range(_DRAWS)])
    low, high = np.quantile(drawn, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0)
    return Estimate(value, low, high)
