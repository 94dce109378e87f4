"""Returns, generalised advantages and V-trace against hand-computed numbers and plain loops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.algorithms.common.advantages import vtrace
from workers.algorithms.common.returns import linear_recurrence, next_values


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float32)[:, None]


def ends(*rows: int, length: int) -> Tensor:
    flags = torch.zeros(length, 1, dtype=torch.bool)
    flags[list(rows)] = True
    return flags


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected.to(found.dtype), rtol=1e-5, atol=1e-5)


def random_case(seed: int, length: int, width: int) -> dict[str, Any]:
    g = torch.Generator().manual_seed(seed)
    chance = torch.rand(length, width, generator=g)
    terminated, truncated = chance < 0.15, (chance >= 0.15) & (chance < 0.3)
    value = torch.randn(length + 1, width, generator=g)
    final = torch.randn(length, width, generator=g)
    return {
        "reward": torch.randn(length, width, generator=g),
        "value": value[:-1],
        "next_value": next_values(value, terminated, truncated, final),
        "ended": terminated | truncated,
        "ratio": torch.rand(length, width, generator=g) * 2.5,
    }


def loop(case: dict[str, Any], gamma: float, lambda_: float, rho_clip: float, c_clip: float) -> Tensor:
    """The formula, one number at a time."""
    length, width = case["reward"].shape
    advantage = torch.zeros(length, width, dtype=torch.float64)
    for b in range(width):
        ahead = 0.0
        for t in reversed(range(length)):
            r, v, n = (case[name][t, b].item() for name in ("reward", "value", "next_value"))
            ratio, going = case["ratio"][t, b].item(), 1.0 - float(case["ended"][t, b])
            ahead = min(rho_clip, ratio) * (r + gamma * n - v) + gamma * lambda_ * min(c_clip, ratio) * going * ahead
            advantage[t, b] = ahead
    return advantage


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(1, 70),
    gamma=st.floats(0, 1),
    lambda_=st.floats(0, 1),
    rho_clip=st.floats(0.1, 3),
    c_clip=st.floats(0.1, 3),
)
def test_vtrace_is_the_plain_loop(
    seed: int, length: int, gamma: float, lambda_: float, rho_clip: float, c_clip: float
) -> None:
    case = random_case(seed, length, 3)
    found = vtrace(**case, gamma=gamma, lambda_=lambda_, rho_clip=rho_clip, c_clip=c_clip)
    expected = loop(case, gamma, lambda_, rho_clip, c_clip)
    torch.testing.assert_close(found.advantage.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.target, found.advantage + case["value"])


def test_e11_vtrace_with_ratio_one_is_generalised_advantage_estimation() -> None:
    """E11: the correction is none where nothing is off-policy; then the loop is Schulman et al. 2016, equation 16."""
    case = random_case(3, 64, 5)
    case["ratio"] = torch.ones(64, 5)
    corrected = vtrace(**case, gamma=0.97, lambda_=0.9, rho_clip=1.0, c_clip=1.0)
    expected = loop(case, 0.97, 0.9, 1.0, 1.0)
    close(corrected.advantage, expected)
    close(corrected.policy_advantage, expected)


def test_next_values_of_each_kind_of_row() -> None:
    value = column(1, 2, 3, 4)
    found = next_values(value, ends(0, length=3), ends(0, 1, length=3), column(7, 8, 9))
    close(found, column(0, 8, 4))


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 65])
def test_the_recurrence_in_rounds_is_the_recurrence_in_turn(length: int) -> None:
    x, factor = torch.randn(length, 4), torch.rand(length, 4)
    expected = x.clone()
    for t in reversed(range(length - 1)):
        expected[t] += factor[t] * expected[t + 1]
    close(linear_recurrence(x, factor), expected)


def test_the_policy_advantage_carries_no_weight_of_its_own_row() -> None:
    """E11: weighted by the ratio once, a late row counts as importance sampling says, not twice."""
    ratio = torch.tensor([[0.5], [0.25]])
    found = vtrace(
        torch.tensor([[1.0], [2.0]]),
        torch.zeros(2, 1),
        torch.zeros(2, 1),
        torch.tensor([[False], [True]]),
        ratio,
        gamma=1.0,
        lambda_=1.0,
        rho_clip=1.0,
        c_clip=1.0,
    )
    # A[1] = 0.25 * 2; row 0 sees 1 + A[1], row 1 sees its reward
    assert found.policy_advantage.flatten().tolist() == pytest.approx([1.5, 2.0])
    assert found.advantage.flatten().tolist() == pytest.approx([0.75, 0.5])
