"""The DQN update: its loss by hand, its targets among legal actions, its schedules, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import DQN, IQN, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from tests.trial import Trial
from tests.workers.algorithms import chain
from workers.algorithms.common.action_values import value_actions
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.dqn import DQNUpdate, huber
from workers.algorithms.iqn import IQNUpdate
from workers.algorithms.iqn import estimates as quantile_estimates
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.q_policy import DQNPolicy
from workers.policies.networks.quantile_network import IQNPolicy

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B, F = 6, 2


def updater(**algorithm: Any) -> DQNUpdate:
    config = PolicyConfig(
        algorithm=DQN(frames=F, **algorithm), model_config=Network(hidden=(16, 16)), learning_rate=0.01
    )
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, DQNPolicy)
    return DQNUpdate(policy, config)


def transitions(rows: int = B, seed: int = 0, masked: bool = False) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    legal = torch.rand(rows, 4, generator=g) < 0.5
    legal[:, 1] = True
    return TransitionBatch(
        observation=torch.randn(rows, F, 3, generator=g),
        action=torch.randint(0, 4, (rows,), generator=g),
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, 0.97),
        next_observation=torch.randn(rows, F, 3, generator=g),
        next_legal=legal if masked else None,
    )


def test_huber_by_hand() -> None:
    # errors 0.5 and -3: half the square, then 2 * (3 - 1)
    loss = huber(torch.tensor([1.0, 4.0]), torch.tensor([1.5, 1.0]), 2.0)
    assert loss.tolist() == [0.125, 4.0]
    assert huber(torch.tensor([1.0, 4.0]), torch.tensor([1.5, 1.0]), None).tolist() == [0.125, 4.5], "squares alone"


@pytest.mark.parametrize(
    ("double", "dueling", "masked"),
    [(True, True, True), (True, False, False), (False, True, False), (False, False, True)],
)
def test_e1_targets_are_the_formula_written_out_number_by_number(double: bool, dueling: bool, masked: bool) -> None:
    """E1: (double) Q targets over legal actions, against loops over numbers."""
    policy, batch = updater(dueling=dueling).policy, transitions(masked=masked)
    with torch.no_grad():
        for parameter in policy.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    found = value_actions(policy, batch, double=double)
    assert not found.target.requires_grad
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    for b in range(B):
        following = batch.next_observation[b]
        future, chooser = _values(w, "target", following), _values(w, "online" if double else "target", following)
        if batch.next_legal is not None:
            chooser[~batch.next_legal[b].numpy()] = -np.inf
        target = batch.reward[b].item() + batch.discount[b].item() * future[int(chooser.argmax())]
        assert found.target[b].item() == pytest.approx(target, abs=1e-5)
        taken = _values(w, "online", batch.observation[b])[int(batch.action[b])]
        assert found.value[b].item() == pytest.approx(taken, abs=1e-5)


def _values(w: dict[str, np.ndarray], name: str, observation: torch.Tensor) -> np.ndarray:
    x = observation.flatten().double().numpy()
    for layer in range(2):
        x = np.tanh(w[f"{name}.perceptron.layers.{layer}.weight"] @ x + w[f"{name}.perceptron.layers.{layer}.bias"])
    heads: np.ndarray = w[f"{name}.head.weight"] @ x + w[f"{name}.head.bias"]
    return heads.copy() if len(heads) == 4 else heads[0] + heads[1:] - heads[1:].mean()


@pytest.mark.parametrize("double", [True, False])
def test_iqn_targets_are_of_legal_actions_as_well(double: bool) -> None:
    """An illegal action of great value changes nothing; the same action, legal, does."""
    config = PolicyConfig(algorithm=IQN(frames=F), model_config=Network(hidden=(16,)))
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, IQNPolicy)
    batch, fractions = transitions(masked=True), torch.rand(5)
    legal = torch.ones(B, 4, dtype=torch.bool)
    legal[:, 3] = False

    def target(next_legal: torch.Tensor | None) -> torch.Tensor:
        now = replace(batch, next_legal=next_legal)
        return quantile_estimates(policy, now, fractions, fractions, double=double).target

    before = target(legal)
    for tower in (policy.online, policy.target):
        assert tower.head is not None
        tower.head.bias.data[3] += 100
    assert torch.equal(target(legal), before)
    alive = batch.discount > 0
    assert (target(None)[alive].mean(1) > before[alive].mean(1) + 50).all()


@pytest.mark.parametrize("algorithm", [DQN(epsilon=0.5), IQN(epsilon=0.5)])
def test_exploration_and_choice_keep_to_what_is_legal(algorithm: DQN | IQN) -> None:
    """Every legal action is tried equally often, an illegal one never, also where it is thought the best."""
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(16,)))
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, IQNPolicy | DQNPolicy)
    assert policy.online.head is not None
    policy.online.head.bias.data[3] = 100
    n = 6_000
    legal = np.tile([[True, False, True, False], [False, True, False, False]], (n, 1))
    rng = np.random.default_rng(0)
    observation = torch.from_numpy(rng.standard_normal((2 * n, 1, 3)).astype(np.float32))
    action = policy.act(observation, rng, legal=legal)["action"]
    assert legal[np.arange(2 * n), action].all()
    assert set(action[1::2]) == {1}
    greedy = policy.act(observation, rng, greedy=True, legal=legal)["action"]
    explored = action[::2] != greedy[::2]
    assert explored.mean() == pytest.approx(0.25, abs=0.02), "half of half: one of two legal ones is the greedy one"


def test_a_learning_rate_that_falls_is_nothing_at_the_end_of_the_run() -> None:
    for anneal, rates in ((True, [0.01, 0.0025, 0.0]), (False, [0.01] * 3)):
        update = updater(anneal_learning_rate=anneal, target_update_freq=100)
        for progress, rate in zip((0.0, 0.75, 1.0), rates, strict=True):
            metrics = update.update(transitions(), progress)
            assert metrics["learning_rate"] == pytest.approx(rate)
            assert (metrics["weight_delta"] > 0) == (rate > 0)


def test_importance_weights_scale_each_rows_loss() -> None:
    for update in (updater(), _iqn()):
        batch, weight = transitions(), torch.zeros(B)
        assert update.update(replace(batch, weight=weight))["loss"] == 0
        assert update.priorities is not None
        assert update.priorities.shape == (B,)


def _iqn() -> IQNUpdate:
    config = PolicyConfig(algorithm=IQN(frames=F), model_config=Network(hidden=(16,)))
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, IQNPolicy)
    return IQNUpdate(policy, config)


def test_e10_dqn_learns_a_chain_whose_reward_lies_at_its_end(trial: Trial) -> None:
    algorithm = DQN(gamma=chain.GAMMA, target_update_freq=10, target_update="hard", epsilon=0.0, epsilon_min=0.0)
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(32,)), learning_rate=trial.rate(0.003))
    policy = build(Interface.of(chain.AGENT), config, trial.seed)
    assert isinstance(policy, DQNPolicy)
    update, rng = DQNUpdate(policy, config), np.random.default_rng(trial.seed)
    for _ in range(trial.steps(600)):
        update.update(chain.steps(rng))
    with torch.no_grad():
        values = policy.online(policy.inputs(chain.PLACES))
    chain.judge(trial, values.numpy())
