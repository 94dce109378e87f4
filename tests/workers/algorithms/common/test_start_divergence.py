"""How far a policy has gone from its start: against the divergence over all actions, its gradient, and its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from protocol.config.run import PolicyConfig
from protocol.config.trainable import StartKL
from tests.faults import raises
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.start_divergence import StartDivergence, start_divergence


def seen(log_policy: Tensor, log_behaviour: Tensor) -> Any:
    """Rows [1, actions] in each of which another action was chosen."""
    ratio = (log_policy - log_behaviour).exp()[None]
    return SimpleNamespace(log_probability=log_policy[None], ratio=ratio)


def test_in_the_mean_it_is_the_divergence_and_has_its_gradient() -> None:
    """Over what a third policy chose, as often as that does."""
    generator = torch.Generator().manual_seed(0)
    now, start, behaviour = torch.randn(3, 5, generator=generator).requires_grad_()
    log_policy, log_start, log_behaviour = (one.log_softmax(0) for one in (now, start.detach(), behaviour.detach()))
    each = start_divergence(seen(log_policy, log_behaviour), log_start[None])[0]
    assert bool((each >= 0).all())
    estimated = (log_behaviour.exp() * each).sum()
    exact = (log_policy.exp() * (log_policy - log_start)).sum()
    assert estimated.item() == pytest.approx(exact.item(), rel=1e-5)
    (found,) = torch.autograd.grad(estimated, now, retain_graph=True)
    (expected,) = torch.autograd.grad(exact, now)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_what_its_start_would_surely_do_and_it_never_does_is_far_but_finite() -> None:
    rows = seen(torch.tensor([-500.0]).requires_grad_(), torch.tensor([-500.0]))
    assert bool(start_divergence(rows, torch.zeros(1, 1)).isfinite().all())


def test_the_loss_is_raised_by_what_is_due_of_it() -> None:
    start: Any = torch.nn.Linear(1, 1)
    near = StartDivergence(start, StartKL(coefficient=0.5, steps=1_000))
    assert not any(one.requires_grad for one in start.parameters())
    log_policy = torch.tensor([0.25, 0.75]).log().requires_grad_()
    rows, then = seen(log_policy, log_policy.detach()), torch.tensor([[0.5, 0.5]]).log()
    weight = torch.tensor([[0.25, 0.75]])
    divergence = (weight[0] * (log_policy - then[0])).sum().item()
    loss = Loss(torch.tensor(2.0), {"policy_loss": torch.tensor(1.0)})
    for rows_made, due in ((0, 0.5), (250, 0.375), (1_000, 0.0), (5_000, 0.0)):
        near.fade(rows_made)
        raised = near.raised(loss, rows, then, weight)
        assert raised.total.item() == pytest.approx(2.0 + due * divergence, abs=1e-6)
        assert raised.metrics["start_kl"].item() == pytest.approx(divergence, abs=1e-6)
        assert raised.metrics["policy_loss"] == 1.0
    stays = StartDivergence(start, StartKL(coefficient=0.5))
    stays.fade(10**9)
    assert stays.coefficient == 0.5


@pytest.mark.parametrize(
    ("policy", "kind", "key"),
    [
        ({"algorithm": {"name": "sac"}}, "start_kl_conflict", "start.kl"),
        ({"network": {"core": "lstm"}}, "start_kl_conflict", "start.kl"),
        ({"compile": True}, "compile_conflict", "compile"),
    ],
)
def test_who_cannot_tell_how_far_it_is_refuses(policy: dict[str, Any], kind: str, key: str) -> None:
    with raises(Exception, kind, key=key):
        PolicyConfig.model_validate({**policy, "start": {"path": "x", "kl": 0.1}})


def test_a_number_alone_is_its_coefficient() -> None:
    assert PolicyConfig.model_validate({"start": {"path": "x", "kl": 0.1}}).kl == StartKL(coefficient=0.1)
