"""The SAC update: its losses by hand and by numerical integration, what moves what, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from math import exp, log, pi, tanh
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.config.run import SAC, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from tests.trial import Trial
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.sac import SACUpdate, objective
from workers.policies.build import build, published_weights
from workers.policies.interface import Interface
from workers.policies.networks.soft_actor_critic import SoftActorCritic, sample_tanh_normal
from workers.policies.tensors.flat_weights import flatten_

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Box(shape=(2,), low=-2.0, high=4.0))
B, F, D = 6, 2, 2


def updater(agent: Agent = AGENT, frames: int = F, rate: float = 0.01, seed: int = 0, **algorithm: Any) -> SACUpdate:
    config = PolicyConfig(
        algorithm=SAC(frames=frames, **algorithm), model_config=Network(hidden=(16, 16)), learning_rate=rate
    )
    policy = build(Interface.of(agent), config, seed)
    assert isinstance(policy, SoftActorCritic)
    return SACUpdate(policy, config)


def transitions(rows: int = B, seed: int = 0) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    return TransitionBatch(
        observation=torch.randn(rows, F, 3, generator=g),
        action=torch.empty(rows, 0, dtype=torch.int64),
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, 0.97),
        next_observation=torch.randn(rows, F, 3, generator=g),
        amount=torch.rand(rows, D, generator=g) * 2 - 1,
    )


def part_of(found: Loss, part: str) -> Tensor:
    """The loss of the critics, the actor or the temperature."""
    critics, actor = found.metrics["critic_loss"], found.metrics["actor_loss"]
    return {"critics": critics, "actor": actor, "temperature": found.total - critics - actor}[part]


@pytest.mark.parametrize("mean", [[0.0, 0.0], [0.5, -3.0], [9.0, -30.0]])
def test_the_log_probability_is_the_formula_and_stays_finite_where_tanh_is_one(mean: list[float]) -> None:
    """log N(u) - sum log(1 - tanh(u)^2); far out, 1 - tanh(u)^2 is 4 e^(-2|u|), which float32 would call 0."""
    noise = torch.tensor([[0.3, -1.2]])
    _, chance = sample_tanh_normal(torch.tensor([mean]), torch.tensor([[-0.5, 0.1]]), noise)
    expected = 0.0
    for m, s, z in zip(mean, (exp(-0.5), exp(0.1)), (0.3, -1.2), strict=True):
        u = m + s * z
        slope = log(1 - tanh(u) ** 2) if abs(u) < 5 else log(4) - 2 * abs(u) - 2 * np.log1p(exp(-2 * abs(u)))
        expected += -0.5 * z * z - log(s) - 0.5 * log(2 * pi) - slope
    assert chance.item() == pytest.approx(expected, abs=1e-5 * max(1, abs(expected)))


def test_each_loss_is_the_formula_written_out_on_a_whole_batch() -> None:
    """Against numpy in float64, number by number, to 1e-5."""
    policy, batch = updater().policy, transitions()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    g = torch.Generator().manual_seed(2)
    noise, next_noise = torch.randn(2, B, D, generator=g)
    found = objective(policy, batch, noise, next_noise, -2.0)
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    temperature = exp(w["log_temperature"])
    here, there = (t.flatten(1).double().numpy() for t in (batch.observation, batch.next_observation))
    amount, chance = _drawn(w, there, next_noise)
    future = _critics(w, "targets", there, amount).min(0) - temperature * chance
    target = batch.reward.double().numpy() + batch.discount.double().numpy() * future
    assert batch.amount is not None
    errors = _critics(w, "critics", here, batch.amount.double().numpy()) - target
    assert found.priorities is not None
    assert found.metrics["critic_loss"].item() == pytest.approx(0.5 * (errors**2).sum(0).mean(), abs=1e-5)
    np.testing.assert_allclose(found.priorities, np.abs(errors).mean(0), atol=1e-5)
    amount, chance = _drawn(w, here, noise)
    values = _critics(w, "critics", here, amount)
    assert found.metrics["actor_loss"].item() == pytest.approx((temperature * chance - values.min(0)).mean(), abs=1e-5)
    assert part_of(found, "temperature").item() == pytest.approx(-temperature * (chance - 2).mean(), abs=1e-5)


def _drawn(w: dict[str, np.ndarray], x: np.ndarray, noise: Tensor) -> tuple[np.ndarray, np.ndarray]:
    for i in range(2):
        x = np.tanh(x @ w[f"actor.perceptron.layers.{i}.weight"].T + w[f"actor.perceptron.layers.{i}.bias"])
    y = x @ w["actor.head.weight"].T + w["actor.head.bias"]
    mean, log_std = y[:, :D], y[:, D:]
    z = noise.double().numpy()
    amount = np.tanh(mean + np.exp(log_std) * z)
    return amount, (-(z**2) / 2 - log_std - 0.5 * log(2 * pi) - np.log(1 - amount**2)).sum(1)


def _critics(w: dict[str, np.ndarray], name: str, x: np.ndarray, amount: np.ndarray) -> np.ndarray:
    found = []
    for twin in range(2):
        y = np.concatenate([x, amount], 1)
        for i in range(3):
            y = y @ w[f"{name}.weights.{i}"][twin] + w[f"{name}.biases.{i}"][twin]
            y = np.tanh(y) if i < 2 else y
        found.append(y[:, 0])
    return np.stack(found)


@pytest.mark.parametrize("part", ["critics", "actor", "temperature"])
def test_each_loss_moves_its_own_parameters_alone(part: str) -> None:
    policy, batch = updater().policy, transitions()
    noise = torch.randn(2, B, D)
    part_of(objective(policy, batch, noise[0], noise[1], -2.0), part).backward()
    mine = {"temperature": "log_temperature"}.get(part, part)
    for name, parameter in policy.named_parameters():
        moved = parameter.grad is not None and bool(parameter.grad.any())
        assert moved == name.startswith(mine), name


def test_gradients_are_clipped_part_by_part() -> None:
    """The critics' large ones do not drown the actor's."""
    update = updater()
    update.policy.log_temperature.data.fill_(-9.0)
    batch = transitions()
    batch.reward.mul_(1_000)
    noise = torch.randn(2, B, D)
    found = objective(update.policy, batch, noise[0], noise[1], -2.0)
    update.optimizer.backward(found.total + found.metrics["actor_loss"] * 99, 1.0)
    grads = list(update.policy.named_parameters())
    lengths = {
        part: sum(p.grad.square().sum().item() for n, p in grads if n.startswith(part) and p.grad is not None)
        for part in ("actor.", "critics.")
    }
    assert lengths["actor."] == pytest.approx(1, abs=1e-3)
    assert lengths["critics."] == pytest.approx(1, abs=1e-3)


def test_targets_follow_by_tau_and_the_temperature_by_its_loss() -> None:
    update = updater(tau=0.25)
    weights = flatten_(update.policy)
    before = weights.slice("targets.").clone()
    metrics = update.update(transitions())
    torch.testing.assert_close(weights.slice("targets."), before.lerp(weights.slice("critics."), 0.25))
    assert metrics["temperature"] < 1, "the entropy of a fresh policy is above its target"
    fixed = updater(learn_temperature=False, temperature=0.5)
    assert fixed.update(transitions())["temperature"] == pytest.approx(0.5)


def test_importance_weights_scale_each_rows_critic_loss() -> None:
    policy, batch = updater().policy, transitions()
    noise = torch.randn(2, B, D)
    columns = {name: getattr(batch, name) for name in ("observation", "action", "reward", "discount", "amount")}
    row = {name: column[2:3] for name, column in (*columns.items(), ("next_observation", batch.next_observation))}
    alone = objective(policy, TransitionBatch(**row), noise[0, 2:3], noise[1, 2:3], None)
    weight = torch.zeros(B)
    weight[2] = 1
    one = objective(policy, replace(batch, weight=weight), noise[0], noise[1], None)
    assert one.metrics["critic_loss"].item() == pytest.approx(alone.metrics["critic_loss"].item() / B, abs=1e-6)


def test_only_the_actor_is_published() -> None:
    """Its entries are a part of the flat weights, on the same memory."""
    first, second = updater(), updater()
    first.update(transitions())
    sent = published_weights(first.policy)
    assert {entry.name.split(".")[0] for entry in sent.entries} == {"actor"}
    assert sent.nbytes < flatten_(first.policy).nbytes / 2
    published_weights(second.policy).load(sent.bytes_view())
    observation = torch.randn(8, F, 3)
    here, there = (u.policy.act(observation, np.random.default_rng(0))["amount"] for u in (first, second))
    np.testing.assert_array_equal(here, there)
    assert not torch.equal(flatten_(first.policy).slice("critics."), flatten_(second.policy).slice("critics."))


def test_amounts_stay_within_bounds_and_greedy_ones_are_the_squashed_mean() -> None:
    policy = updater().policy
    policy.actor.head.bias.data[D:] = 2.0
    observation = torch.randn(500, F, 3)
    acted = policy.act(observation, np.random.default_rng(0))
    assert acted["action"].shape == (500, 0)
    assert np.abs(acted["amount"]).max() <= 1
    assert np.abs(acted["amount"]).max() > 0.99
    columns, world = Interface.of(AGENT).action_encoding.decode(acted["action"], acted["amount"])
    np.testing.assert_allclose(columns["action"], world, atol=1e-6)
    assert (world.min(), world.max()) >= (-2.0, 3.9)
    mean, log_std = (part.detach() for part in policy.actor(policy.inputs(observation)))
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(mean.shape, np.float32))
    np.testing.assert_allclose(acted["amount"], (mean + log_std.exp() * noise).tanh(), atol=1e-6)
    np.testing.assert_allclose(
        policy.act(observation, np.random.default_rng(0), greedy=True)["amount"], mean.tanh(), atol=1e-6
    )


def test_e10_sac_learns_to_say_what_it_sees(trial: Trial) -> None:
    """E10: the reward is how near the number said is to the one seen. It learns from random numbers: with its own, some
    seeds settle on one number before they know what others are worth."""
    agent = Agent(name="a", observation=Box(shape=(1,)), action=Box(shape=(1,), low=-1.0, high=1.0))
    update = updater(agent, 1, trial.rate(0.01), trial.seed, learn_temperature=False, temperature=0.01)
    rng = np.random.default_rng(trial.seed)
    for _ in range(trial.steps(400)):
        seen = rng.uniform(-0.8, 0.8, (64, 1, 1)).astype(np.float32)
        amount = rng.uniform(-1, 1, (64, 1)).astype(np.float32)
        reward = -2 * (amount - seen[:, 0])[:, 0] ** 2
        seen_, amount_, reward_ = (torch.from_numpy(array) for array in (seen, amount, reward))
        nothing = torch.empty(64, 0, dtype=torch.int64)
        update.update(TransitionBatch(seen_, nothing, reward_, torch.zeros(64), seen_, amount_))
    seen = np.linspace(-0.8, 0.8, 9, dtype=np.float32).reshape(9, 1, 1)
    said = update.policy.act(torch.from_numpy(seen), rng, greedy=True)["amount"]
    trial.errs_less(np.abs(said[:, 0] - seen[:, 0, 0]).mean(), 0.15)


CHOOSER = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4), action_mask=True)


def choices(masked: bool, rows: int = B) -> TransitionBatch:
    """Of `CHOOSER`; the action of each row is legal."""
    g = torch.Generator().manual_seed(4)
    action = torch.randint(0, 4, (rows,), generator=g)
    legal, following = torch.rand(2, rows, 4, generator=g) < 0.5
    legal[torch.arange(rows), action] = following[:, 2] = True
    masks = {"legal": legal, "next_legal": following} if masked else {}
    return replace(transitions(rows), action=action, amount=None, **masks)


@pytest.mark.parametrize("masked", [False, True])
def test_each_loss_of_choices_is_the_formula_written_out(masked: bool) -> None:
    """Christodoulou 2019, equations 10 to 12, row by row in float64."""
    update = updater(CHOOSER, temperature=0.3, target_entropy=0.5)
    policy, batch = update.policy, choices(masked)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    found = update.loss(policy, batch)
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    temperature, actor, adapt, errors = exp(w["log_temperature"]), [], [], []
    for i in range(B):
        sides = []
        for part, seen, legal in (
            ("critics", batch.observation, batch.legal),
            ("targets", batch.next_observation, batch.next_legal),
        ):
            x = seen[i].flatten().double().numpy()
            may = np.ones(4, bool) if legal is None else legal[i].numpy()
            logits = np.where(may, _logits(w, x), -np.inf)
            chances = np.exp(logits - logits.max())
            chances /= chances.sum()
            with np.errstate(divide="ignore"):
                surprise = np.where(may, np.log(chances), 0.0)
            sides.append((_twins(w, part, x), chances, surprise, may.sum()))
        (values, chances, surprise, count), (future, later, unseen, _) = sides
        target = float(batch.reward[i]) + float(batch.discount[i]) * float(
            (later * (future.min(0) - temperature * unseen)).sum()
        )
        errors.append(values[:, int(batch.action[i])] - target)
        actor.append((chances * (temperature * surprise - values.min(0))).sum())
        adapt.append(-temperature * ((chances * surprise).sum() + 0.5 * log(count)))
    assert found.metrics["critic_loss"].item() == pytest.approx(0.5 * np.square(errors).sum(1).mean(), abs=1e-5)
    assert found.metrics["actor_loss"].item() == pytest.approx(np.mean(actor), abs=1e-5)
    assert part_of(found, "temperature").item() == pytest.approx(np.mean(adapt), abs=1e-5)


def _logits(w: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    for i in range(2):
        x = np.tanh(w[f"actor.perceptron.layers.{i}.weight"] @ x + w[f"actor.perceptron.layers.{i}.bias"])
    found: np.ndarray = w["actor.head.weight"] @ x + w["actor.head.bias"]
    return found


def _twins(w: dict[str, np.ndarray], name: str, x: np.ndarray) -> np.ndarray:
    found = []
    for twin in range(2):
        y = x
        for i in range(3):
            y = y @ w[f"{name}.weights.{i}"][twin] + w[f"{name}.biases.{i}"][twin, 0]
            y = np.tanh(y) if i < 2 else y
        found.append(y)
    return np.stack(found)


@pytest.mark.parametrize("part", ["critics", "actor", "temperature"])
def test_each_loss_of_choices_moves_its_own_parameters_alone(part: str) -> None:
    update = updater(CHOOSER)
    part_of(update.loss(update.policy, choices(masked=True)), part).backward()
    mine = {"temperature": "log_temperature"}.get(part, part)
    for name, parameter in update.policy.named_parameters():
        moved = parameter.grad is not None and bool(parameter.grad.any())
        assert moved == name.startswith(mine), name


def test_choices_come_as_often_as_their_chances_say_and_are_legal() -> None:
    policy = updater(CHOOSER).policy
    policy.actor.head.bias.data[:] = torch.tensor([0.0, 5.0, 1.0, -1.0])
    seen, legal = torch.randn(1, F, 3).expand(8_000, F, 3), np.tile([True, False, True, True], (8_000, 1))
    acted = policy.act(seen, np.random.default_rng(0), legal=legal)
    assert acted.keys() == {"action"}
    logits = policy.actor.logits(policy.inputs(seen[:1]))[0].detach().numpy()[[0, 2, 3]]
    chances = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose([(acted["action"] == one).mean() for one in (0, 2, 3)], chances, atol=0.03)
    assert set(policy.act(seen[:3], np.random.default_rng(0), greedy=True, legal=legal[:3])["action"]) == {2}


def test_choices_learn_which_of_two_sides_it_sees() -> None:
    agent = Agent(name="a", observation=Box(shape=(1,)), action=Discrete(n=2))
    update = updater(agent, 1, 0.01, target_entropy=0.1)
    rng = np.random.default_rng(0)
    for _ in range(300):
        seen = rng.uniform(-1, 1, (64, 1, 1)).astype(np.float32)
        action = rng.integers(0, 2, 64)
        reward = (action == (seen[:, 0, 0] > 0)).astype(np.float32)
        columns = (torch.from_numpy(one) for one in (seen, action, reward))
        seen_, action_, reward_ = columns
        update.update(TransitionBatch(seen_, action_, reward_, torch.zeros(64), seen_))
    seen = np.linspace(-1, 1, 20, dtype=np.float32).reshape(20, 1, 1)
    said = update.policy.act(torch.from_numpy(seen), rng, greedy=True)["action"]
    assert ((said == 1) == (seen[:, 0, 0] > 0)).mean() >= 0.9
