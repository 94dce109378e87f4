"""Policies act: shapes, distributions, units and reproducibility."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import IQN, PPO, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from workers.policies.build import build
from workers.policies.distributions import Heads
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.tensors.flat_weights import flatten_

AGENT = Agent(name="a", observation=Box(shape=(3, 2), dtype="uint8"), action=Discrete(n=4))


def actor_critic(**changes: Any) -> ActorCritic:
    policy = build(Interface.of(AGENT), PolicyConfig(algorithm=PPO(**changes)), 3)
    assert isinstance(policy, ActorCritic)
    return policy


def quantile(**changes: Any) -> IQNPolicy:
    policy = build(Interface.of(AGENT), PolicyConfig(algorithm=IQN(**changes)), 3)
    assert isinstance(policy, IQNPolicy)
    return policy


def observations(rows: int, *frames: int) -> torch.Tensor:
    return torch.randint(0, 255, (rows, *frames, 3, 2), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("algorithm", [PPO(), IQN()])
def test_initial_weights_depend_on_the_seed_alone(algorithm: PPO | IQN) -> None:
    config = PolicyConfig(algorithm=algorithm)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = flatten_(build(Interface.of(AGENT), config, 1)).bytes_view()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    np.testing.assert_array_equal(first, flatten_(build(Interface.of(AGENT), config, 1)).bytes_view())
    assert not np.array_equal(first, flatten_(build(Interface.of(AGENT), config, 2)).bytes_view())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float64])
def test_any_observation_dtype_acts(dtype: torch.dtype) -> None:
    acted = actor_critic().act(torch.ones(5, 3, 2, dtype=dtype), np.random.default_rng(0))
    assert {name: (array.dtype.str, array.shape) for name, array in acted.items()} == {
        "action": ("<i8", (5,)),
        "log_probability": ("<f4", (5,)),
        "value": ("<f4", (5,)),
    }


def test_what_was_acted_stays_after_the_next_act() -> None:
    policy, noise = actor_critic(), np.random.default_rng(0)
    acted = policy.act(observations(5), noise)
    copies = {name: array.copy() for name, array in acted.items()}
    policy.act(observations(5) // 2, noise)
    assert all(np.array_equal(acted[name], copies[name]) for name in acted)


@pytest.mark.parametrize(("spread", "mean"), [(3.0, 20.0), (0.01, 0.1), (0.0, 900.0)])
def test_acting_agrees_with_what_the_learner_computes(spread: float, mean: float) -> None:
    policy = actor_critic(normalize_observation=True)
    assert policy.observations is not None
    policy.observations.update(torch.randn(100, 6) * 50 + 100)
    policy.update_returns(torch.randn(50) * spread + mean)
    acted = policy.act(observations(64), np.random.default_rng(0))
    logits, values = policy(policy.inputs(observations(64)))
    expected = logits.log_softmax(0)[torch.from_numpy(acted["action"]), torch.arange(64)]
    np.testing.assert_allclose(acted["log_probability"], expected.detach(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(acted["value"], policy.denormalize(values).detach(), rtol=1e-5)


def test_an_impossible_action_is_never_drawn_and_huge_logits_do_not_overflow() -> None:
    logits = np.array([-np.inf, 1e4, 1e4, -np.inf], np.float32)[:, None].repeat(10_000, 1)
    action, log_probability = Heads((len(logits),)).sample(logits, None, np.random.default_rng(0)).values()
    assert set(action) == {1, 2}
    np.testing.assert_allclose(log_probability, np.log(0.5), atol=1e-6)


def test_greedy_takes_the_likeliest_action_and_no_noise() -> None:
    policy = actor_critic()
    with torch.no_grad():
        policy.get_parameter("policy_bias")[2] = 5.0
    noise = np.random.default_rng(0)
    before = noise.bit_generator.state
    assert set(policy.act(observations(20), noise, greedy=True)["action"]) == {2}
    assert noise.bit_generator.state == before


def test_new_return_statistics_leave_every_value_as_it_was() -> None:
    policy = actor_critic()
    before = policy.act(observations(20), np.random.default_rng(0))["value"]
    policy.update_returns(torch.randn(50) * 30 + 200)
    after = policy.act(observations(20), np.random.default_rng(0))["value"]
    assert policy.returns.std > 10
    np.testing.assert_allclose(after, before, atol=1e-3)


def test_rare_rewards_are_not_stretched() -> None:
    """However little returns vary, an error of 1 is no more than 1 to the value head."""
    policy = actor_critic()
    for _ in range(20):
        policy.update_returns(torch.zeros(1000))
    np.testing.assert_allclose(policy.normalize(torch.tensor([0.0, 0.9])), [0.0, 0.9], atol=1e-6)
    policy.update_returns(torch.arange(1000.0))
    assert policy.normalize(torch.tensor(900.0)) < 9


def test_epsilon_is_the_share_of_random_actions() -> None:
    policy = quantile(epsilon=0.4)
    x = observations(1, 1).expand(40_000, 1, 3, 2)
    greedy = policy.act(x, np.random.default_rng(0), greedy=True)["action"]
    acted = policy.act(x, np.random.default_rng(0))["action"]
    assert np.mean(acted != greedy) == pytest.approx(0.3, abs=0.01)


def test_a_wrong_number_of_frames_is_told() -> None:
    with pytest.raises(ValueError, match="stacks 4 frames but was given 2"):
        quantile(frames=4).act(observations(5, 2), np.random.default_rng(0))


@pytest.mark.parametrize("dueling", [False, True])
def test_the_mean_over_fractions_is_the_mean_of_the_quantiles(dueling: bool) -> None:
    tower = quantile(dueling=dueling).online
    psi, fractions = torch.randn(7, 64), torch.rand(9)
    quantiles = tower.quantiles(psi, fractions)
    assert quantiles.shape == (7, 9, 4)
    torch.testing.assert_close(tower.means(psi, fractions), quantiles.mean(1), rtol=0, atol=1e-5)
