"""C51: its projection by hand, with everything that Rainbow combines, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import C51, Network, PolicyConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete
from tests.faults import raises
from tests.trial import Trial
from tests.workers.algorithms import chain
from workers.algorithms.build import build_update
from workers.algorithms.c51 import C51Update, divergence, estimates, project_distribution
from workers.algorithms.common.batches import TransitionBatch
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.categorical_network import C51Policy

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B = 6


def setting(**algorithm: Any) -> tuple[C51Policy, PolicyConfig]:
    config = PolicyConfig(algorithm=C51(**algorithm), model_config=Network(hidden=(16,)), learning_rate=0.01)
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, C51Policy)
    return policy, config


def transitions(rows: int = B, seed: int = 0) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    return TransitionBatch(
        observation=torch.randn(rows, 1, 3, generator=g),
        action=torch.randint(4, (rows,), generator=g),
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, 0.97),
        next_observation=torch.randn(rows, 1, 3, generator=g),
    )


@pytest.mark.parametrize(
    ("reward", "discount", "expected"),
    [
        (0.0, 1.0, [0.2, 0.3, 0.5]),  # as it was
        (0.5, 1.0, [0.1, 0.25, 0.65]),  # each atom halfway to the next, the last at the end
        (1.0, 1.0, [0.0, 0.2, 0.8]),
        (-9.0, 1.0, [1.0, 0.0, 0.0]),  # all beyond the end
        (0.25, 0.0, [0.0, 0.75, 0.25]),  # terminated: a return of 0.25 for certain
        (1.0, 0.0, [0.0, 0.0, 1.0]),
        (0.0, 0.5, [0.1, 0.65, 0.25]),  # -0.5, 0 and 0.5
    ],
)
def test_the_projection_by_hand(reward: float, discount: float, expected: list[float]) -> None:
    """Atoms at -1, 0 and 1 with chances of 0.2, 0.3 and 0.5."""
    found = project_distribution(
        torch.tensor([[0.2, 0.3, 0.5]]), torch.tensor([reward]), torch.tensor([discount]), torch.linspace(-1, 1, 3)
    )
    torch.testing.assert_close(found, torch.tensor([expected]), rtol=0, atol=1e-6)


def test_the_projection_loses_no_chance_and_keeps_the_mean_of_what_is_within_the_ends() -> None:
    support, g = torch.linspace(-3.3, 7.1, 51), torch.Generator().manual_seed(0)
    chances = torch.rand(64, 51, generator=g)
    chances /= chances.sum(1, keepdim=True)
    reward, discount = torch.rand(64, generator=g), torch.full((64,), 0.8)
    found = project_distribution(chances, reward, discount, support)
    torch.testing.assert_close(found.sum(1), torch.ones(64))
    torch.testing.assert_close(found @ support, reward + discount * (chances @ support), rtol=0, atol=1e-5)


def test_the_divergence_by_hand() -> None:
    target = torch.tensor([[0.0, 0.5, 0.5], [0.0, 1.0, 0.0]])
    log_chances = torch.tensor([[0.25, 0.25, 0.5], [0.5, 0.25, 0.25]]).log()
    expected = torch.tensor([0.5 * np.log(2.0), np.log(4.0)], dtype=torch.float32)
    torch.testing.assert_close(divergence(log_chances, target), expected)


@pytest.mark.parametrize("double", [True, False])
def test_the_target_is_that_of_the_action_of_greatest_mean_among_the_legal_ones(double: bool) -> None:
    """Row by row; where the two networks differ, `double` lets the online one choose."""
    policy, _ = setting(v_min=-2.0, v_max=2.0, atoms=11)
    for parameter in policy.target.parameters():
        parameter.copy_(torch.randn(parameter.shape) * 0.5)
    legal = torch.rand(B, 4) < 0.6
    legal[:, 1] = True
    batch = replace(transitions(), next_legal=legal)
    found = estimates(policy, batch, double=double)
    with torch.no_grad():
        for row in range(B):
            following = batch.next_observation[row].reshape(1, -1)
            chooser = (policy.online if double else policy.target)(following)[0].exp()
            means = torch.where(legal[row], policy.support @ chooser, -torch.inf)
            chances = policy.target(following)[0, :, means.argmax()].exp()
            expected = project_distribution(chances[None], batch.reward[[row]], batch.discount[[row]], policy.support)[
                0
            ]
            torch.testing.assert_close(found.target[row], expected)
            here = policy.online(batch.observation[row].reshape(1, -1))[0, :, batch.action[row]]
            torch.testing.assert_close(found.log_chances[row].detach(), here)
    assert not found.target.requires_grad


@pytest.mark.parametrize("dueling", [False, True])
def test_chances_sum_to_one_and_means_lie_within_the_atoms(dueling: bool) -> None:
    policy, _ = setting(dueling=dueling, noisy=True)
    chances = policy.online(torch.randn(5, 3) * 9, torch.randn(5, policy.numbers)).exp()
    assert chances.shape == (5, 101, 4)
    torch.testing.assert_close(chances.sum(1), torch.ones(5, 4))
    assert policy.means(torch.randn(5, 3)).abs().max() < 100


@pytest.mark.parametrize(("dueling", "noisy"), [(False, True), (True, False)])
def test_estimates_come_closer_to_their_targets_with_weights_or_without(dueling: bool, noisy: bool) -> None:
    """Fixed targets (every transition ends): after many steps the chances are the rewards'."""
    policy, config = setting(dueling=dueling, noisy=noisy, v_min=-3.0, v_max=3.0)
    update = build_update(policy, config)
    assert isinstance(update, C51Update)
    batch = replace(transitions(), discount=torch.zeros(B), weight=torch.full((B,), 0.5))
    first = update.update(batch)
    for _ in range(200):
        last = update.update(batch)
    assert last["td_error"] < 0.2 * first["td_error"]
    assert last["value_mean"] == pytest.approx(batch.reward.mean().item(), abs=0.2)
    assert update.priorities is not None
    assert update.priorities.shape == (B,)
    assert (update.priorities >= 0).all()
    assert update.train_steps == 201


