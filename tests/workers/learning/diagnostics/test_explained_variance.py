"""What a critic explains of what is earned: all, nothing, less than nothing; and where nothing can be said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.workers.algorithms.common.test_advantages import segments
from workers.learning.diagnostics.explained_variance import explained_variance

REWARD = torch.tensor([[1.0, 0.0, 4.0, 2.0], [0.0, 8.0, 0.0, 0.0]])
OVER = torch.tensor([[0, 0, 1, 0], [0, 1, 0, 0]], dtype=torch.bool)
BATCH = segments(REWARD, OVER)
EARNED = torch.tensor([[2.0, 2.0, 4.0, 6.0], [4.0, 8.0, 3.0, 6.0]])
"""At a discount of 0.5; the value of the last row of each segment, which goes on, stands for what comes."""


@pytest.mark.parametrize(
    ("value", "share"),
    [(EARNED, 1.0), (torch.full_like(EARNED, 6.0), 0.0), (12 - EARNED, -3.0)],
    ids=["all", "nothing", "misled"],
)
def test_a_critic_explains_as_much_as_it_knows(value: Tensor, share: float) -> None:
    assert explained_variance(replace(BATCH, value=value), 0.5) == pytest.approx(share)


def test_rows_that_are_not_real_count_for_nothing() -> None:
    value = EARNED.clone()
    value[1, 2:] = math.nan
    short = replace(BATCH, value=value, valid=torch.tensor([4, 2]))
    assert explained_variance(short, 0.5) == pytest.approx(1.0)


def test_an_episode_that_is_cut_off_would_have_earned_what_was_thought() -> None:
    """Of 4 and 8 at its end each, half of 8 and of 16 more."""
    cut = replace(BATCH, terminated=OVER & False, truncated=OVER)
    value = torch.tensor([[3.0, 4.0, 8.0, 6.0], [8.0, 16.0, 3.0, 6.0]])
    assert explained_variance(replace(cut, value=value), 0.5) == pytest.approx(1.0)


def test_where_no_values_are_told_or_all_earn_the_same_nothing_is_said() -> None:
    assert explained_variance(replace(BATCH, value=None), 0.5) is None
    nothing = replace(BATCH, reward=REWARD * 0)
    assert explained_variance(nothing, 0.5) is None
