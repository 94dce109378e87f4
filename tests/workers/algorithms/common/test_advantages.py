"""Segments are drawn by the size of their advantages, and weigh less for it (K9)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.config.run import PPO
from tests.workers.algorithms.test_ppo import experience, setting
from workers.algorithms import stream as module
from workers.algorithms.common.advantages import (
    PolicyEvaluation,
    advantages,
    annealed_beta,
    draw,
    draw_segments,
    estimate_advantages,
    importance_weights,
    priorities,
    row_weights,
)
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.time_major import Minibatch, to_time_major
from workers.algorithms.ppo import PPOUpdate, objective
from workers.policies.tensors.scratch import ScratchBuffers


def segments(reward: Tensor, terminated: Tensor) -> SegmentBatch:
    """[B, T] of rows in which nothing else matters."""
    size, length = reward.shape
    zeros = torch.zeros_like(reward)
    return SegmentBatch(
        observation=torch.zeros(size, length + 1, 3),
        action=zeros.long(),
        reward=reward,
        terminated=terminated,
        truncated=torch.zeros_like(terminated),
        log_probability=zeros,
        value=zeros,
        valid=torch.full((size,), length),
        final_observation=torch.zeros(size, length, 3),
        final_row=torch.full((size, length), -1),
    )


def traced(batch: Minibatch, value: Tensor, next_value: Tensor, ratio: Tensor, **options: Any) -> Tensor:
    """Advantages [T, B] of rows with these values and ratios [T, B]."""
    nothing = torch.zeros_like(value)
    seen = PolicyEvaluation(nothing, nothing, nothing, ratio, nothing, value, next_value)
    return advantages(batch, seen, PPO(**options)).advantage


def whole(given: SegmentBatch) -> Minibatch:
    """All of it."""
    return to_time_major(given).minibatch(torch.arange(len(given.valid)), ScratchBuffers())


def standing(reward: Tensor, terminated: Tensor, value: Tensor, ratio: Tensor, **options: Any) -> Tensor:
    """Advantages [T, B] of segments [B, T] with values [B, T + 1]."""
    after = value[:, 1:].masked_fill(terminated, 0.0)
    return traced(whole(segments(reward, terminated)), value[:, :-1].T, after.T, ratio.T, **options)


def test_priorities_and_importance_by_hand_K9() -> None:
    """Three rows; the first row of the second segment ends its episode. In the source's indices r[1] = 1, r[2] = -1:

    A[2] = 0, A[1] = -1 + 0.9 * 0.5 - 2 = -2.55, A[0] = 0.5 * (1 + 0.9 * 2 - 1) + 0.9 * 0.8 * 0.5 * A[1] = -0.018, and
    0 in the second segment.
    """
    advantage = standing(
        torch.tensor([[1.0, -1.0, 7.0], [1.0, -1.0, 7.0]]),
        torch.tensor([[False, False, False], [True, False, False]]),
        torch.tensor([[1.0, 2.0, 0.5, 9.0]] * 2),
        torch.tensor([[0.5, 2.0, 1.0], [1.0, 1.0, 1.0]]),
        gamma=0.9,
        gae_lambda=0.8,
        zero_last=True,
    )
    expected = torch.tensor([[-0.018, -2.55, 0.0], [0.0, -2.55, 0.0]])
    torch.testing.assert_close(advantage.T, expected, atol=1e-6, rtol=0)
    priority = priorities(advantage.abs().sum(0), 0.5)
    assert priority.tolist() == pytest.approx([0.5008794084, 0.4991209041], abs=1e-6)
    beta = annealed_beta(0.6, 0.5, 0.25)
    assert beta == pytest.approx(0.65)
    assert importance_weights(priority, beta).tolist() == pytest.approx([0.9988584253, 1.0011444849], abs=1e-6)


@pytest.mark.parametrize("seed", range(2))
def test_advantages_are_the_sources_loop_in_its_own_indices_K9(seed: int) -> None:
    noise = torch.Generator().manual_seed(seed)
    size, length, gamma, lambda_ = 6, 12, 0.977, 0.916
    reward = torch.randn(size, length, generator=noise)
    done = torch.rand(size, length, generator=noise) < 0.2
    value = torch.randn(size, length + 1, generator=noise)
    ratio = torch.rand(size, length, generator=noise) * 2
    stand = standing(reward, done, value, ratio, gamma=gamma, gae_lambda=lambda_, zero_last=True)
    r, d = ([*[0.0], *row] for row in (reward[0].tolist(), done[0].tolist()))  # r[t + 1] came of the action in row t
    v, q = value[0].tolist(), ratio[0].tolist()
    advantage = [0.0] * length
    for t in range(length - 2, -1, -1):
        going = 1 - d[t + 1]
        delta = min(q[t], 1) * (r[t + 1] + gamma * v[t + 1] * going - v[t])
        advantage[t] = delta + gamma * lambda_ * min(q[t], 1) * advantage[t + 1] * going
    assert stand[:, 0].tolist() == pytest.approx(advantage, abs=1e-5)


def test_without_zero_last_the_last_row_looks_beyond_the_segment_K9() -> None:
    one = torch.ones(1, 2)
    stand = standing(one, one < 0, torch.tensor([[0.0, 0.0, 2.0]]), one, gamma=0.5, gae_lambda=1.0)
    assert stand[:, 0].tolist() == pytest.approx([2.0, 2.0])


def test_a_short_segments_last_row_is_its_last_real_one() -> None:
    cut = segments(torch.ones(1, 4), torch.zeros(1, 4, dtype=torch.bool))
    cut.valid[0] = 2
    found = traced(whole(cut), *torch.ones(3, 4, 1), zero_last=True, gamma=0.5, gae_lambda=1.0)
    assert found[:2, 0].tolist() == [0.5, 0.0]


@pytest.mark.parametrize("row", range(5))
def test_no_reward_behind_an_end_reaches_what_is_before_it_K7(row: int) -> None:
    done = torch.zeros(1, 5, dtype=torch.bool)
    done[0, 2] = True
    value, ratio = torch.arange(6.0)[None], torch.ones(1, 5)
    reward = torch.zeros(1, 5)
    before = standing(reward, done, value, ratio)[:, 0]
    reward[0, row] = 1
    changed = standing(reward, done, value, ratio)[:, 0] != before
    assert changed.tolist() == [t <= row and (t > 2) == (row > 2) for t in range(5)]


def test_alpha_zero_is_uniform_with_weights_one_K9() -> None:
    priority = priorities(torch.rand(5), 0.0)
    torch.testing.assert_close(priority, torch.full((5,), 0.2), atol=1e-5, rtol=0)
    torch.testing.assert_close(
        importance_weights(priority, annealed_beta(0.6, 0.0, 1.0)), torch.ones(5), atol=1e-5, rtol=0
    )


def test_rows_that_are_not_real_have_no_say() -> None:
    given = segments(torch.tensor([[3.0, 1000.0], [1.0, 2.0]]), torch.ones(2, 2, dtype=torch.bool))
    given.valid[0] = 1
    batch = whole(given)
    nothing = torch.zeros(2, 2)
    seen = PolicyEvaluation(nothing, nothing, nothing, torch.ones(2, 2), nothing, nothing, nothing)
    found = estimate_advantages(batch, seen, PPO(priority_alpha=1.0), row_weights(batch))
    assert found.priority is not None
    assert found.priority.tolist() == [3, 3]


def test_a_minibatch_has_no_segment_twice_and_minibatches_have_K9() -> None:
    """Without replacement inside a minibatch, with replacement across; nothing is out of reach."""
    priority, noise = torch.tensor([100.0, 1.0, 1.0, 1e-6]), torch.Generator().manual_seed(0)
    drawn = [draw(priority, 3, noise).tolist() for _ in range(50)]
    assert all(len(set(one)) == 3 for one in drawn)
    assert sum(0 in one for one in drawn) > 45
    assert {0, 1, 2, 3} >= {i for one in drawn for i in one} >= {0, 1, 2}


def test_segments_are_drawn_in_proportion_K9() -> None:
    priority, noise = torch.tensor([0.5, 0.3, 0.2]), torch.Generator().manual_seed(1)
    found = torch.cat([draw(priority, 1, noise) for _ in range(5000)]).bincount() / 5000
    torch.testing.assert_close(found, priority, atol=0.03, rtol=0)


def test_an_updates_draws_follow_what_was_seen_last_K9(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many updates as minibatches and epochs say; each segment's part of a minibatch is weighted."""
    policy, config = setting(minibatches=4, epochs=2, priority_alpha=1.0, priority_beta=0.5)
    update = PPOUpdate(policy, config)
    batch = to_time_major(experience(policy))
    batch.reward[:, 3] = 1000.0
    sizes, _ = update._priorities(batch)
    drawn = []
    for rows in update._minibatches(batch, torch.ones(1, batch.mask.shape[1]), sizes, 0.0, None):
        drawn.append(rows.index.tolist())
        importance = rows.gathered(update.scratch).importance
        assert importance is not None
        assert bool((importance[rows.index == 3] < 0.5).all())
    assert sum(3 in part for part in drawn) == len(drawn) == 4
    entered, drawn_by, loss = [], [], update.loss

    def looked_at(policy: Any, batch: Minibatch, rows: PolicyEvaluation) -> Loss:
        entered.append(batch.reward.shape[1])
        return loss(policy, batch, rows)

    def drawn_so(sizes: Tensor, *given: Any) -> tuple[Tensor, Tensor]:
        drawn_by.append(sizes.clone())
        return draw_segments(sizes, *given)

    monkeypatch.setattr(module, "draw_segments", drawn_so)
    monkeypatch.setattr(update, "loss", looked_at)
    metrics = update.update(experience(policy))
    assert entered == [2] * (4 + 8), "all segments once, and then those of each step as they looked in it"
    changed = [int((after != before).sum()) for before, after in pairwise(drawn_by)]
    assert changed[1:] == [2] * 6, "of those that were trained on, which alone were looked at"
    assert update.train_steps == 8
    assert metrics["ratio_mean"] == pytest.approx(1, abs=0.3)


def test_segments_without_any_advantage_are_drawn_alike_K9() -> None:
    """1e-6 stands above and below: nothing is divided by nothing."""
    found = priorities(torch.zeros(2), 0.5)
    assert found.tolist() == [1, 1]
    assert priorities(torch.ones(1), 1.0).tolist() == [1]


def test_the_importance_is_in_the_loss_K9() -> None:
    policy, config = setting(normalize_advantage=False, entropy_coefficient=0.0, value_coefficient=0.0)
    assert isinstance(config.algorithm, PPO)
    batch, every = to_time_major(experience(policy)), torch.arange(8)
    alone = []
    for weight in torch.eye(8):
        found = objective(policy, batch.minibatch(every, ScratchBuffers(), weight), config.algorithm)
        alone.append(found.total.item())
    weight = torch.linspace(0.5, 2, 8)
    found = objective(policy, batch.minibatch(every, ScratchBuffers(), weight), config.algorithm)
    assert found.total.item() == pytest.approx(
        sum(w * one for w, one in zip(weight.tolist(), alone, strict=True)), abs=1e-5
    )
