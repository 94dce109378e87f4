"""Behaviour cloning: likelihoods by hand, nothing of what was illegal or of the value, and that it learns (J5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import BC, Network, PolicyConfig
from protocol.config.run import Dataset as DatasetConfig
from protocol.spaces import Agent, Box, Discrete, MultiDiscrete
from workers.algorithms.bc import BCUpdate, objective
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import TransitionBatch
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic

B = 5
ACTIONS = {
    "discrete": Discrete(n=4),
    "multi-discrete": MultiDiscrete(nvec=(3, 2), shape=(2,)),
    "continuous": Box(shape=(2,), low=-2.0, high=2.0),
}


def updater(action: Any, order: Any = None, **algorithm: Any) -> BCUpdate:
    config = PolicyConfig(
        algorithm=BC(**algorithm),
        model_config=Network(hidden=(8,), autoregressive=order),
        learning_rate=0.01,
        dataset=DatasetConfig(path="somewhere"),
    )
    policy = build(Interface.of(Agent(name="a", observation=Box(shape=(3,)), action=action)), config, 0)
    update = build_update(policy, config)
    assert isinstance(update, BCUpdate)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():  # an untrained policy gives all actions the same probability
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
    return update


def batch(action: Any, rows: int = B, masked: bool = False) -> TransitionBatch:
    g = torch.Generator().manual_seed(1)
    sizes = {"discrete": (4,), "multi_discrete": (3, 2)}.get(action.kind, ())
    chosen = torch.stack([torch.randint(0, n, (rows,), generator=g) for n in sizes], 1) if sizes else None
    legal = torch.rand(rows, sum(sizes), generator=g) < 0.5 if masked else None
    if legal is not None and chosen is not None:
        starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
        legal.scatter_(1, chosen + starts, True)
    return TransitionBatch(
        observation=torch.randn(rows, 1, 3, generator=g),
        action=torch.empty(rows, 0, dtype=torch.int64)
        if chosen is None
        else chosen[:, 0]
        if len(sizes) == 1
        else chosen,
        reward=torch.zeros(rows),
        discount=torch.ones(rows),
        next_observation=torch.randn(rows, 1, 3, generator=g),
        amount=None if sizes else torch.randn(rows, 2, generator=g),
        legal=legal,
    )


def outputs(policy: ActorCritic, observation: torch.Tensor) -> np.ndarray:
    """[A] of one row in double precision, by the definition of the network."""
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    x = np.tanh((observation.double().numpy().reshape(-1) @ w["layer_0_weight"] + w["layer_0_bias"])[:8])
    return np.asarray(x @ w["policy_weight"] + w["policy_bias"])


def by_hand(policy: ActorCritic, rows: TransitionBatch, b: int) -> tuple[float, float]:
    """Log-probability and entropy of row `b`."""
    out, at, chance, entropy = outputs(policy, rows.observation[b]), 0, 0.0, 0.0
    for head, size in enumerate(policy.heads.sizes):
        logits = out[at : at + size]
        allowed = np.ones(size, bool) if rows.legal is None else rows.legal[b, at : at + size].numpy()
        p = np.where(allowed, np.exp(logits), 0)
        p /= p.sum()
        taken = int(rows.action[b]) if policy.heads.single else int(rows.action[b, head])
        chance += np.log(p[taken])
        entropy -= sum(x * np.log(x) for x in p if x)
        at += size
    if policy.log_std is not None and rows.amount is not None:
        for i, log_std in enumerate(policy.log_std.double().tolist()):
            error = (float(rows.amount[b, i]) - out[at + i]) / np.exp(log_std)
            chance += -0.5 * error**2 - log_std - 0.5 * np.log(2 * np.pi)
            entropy += log_std + 0.5 * np.log(2 * np.pi * np.e)
    return float(chance), float(entropy)


@pytest.mark.parametrize(
    ("kind", "masked"),
    [
        ("discrete", False),
        ("discrete", True),
        ("multi-discrete", False),
        ("multi-discrete", True),
        ("continuous", False),
    ],
)
def test_the_loss_is_the_likelihood_written_out_number_by_number_J5(kind: str, masked: bool) -> None:
    action, coefficient = ACTIONS[kind], 0.3
    policy, rows = updater(action).policy, batch(action, masked=masked)
    found = objective(policy, rows, coefficient)
    assert found.priorities is not None
    known = [by_hand(policy, rows, b) for b in range(B)]
    assert found.priorities.tolist() == pytest.approx([-chance for chance, _ in known], abs=1e-5)
    assert found.metrics["entropy"].item() == pytest.approx(np.mean([one for _, one in known]), abs=1e-5)
    expected = -np.mean([chance for chance, _ in known]) - coefficient * np.mean([one for _, one in known])
    assert found.total.item() == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("kind", ACTIONS)
def test_what_was_done_becomes_what_is_done_J5(kind: str) -> None:
    update, rows = updater(ACTIONS[kind]), batch(ACTIONS[kind])
    first = update.update(rows)
    for _ in range(200):
        last = update.update(rows)
    assert last["negative_log_likelihood"] < first["negative_log_likelihood"] - 0.5
    assert last["agreement"] == 1
    assert update.train_steps == 201


def test_observations_are_normalised_by_what_was_seen_J5() -> None:
    update, rows = updater(ACTIONS["discrete"], normalize_observation=True), batch(ACTIONS["discrete"])
    update.update(rows)
    assert update.policy.observations is not None
    assert torch.allclose(update.policy.observations.mean.float(), rows.observation[:, 0].mean(0), atol=1e-6)


@pytest.mark.parametrize("kind", ["discrete", "multi-discrete"])
def test_agreement_is_with_the_likeliest_of_what_is_legal(kind: str) -> None:
    policy, rows = updater(ACTIONS[kind]).policy, batch(ACTIONS[kind], 40, masked=True)
    assert rows.legal is not None
    sizes, agreed = policy.heads.sizes, []
    for i, action in enumerate(rows.action.view(40, -1)):
        said = np.where(rows.legal[i].numpy(), outputs(policy, rows.observation[i]), -np.inf)
        heads = np.split(said, np.cumsum(sizes)[:-1])
        agreed += [int(head.argmax()) == int(chosen) for head, chosen in zip(heads, action, strict=True)]
    found = objective(policy, rows).metrics["agreement"]
    assert float(found) == pytest.approx(np.mean(agreed))


@pytest.mark.parametrize("order", [None, True])
def test_choices_in_turn_learn_which_go_together(order: Any) -> None:
    """Both are the same one of three, any of which is as likely, whatever is seen."""
    rows = batch(ACTIONS["discrete"], 30)
    same = torch.arange(30)[:, None].expand(-1, 2) % 3
    rows = replace(rows, action=same, observation=torch.zeros_like(rows.observation))
    update = updater(MultiDiscrete(nvec=(3, 3)), order=order)
    for _ in range(300):
        last = update.update(rows)
    alone = np.log(3)
    assert last["negative_log_likelihood"] == pytest.approx(alone if order else 2 * alone, abs=0.05)
    assert last["entropy"] == pytest.approx(alone if order else 2 * alone, abs=0.1)
