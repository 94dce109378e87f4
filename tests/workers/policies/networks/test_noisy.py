"""Noisy layers: the formula, what they learn, and that heads use them as the paper says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from protocol.config.run import C51, DQN, IQN, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from tests.trial import Trial
from workers.algorithms.build import build_update
from workers.algorithms.common.action_values import value_actions
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.dqn import DQNUpdate
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.layers import NoisyLinear
from workers.policies.networks.q_policy import DQNPolicy
from workers.policies.networks.quantile_network import IQNPolicy

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B = 5


def policy_of(algorithm: DQN | IQN, rate: float = 0.01, seed: int = 0) -> tuple[IQNPolicy | DQNPolicy, PolicyConfig]:
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(6,)), learning_rate=rate)
    policy = build(Interface.of(AGENT), config, seed)
    assert isinstance(policy, IQNPolicy | DQNPolicy)
    return policy, config


def drawn_weights(layer: NoisyLinear, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one row: mu + sigma * f(z_out) f(z_in)^T, number by number."""
    factors = [float(np.sign(z) * np.sqrt(abs(z))) for z in noise.tolist()]
    weight, bias = layer.weight.detach().clone(), layer.bias.detach().clone()
    for out in range(layer.out_features):
        leaving = factors[layer.in_features + out]
        bias[out] += layer.bias_scale[out].item() * leaving
        for into in range(layer.in_features):
            weight[out, into] += layer.weight_scale[out, into].item() * leaving * factors[into]
    return weight, bias


def test_a_noisy_layer_is_the_formula_row_by_row_and_plain_at_its_means() -> None:
    layer, x, noise = NoisyLinear(3, 2), torch.randn(B, 3), torch.randn(B, 5)
    assert layer.weight_scale.unique().tolist() == layer.bias_scale.unique().tolist() == [pytest.approx(0.5 / 3**0.5)]
    found = layer.noisy(x, noise)
    for row in range(B):
        weight, bias = drawn_weights(layer, noise[row])
        torch.testing.assert_close(found[row], weight @ x[row] + bias, rtol=0, atol=1e-5)
    torch.testing.assert_close(layer(x), x @ layer.weight.T + layer.bias)


@pytest.mark.parametrize("dueling", [True, False])
def test_quantiles_of_a_noisy_head_are_those_of_a_plain_one_with_the_weights_drawn(dueling: bool) -> None:
    policy, _ = policy_of(IQN(noisy=True, dueling=dueling))
    assert isinstance(policy, IQNPolicy)
    tower, psi, fractions = policy.online, torch.randn(B, 6), torch.rand(7)
    noise = torch.randn(B, policy.numbers)
    head = tower.head
    assert isinstance(head, NoisyLinear)
    quantiles, means = tower.quantiles(psi, fractions, noise), tower.means(psi, fractions, noise)
    kept = head.weight.detach().clone(), head.bias.detach().clone()
    for row in range(B):
        weight, bias = drawn_weights(head, noise[row])
        head.weight.data.copy_(weight)
        head.bias.data.copy_(bias)
        expected = tower.quantiles(psi[row : row + 1], fractions)[0]
        torch.testing.assert_close(quantiles[row], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(means[row], expected.mean(0), rtol=0, atol=1e-5)
        head.weight.data.copy_(kept[0])
        head.bias.data.copy_(kept[1])


@pytest.mark.parametrize("algorithm", [DQN(noisy=True, epsilon=0.0), IQN(noisy=True, epsilon=0.0)])
def test_noise_makes_the_policy_explore_and_shrinks_where_the_best_is_certain(
    algorithm: DQN | IQN, trial: Trial
) -> None:
    policy, config = policy_of(algorithm, trial.rate(0.01), trial.seed)
    update, rng = build_update(policy, config), np.random.default_rng(trial.seed)
    seen = torch.ones(512, 1, 3)
    assert len(set(policy.act(seen, rng)["action"])) > 1
    assert len(set(policy.act(seen, rng, greedy=True)["action"])) == 1
    for _ in range(trial.steps(40)):
        action = torch.from_numpy(rng.integers(0, 4, 64))
        reward = (action == 2).float() * 3
        update.update(TransitionBatch(seen[:64], action, reward, torch.zeros(64), seen[:64]))  # type: ignore[arg-type]
    trial.reaches((policy.act(seen, rng)["action"] == 2).mean(), 0.97)


def test_three_draws_of_one_update_are_independent_and_a_plain_head_takes_none() -> None:
    def drawn(algorithm: DQN) -> TransitionBatch:
        config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(6,)))
        update = build_update(build(Interface.of(AGENT), config, 0), config)
        assert isinstance(update, DQNUpdate)
        return update.draw(transitions())

    noise = drawn(DQN(noisy=True)).noise
    assert noise is not None
    assert noise.shape == (3, B, 6 + 4)
    assert not torch.equal(noise[0], noise[1])
    assert drawn(DQN()).noises == (None, None, None)


@pytest.mark.parametrize("algorithm", [DQN(noisy=True), IQN(noisy=True), C51(noisy=True)], ids=lambda one: one.name)
def test_an_update_learns_how_much_noise_there_is(algorithm: DQN | IQN | C51) -> None:
    """Scales have a gradient by the noise of the estimate alone."""
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(6,)), learning_rate=0.01)
    policy = build(Interface.of(AGENT), config, 0)
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items() if name.endswith("_scale")}
    build_update(policy, config).update(transitions())  # type: ignore[arg-type]
    for name, tensor in policy.state_dict().items():
        if name in before:
            assert torch.equal(tensor, before[name]) == name.startswith("target."), name
    assert len(before) == 4


def test_estimate_target_and_choice_each_have_noise_of_their_own() -> None:
    policy, _ = policy_of(DQN(noisy=True))
    assert isinstance(policy, DQNPolicy)
    batch, noise = transitions(), torch.randn(B, policy.numbers) * 50
    none = torch.zeros_like(noise)  # the means of a noisy head
    plain, here, there, choice = (
        value_actions(policy, replace(batch, noise=torch.stack(one)), double=True)
        for one in ((none, none, none), (noise, none, none), (none, noise, none), (none, none, noise))
    )
    assert (here.value != plain.value).all()
    assert (there.target != plain.target).all()
    assert torch.equal(here.target, plain.target)
    assert torch.equal(there.value, plain.value)
    assert torch.equal(choice.value, plain.value)
    with torch.no_grad():
        future = policy.target(policy.inputs(batch.next_observation))
        chosen = policy.online(policy.inputs(batch.next_observation), noise).argmax(1, keepdim=True)
    torch.testing.assert_close(choice.target, batch.reward + batch.discount * future.gather(1, chosen)[:, 0])
    assert (choice.target != plain.target).any()


def transitions() -> TransitionBatch:
    g = torch.Generator().manual_seed(0)
    seen, after = torch.randn(2, B, 1, 3, generator=g)
    action = torch.randint(4, (B,), generator=g)
    return TransitionBatch(seen, action, torch.randn(B, generator=g), torch.full((B,), 0.9), after)
