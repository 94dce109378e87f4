"""Probabilities and entropies by hand, and samples that follow them."""

from __future__ import annotations

from math import exp, log, pi

import numpy as np
import pytest
import torch

from workers.policies.distributions import Heads

BOTH = Heads((2, 3), 1)
LOGITS = np.log(np.array([0.25, 0.75, 0.2, 0.3, 0.5], np.float32))
"""Two heads; the mean of the amount is 0.5, its standard deviation 2."""
OUTPUTS = np.concatenate([LOGITS, [0.5]]).astype(np.float32)[:, None]
LOG_STD = np.array([log(2)], np.float32)


def test_heads_and_amounts_are_independent_by_hand():
    found, entropy = BOTH.log_prob_and_entropy(
        torch.from_numpy(OUTPUTS),
        torch.from_numpy(LOG_STD),
        torch.tensor([[1, 2]]),
        torch.tensor([[2.5]]),
        None,
    )
    density = exp(-0.5 * ((2.5 - 0.5) / 2) ** 2) / (2 * (2 * pi) ** 0.5)
    assert found.item() == pytest.approx(log(0.75 * 0.5 * density), abs=1e-6)
    by_hand = -sum(p * log(p) for p in (0.25, 0.75, 0.2, 0.3, 0.5)) + 0.5 * log(2 * pi * exp(1) * 4)
    assert entropy.item() == pytest.approx(by_hand, abs=1e-6)


def test_what_is_not_legal_has_no_probability_no_entropy_and_no_gradient():
    outputs = torch.from_numpy(OUTPUTS[:5].copy()).requires_grad_()
    legal = torch.tensor([[True, True, False, True, True]])
    found, entropy = Heads((2, 3)).log_prob_and_entropy(outputs, None, torch.tensor([[0, 1]]), None, legal)
    assert found.item() == pytest.approx(log(0.25 * 0.3 / 0.8), abs=1e-6)
    kept = [0.3 / 0.8, 0.5 / 0.8]
    assert entropy.item() == pytest.approx(-sum(p * log(p) for p in (0.25, 0.75, *kept)), abs=1e-6)
    (found.sum() + entropy.sum()).backward()
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()
    assert outputs.grad[2].item() == 0


def test_draws_follow_their_distribution_and_say_their_probability():
    rows = 40_000
    outputs = np.repeat(OUTPUTS, rows, 1)
    legal = np.tile([True, True, True, False, True], (rows, 1))
    drawn = BOTH.sample(outputs, LOG_STD, np.random.default_rng(1), legal)
    assert drawn["action"].shape == (rows, 2)
    np.testing.assert_allclose(np.bincount(drawn["action"][:, 0]) / rows, [0.25, 0.75], atol=0.01)
    np.testing.assert_allclose(np.bincount(drawn["action"][:, 1]) / rows, [2 / 7, 0, 5 / 7], atol=0.01)
    assert drawn["amount"].mean() == pytest.approx(0.5, abs=0.04)
    assert drawn["amount"].std() == pytest.approx(2, abs=0.04)
    said, _ = BOTH.log_prob_and_entropy(
        torch.from_numpy(outputs),
        torch.from_numpy(LOG_STD),
        torch.from_numpy(drawn["action"]),
        torch.from_numpy(drawn["amount"]),
        torch.from_numpy(legal),
    )
    np.testing.assert_allclose(drawn["log_probability"], said.numpy(), atol=1e-5)


def test_without_noise_the_likeliest_legal_values_and_the_means_are_chosen():
    legal = np.array([[True, False, True, True, False]])
    drawn = BOTH.sample(OUTPUTS, LOG_STD, None, legal)
    assert drawn["action"].tolist() == [[0, 1]]
    assert drawn["amount"].tolist() == [[0.5]]


def test_numbers_alone_need_no_head():
    heads = Heads((), 2)
    drawn = heads.sample(np.zeros((2, 5), np.float32), np.zeros(2, np.float32), np.random.default_rng(0))
    assert drawn["action"].shape == (5, 0)
    action, amount = (torch.from_numpy(drawn[name]) for name in ("action", "amount"))
    said, _ = heads.log_prob_and_entropy(torch.zeros(2, 5), torch.zeros(2), action, amount, None)
    np.testing.assert_allclose(drawn["log_probability"], said.numpy(), atol=1e-6)
