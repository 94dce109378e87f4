"""The IQN update: its loss, its schedules, what it refuses, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import IQN, Network, PolicyConfig
from protocol.errors import TrainingFault
from protocol.spaces import Agent, Box, Discrete
from tests.faults import raises
from tests.trial import Trial
from tests.workers.algorithms import chain
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.iqn import IQNUpdate, estimates, quantile_huber
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.tensors.flat_weights import flatten_

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B, F = 6, 2


def updater(**algorithm: Any) -> IQNUpdate:
    network = Network(hidden=(16, 16))
    config = PolicyConfig(algorithm=IQN(frames=F, **algorithm), model_config=network, learning_rate=0.01)
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, IQNPolicy)
    return IQNUpdate(policy, config)


def transitions(rows: int = B, seed: int = 0) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    return TransitionBatch(
        observation=torch.randn(rows, F, 3, generator=g),
        action=torch.randint(0, 4, (rows,), generator=g),
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, 0.97),
        next_observation=torch.randn(rows, F, 3, generator=g),
    )


@pytest.mark.parametrize(("double", "dueling", "kappa"), [(True, True, 1.0), (True, False, 0.3), (False, True, 0.3)])
def test_e1_loss_is_the_formula_written_out_number_by_number(double: bool, dueling: bool, kappa: float) -> None:
    """E1: quantile Huber loss with (double) Q targets, which have no gradient, against loops over numbers."""
    policy, batch = updater(dueling=dueling).policy, transitions()
    with torch.no_grad():
        for parameter in policy.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    fractions, target_fractions = torch.rand(5), torch.rand(5)
    found = estimates(policy, batch, fractions, target_fractions, double=double)
    assert (found.quantiles.requires_grad, found.target.requires_grad) == (True, False)
    loss = quantile_huber(found.quantiles, found.target, fractions, kappa)
    for b in range(B):
        expected = written_out(policy, batch, b, fractions.tolist(), target_fractions.tolist(), double, kappa)
        assert loss[b].item() == pytest.approx(expected, abs=1e-5)


@torch.no_grad()
def written_out(
    policy: IQNPolicy,
    batch: TransitionBatch,
    b: int,
    fractions: list[float],
    target_fractions: list[float],
    double: bool,
    kappa: float,
) -> float:
    def quantile(name: str, observation: torch.Tensor, fraction: float) -> np.ndarray:
        w = {key: t.double().numpy() for key, t in policy.state_dict().items() if key.startswith(name)}
        x = observation.flatten().double().numpy()
        for layer in range(2):
            x = np.tanh(w[f"{name}.perceptron.layers.{layer}.weight"] @ x + w[f"{name}.perceptron.layers.{layer}.bias"])
        cosines = np.cos(np.pi * np.arange(64) * fraction)
        phi = np.maximum(w[f"{name}.embedding.weight"] @ cosines + w[f"{name}.embedding.bias"], 0)
        heads = w[f"{name}.head.weight"] @ (x * phi) + w[f"{name}.head.bias"]
        return heads if len(heads) == 4 else heads[0] + heads[1:] - heads[1:].mean()

    following = batch.next_observation[b]
    chooser = "online" if double else "target"
    best = int(np.mean([quantile(chooser, following, f) for f in policy.midpoints.tolist()], 0).argmax())
    total = 0.0
    for fraction in fractions:
        taken = quantile("online", batch.observation[b], fraction)[int(batch.action[b])]
        for target_fraction in target_fractions:
            future = quantile("target", following, target_fraction)[best]
            error = batch.reward[b].item() + batch.discount[b].item() * future - taken
            huber = 0.5 * error**2 if abs(error) <= kappa else kappa * (abs(error) - 0.5 * kappa)
            total += abs(fraction - (error < 0)) * huber / kappa / len(target_fractions)
    return total


def test_fractions_cover_the_unit_interval_evenly() -> None:
    update = updater(quantiles=4)
    given = transitions()
    drawn = torch.stack([fractions for _ in range(500) if (fractions := update.draw(given).fractions) is not None])
    assert drawn.shape == (500, 2, 4)
    assert ((drawn * 4).floor() == torch.arange(4.0)).all()
    torch.testing.assert_close(drawn.mean((0, 1)), (torch.arange(4.0) + 0.5) / 4, rtol=0, atol=0.01)
    assert (drawn[:, 0] != drawn[:, 1]).all()


@pytest.mark.parametrize("kind", ["soft", "hard"])
def test_e3_target_moves_once_every_target_update_freq_steps(kind: str) -> None:
    """E3: never between, never twice; soft by tau, hard all the way."""
    update = updater(target_update=kind, target_update_freq=4, tau=0.1)
    weights = flatten_(update.policy)
    for step in range(1, 13):
        before = weights.slice("target.").clone()
        update.update(transitions(seed=step))
        online, target = weights.slice("online."), weights.slice("target.")
        if step % 4:
            assert torch.equal(target, before)
        else:
            expected = before.lerp(online, 0.1 if kind == "soft" else 1.0)
            torch.testing.assert_close(target, expected, rtol=0, atol=1e-7)
            assert not torch.equal(target, before)


def test_e4_epsilon_follows_its_closed_form_at_every_step() -> None:
    """E4: epsilon0 * (1 - decay) ** (steps // freq), never below the least."""
    update = updater(epsilon=0.5, epsilon_decay=0.2, epsilon_decay_freq=3, epsilon_min=0.1)
    for step in range(1, 31):
        metrics = update.update(transitions(seed=step))
        expected = max(0.5 * 0.8 ** (step // 3), 0.1)
        assert update.policy.epsilon.item() == pytest.approx(expected, rel=1e-12)
        assert metrics["epsilon"] == pytest.approx(expected, rel=1e-6)


def test_epsilon_falls_along_a_line_by_the_part_of_the_run_that_is_over() -> None:
    """However many updates there were: epsilon0 + (least - epsilon0) * progress / fraction, then the least."""
    update = updater(epsilon=0.9, epsilon_min=0.1, exploration_fraction=0.4)
    for progress in (0.0, 0.1, 0.1, 0.3, 0.4, 0.41, 1.0):
        metrics = update.update(transitions(seed=0), progress)
        expected = max(0.9 - 0.8 * progress / 0.4, 0.1)
        assert update.policy.epsilon.item() == pytest.approx(expected, rel=1e-12)
        assert metrics["epsilon"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("decay", [None, 0.5])
def test_an_epsilon_below_the_least_does_not_grow(decay: float | None) -> None:
    update = updater(epsilon=0.0, epsilon_decay=decay, epsilon_decay_freq=1)
    update.update(transitions(seed=0), 0.5)
    assert update.policy.epsilon.item() == 0


@pytest.mark.parametrize("field", ["observation", "next_observation"])
def test_e5_numpy_arrays_are_refused_in_one_sentence(field: str) -> None:
    """E5: the sentence names the field and the remedy."""
    batch = transitions()
    batch = replace(batch, **{field: getattr(batch, field).numpy()})
    with raises(TrainingFault, "batch_not_tensors", field=field, value="numpy.ndarray"):
        updater().update(batch)


def test_e6_an_empty_batch_gives_zero_loss_and_no_step() -> None:
    """E6: nothing moves and nothing is NaN."""
    update = updater()
    kept = flatten_(update.policy).bytes_view().copy()
    assert update.update(transitions(0)) == {"loss": 0.0, "rows": 0.0}
    assert update.train_steps == 0
    np.testing.assert_array_equal(flatten_(update.policy).bytes_view(), kept)


def test_e2_the_gradient_is_cut_to_its_greatest_norm() -> None:
    """E2: the gradient that moves the parameters is never longer than max_grad_norm."""
    update, batch = updater(), transitions()
    loss = estimates(update.policy, batch, torch.rand(5), torch.rand(5), double=True).quantiles.sum() * 100
    norm = update.optimizer.backward(loss, 1.0)
    assert norm > 10
    assert torch.linalg.vector_norm(update.optimizer.gradient).item() == pytest.approx(1, abs=1e-4)


def test_a_reward_that_is_not_finite_raises_before_the_parameters_change() -> None:
    update, batch = updater(), transitions()
    kept = flatten_(update.policy).bytes_view().copy()
    batch.reward[1] = torch.inf
    with raises(TrainingFault, "update_not_finite"):
        update.update(batch)
    np.testing.assert_array_equal(flatten_(update.policy).bytes_view(), kept)


def test_e10_iqn_learns_a_chain_whose_reward_lies_at_its_end(trial: Trial) -> None:
    algorithm = IQN(gamma=chain.GAMMA, target_update_freq=10, target_update="hard", epsilon=0.0, epsilon_min=0.0)
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(32,)), learning_rate=trial.rate(0.005))
    policy = build(Interface.of(chain.AGENT), config, trial.seed)
    assert isinstance(policy, IQNPolicy)
    update, rng = IQNUpdate(policy, config), np.random.default_rng(trial.seed)
    for _ in range(trial.steps(400)):
        update.update(chain.steps(rng))
    with torch.no_grad():
        means = policy.online.means(policy.online.perceptron(policy.inputs(chain.PLACES)), policy.midpoints)
    chain.judge(trial, means.numpy())