def test_importance_weights_scale_each_rows_loss() -> None:
    policy, config = setting()
    update, batch = build_update(policy, config), transitions()
    assert isinstance(update, C51Update)
    found = estimates(policy, batch, double=True)
    weight = torch.linspace(0, 1, B)
    expected = (divergence(found.log_chances, found.target) * weight).mean().item()
    assert update.update(replace(batch, weight=weight))["loss"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("algorithm", "kind", "facts"),
    [
        ({"v_min": 2.0, "v_max": 2.0}, "value_span_empty", {"low": 2, "high": 2, "key": "policy.algorithm.v_min"}),
        ({"atoms": 1}, "value_invalid", {"key": "policy.algorithm.atoms", "value": "1"}),
        ({"v_max": float("inf")}, "value_invalid", {"key": "policy.algorithm.v_max", "value": "inf"}),
    ],
    ids=["v_min", "atoms", "v_max"],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    algorithm: dict[str, object], kind: str, facts: dict[str, object]
) -> None:
    with raises(ConfigurationError, kind, **facts):
        parse_run({"policy": {"algorithm": {"name": "c51"} | algorithm}})


def test_weights_of_other_atoms_do_not_move_those_of_the_configuration() -> None:
    (policy, _), (other, _) = setting(v_min=-10.0, v_max=10.0), setting(v_min=-10.0, v_max=20.0)
    before = policy.support.clone()
    with pytest.raises(ValueError, match="from -10 to 20, those of the configuration from -10 to 10: set v_min"):
        policy.load_state_dict(other.state_dict())
    assert torch.equal(policy.support, before)


@pytest.mark.parametrize("rainbow", [False, True])
def test_e10_c51_learns_a_chain_whose_reward_lies_at_its_end(rainbow: bool, trial: Trial) -> None:
    algorithm = C51(
        gamma=chain.GAMMA,
        target_update_freq=10,
        target_update="hard",
        epsilon=0.0,
        epsilon_min=0.0,
        v_min=-0.5,
        v_max=1.5,
        dueling=rainbow,
        noisy=rainbow,
    )
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(32,)), learning_rate=trial.rate(0.005))
    policy = build(Interface.of(chain.AGENT), config, trial.seed)
    update = build_update(policy, config)
    assert isinstance(policy, C51Policy)
    assert isinstance(update, C51Update)
    rng = np.random.default_rng(trial.seed)
    for _ in range(trial.steps(500)):
        update.update(chain.steps(rng))
    with torch.no_grad():
        means = policy.means(policy.inputs(chain.PLACES))
    chain.judge(trial, means.numpy())
