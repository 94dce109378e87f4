"""Gradients of the hand-written towers, running moments and scratch memory."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.policies.distributions import Heads
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.actor_critic_mlp import two_towers
from workers.policies.networks.normalization import RunningMoments
from workers.policies.tensors.kernels import Activation, tanh
from workers.policies.tensors.scratch import ScratchBuffers


def plain(policy: ActorCritic, x: Tensor) -> tuple[Tensor, Tensor]:
    """The towers, or the one, by torch's own operations and gradients."""
    *hidden, policy_weight, policy_bias, value_weight, value_bias = policy.parameters()
    squash = torch.tanh if policy.activation == "tanh" else torch.relu
    sides, many = [x], 1 if policy.share_layers else 2
    for weight, bias in zip(hidden[::2], hidden[1::2], strict=True):
        if weight.dim() == 2:
            sides = list(squash(x @ weight + bias).chunk(many, 1))
        else:
            sides = [squash(sides[i] @ weight[i] + bias[i]) for i in range(many)]
    return (sides[0] @ policy_weight + policy_bias).T, (sides[-1] @ value_weight + value_bias)[:, 0]


@pytest.mark.parametrize(
    ("hidden", "activation"), [((), "tanh"), ((8,), "relu"), ((8, 6), "tanh"), ((8, 6, 10), "relu")]
)
@pytest.mark.parametrize("shared", [False, True])
def test_towers_have_the_outputs_and_gradients_of_plain_torch(
    hidden: tuple[int, ...], activation: Activation, shared: bool
) -> None:
    torch.manual_seed(0)
    policy = ActorCritic((3, 2), Heads((4,)), hidden, activation, share_layers=shared)
    for parameter in policy.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x = torch.randn(11, 6, requires_grad=True)
    weights = torch.randn(4, 11), torch.randn(11)
    found, gradients = [], []
    recorded = partial(two_towers, parameters=policy.tower_parameters(), activation=activation)
    for evaluate in (policy.forward, recorded, partial(plain, policy)):
        logits, values = evaluate(x)
        found.append((logits.detach().clone(), values.detach().clone()))
        loss = (logits * weights[0]).square().sum() + (values * weights[1]).square().sum()
        gradients.append(torch.autograd.grad(loss, [x, *policy.parameters()]))
    for ours, theirs in zip(found[:2], gradients[:2], strict=True):
        torch.testing.assert_close(ours, found[2], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(theirs, gradients[2], rtol=1e-4, atol=1e-4)


def test_tanh_has_the_value_and_gradient_of_torch() -> None:
    x = torch.linspace(-9, 9, 1001, requires_grad=True)
    torch.testing.assert_close(tanh(x), x.tanh(), rtol=0, atol=1e-6)
    (found,) = torch.autograd.grad(tanh(x).sum(), x)
    (expected,) = torch.autograd.grad(x.tanh().sum(), x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6), shift=st.floats(-100, 100))
def test_moments_of_parts_are_the_moments_of_the_whole(sizes: list[int], shift: float) -> None:
    generator = torch.Generator().manual_seed(sum(sizes))
    parts = [torch.randn(n, 3, generator=generator) * 2 + shift for n in sizes]
    moments = RunningMoments(3)
    for part in parts:
        moments.update(part)
    whole = torch.cat(parts).double()
    assert moments.count == len(whole)
    if len(whole):
        torch.testing.assert_close(moments.mean, whole.mean(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(moments.variance, whole.var(0, correction=0), rtol=1e-4, atol=1e-4)


def test_moments_with_a_memory_follow_what_changes() -> None:
    moments, for_ever = RunningMoments(memory=5), RunningMoments()
    for value in [0.0] * 100 + [50.0] * 40:
        moments.update(torch.full((10,), value))
        for_ever.update(torch.full((10,), value))
    assert moments.mean == pytest.approx(50, abs=0.1)
    assert for_ever.mean == pytest.approx(50 * 40 / 140)


def test_the_spread_of_constants_never_falls_to_zero() -> None:
    moments = RunningMoments(floor=0.01)
    moments.update(torch.full((10,), 100.0))
    assert moments.std == pytest.approx(1.0)
    assert moments.scalars() == pytest.approx((100.0, 1.0))
    moments.update(torch.zeros(0))
    assert moments.count == 10


def test_scratch_memory_is_used_again_and_grows() -> None:
    scratch, like = ScratchBuffers(), torch.zeros(1)
    first = scratch.take("x", (4, 6), like)
    assert scratch.take("x", (3, 6), like).data_ptr() == first.data_ptr()
    assert scratch.take("y", (4, 6), like).data_ptr() != first.data_ptr()
    assert scratch.take("x", (40, 6), like).shape == (40, 6)
    assert scratch.take("x", (4,), like.byte()).dtype == torch.uint8
