"""Probabilities and entropies by hand, and samples that follow them."""

from __future__ import annotations

from itertools import product
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


SEEING = Heads((2, 3, 4), 2, (2, 0, 1))
"""The last head is chosen first; amounts see all of them."""


def seen_by_hand(outputs: np.ndarray, part: int, action: list[int]) -> np.ndarray:
    """Outputs of a head, or of the amounts, of one row: its own, and what those before it in `SEEING` add."""
    widths, starts, at = (2, 3, 4, 2), (0, 2, 5, 9), 11
    found = outputs[starts[part] : starts[part] + widths[part]].copy()
    for other, before in ((0, [2]), (1, [2, 0]), (3, [2, 0, 1])):  # as tables lie
        for head in before:
            table = outputs[at : at + widths[head] * widths[other]].reshape(widths[head], -1)
            at += table.size
            if other == part:
                found += table[action[head]]
    assert at == SEEING.outputs == len(outputs)
    return found


@pytest.fixture(params=[False, True], ids=["all legal", "masked"])
def seeing(request):
    """Outputs of three rows, and which values are legal."""
    draw = np.random.default_rng(2)
    outputs, legal = draw.normal(size=(SEEING.outputs, 3)).astype(np.float32), None
    if request.param:
        legal = np.tile([True, True, True, False, True, False, True, True, True], (3, 1))
    return outputs, legal


def joint(row: np.ndarray, mask: np.ndarray | None) -> dict[tuple[int, ...], float]:
    """How likely each action is, by hand."""
    found = {}
    for action in product(*map(range, SEEING.sizes)):
        chance = 1.0
        for head, start in enumerate((0, 2, 5)):
            likely = np.exp(seen_by_hand(row, head, list(action)))
            likely *= 1 if mask is None else mask[start : start + len(likely)]
            chance *= likely[action[head]] / likely.sum()
        found[action] = chance
    return found


def test_heads_in_an_order_see_what_was_chosen_before(seeing):
    """Probabilities of all actions, the mean of their entropies, and the likeliest in that order."""
    outputs, legal = seeing
    mask = None if legal is None else torch.from_numpy(legal)
    spread, means = torch.zeros(2), torch.from_numpy(outputs)
    greedy, best_means = SEEING.greedy(means, mask)
    for row in range(3):
        by_hand = joint(outputs[:, row], None if legal is None else legal[row])
        actions = torch.tensor([*by_hand])
        many, some = means[:, row : row + 1].expand(-1, len(actions)), None
        if mask is not None:
            some = mask[row : row + 1].expand(len(actions), -1)
        amount = torch.tensor(np.array([seen_by_hand(outputs[:, row], 3, list(one)) for one in by_hand]))
        chance, entropy = SEEING.log_prob_and_entropy(many, spread, actions, amount, some)
        told = np.array([*by_hand.values()])
        np.testing.assert_allclose((chance + log(2 * pi)).exp().numpy(), told, atol=1e-5)
        assert told.sum() == pytest.approx(1)
        exact = -sum(one * log(one) for one in told if one > 0) + log(2 * pi * exp(1))
        assert (entropy.numpy() * told).sum() == pytest.approx(exact, abs=1e-4)
        likely = greedy[row].tolist()
        for head, start in ((2, 5), (0, 0), (1, 2)):
            scores = seen_by_hand(outputs[:, row], head, likely)
            if legal is not None:
                scores[~legal[row, start : start + len(scores)]] = -np.inf
            assert likely[head] == scores.argmax()
        np.testing.assert_allclose(best_means[row], seen_by_hand(outputs[:, row], 3, likely), atol=1e-6)
    assert torch.equal(SEEING.greedy_choices(means, mask), greedy)


def test_draws_in_an_order_follow_it_and_say_their_probability(seeing):
    outputs, legal = seeing
    rows, mask = 40_000, None if legal is None else np.repeat(legal[:1], 40_000, 0)
    many = np.repeat(outputs[:, :1], rows, 1)
    drawn = SEEING.sample(many, np.full(2, -2.0, np.float32), np.random.default_rng(3), mask)
    by_hand = joint(outputs[:, 0], None if legal is None else legal[0])
    often = np.array([(drawn["action"] == action).all(1).mean() for action in by_hand])
    np.testing.assert_allclose(often, [*by_hand.values()], atol=0.01)
    action, amount = (torch.from_numpy(drawn[name]) for name in ("action", "amount"))
    known = None if mask is None else torch.from_numpy(mask)
    said, _ = SEEING.log_prob_and_entropy(torch.from_numpy(many), torch.full((2,), -2.0), action, amount, known)
    np.testing.assert_allclose(drawn["log_probability"], said.numpy(), atol=1e-4)
    (first,) = (SEEING.sample(many[:, :1], np.zeros(2, np.float32), None, None if mask is None else mask[:1]),)
    best, _ = SEEING.greedy(torch.from_numpy(many[:, :1]), None if known is None else known[:1])
    assert first["action"].tolist() == best.tolist()
