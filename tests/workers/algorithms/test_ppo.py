"""The PPO update: what it learns from, what it must never learn from, and that it learns."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.config.run import PPO, Network, PolicyConfig
from protocol.errors import TrainingFault
from protocol.spaces import Agent, Box, Discrete
from tests.faults import raises
from tests.trial import Trial
from workers.algorithms.build import build_update
from workers.algorithms.common.advantages import estimate_advantages, row_weights
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.time_major import to_time_major
from workers.algorithms.ppo import PPOUpdate, objective
from workers.algorithms.stream import evaluate
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.tensors.flat_weights import flatten_
from workers.policies.tensors.scratch import ScratchBuffers

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B, T = 8, 16


def setting(seed: int = 0, **algorithm: Any) -> tuple[ActorCritic, PolicyConfig]:
    network = Network(hidden=(16, 16))
    config = PolicyConfig(algorithm=PPO(**algorithm), model_config=network, learning_rate=0.01)
    policy = build(Interface.of(AGENT), config, seed)
    assert isinstance(policy, ActorCritic)
    return policy, config


def updater(seed: int = 0, **algorithm: Any) -> PPOUpdate:
    return PPOUpdate(*setting(seed, **algorithm))


def experience(policy: ActorCritic | CentralActorCritic, seed: int = 0) -> SegmentBatch:
    """Segments that `policy` itself acted in, with ends of both kinds."""
    g, noise = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    observation = torch.randn(B, T + 1, 3, generator=g)
    acted = policy.act(observation[:, :-1].reshape(-1, 3), noise)
    chance = torch.rand(B, T, generator=g)
    terminated, truncated = chance < 0.1, chance > 0.9
    final_row = torch.full((B, T), -1)
    for b in range(B):
        rows = truncated[b].nonzero()[:, 0]
        final_row[b, : len(rows)] = rows
    return SegmentBatch(
        observation=observation,
        action=torch.from_numpy(acted["action"]).view(B, T),
        reward=torch.randn(B, T, generator=g),
        terminated=terminated,
        truncated=truncated,
        log_probability=torch.from_numpy(acted["log_probability"]).view(B, T),
        value=torch.from_numpy(acted["value"]).view(B, T) if "value" in acted else None,
        valid=torch.full((B,), T),
        final_observation=torch.randn(B, T, 3, generator=g),
        final_row=final_row,
    )


def test_rows_of_unchanged_weights_have_ratio_one() -> None:
    update = updater(minibatches=2, normalize_observation=True)
    for seed in range(3):
        batch = to_time_major(experience(update.policy, seed)).minibatch(torch.arange(B), ScratchBuffers())
        metrics = objective(update.policy, batch, update.algorithm).metrics
        assert metrics["ratio_mean"].item() == pytest.approx(1, abs=1e-5)
        assert metrics["approx_kl"].item() == pytest.approx(0, abs=1e-5)
        update.update(experience(update.policy, seed))


@pytest.mark.parametrize("normalize", [False, True])
def test_the_objective_is_the_formula_written_out_row_by_row(normalize: bool) -> None:
    """Clipped surrogate, clipped value error, entropy and their sum of one minibatch against a loop over numbers; the
    weights that acted were others, in what they chose and in what they said it was worth."""
    policy, config = setting(normalize_advantage=normalize, value_clip=0.2, clip=0.1, entropy_coefficient=0.3)
    assert isinstance(config.algorithm, PPO)
    segments = experience(policy)
    assert segments.value is not None
    segments = replace(
        segments,
        log_probability=segments.log_probability + torch.randn(B, T) * 0.3,
        value=segments.value + torch.randn(B, T) * 2,
    )
    policy.update_returns(torch.randn(100) * 3 + 1)
    expected = written_out(policy, segments, config.algorithm)
    batch = to_time_major(segments).minibatch(torch.randperm(B), ScratchBuffers())
    loss = objective(policy, batch, config.algorithm)
    found = {"loss": loss.total, **loss.metrics}
    for name, number in expected.items():
        assert found[name].item() == pytest.approx(number, abs=1e-5), name


@torch.no_grad()
def written_out(policy: ActorCritic | CentralActorCritic, s: SegmentBatch, config: PPO) -> dict[str, float]:
    sums, found = {"policy_loss": 0.0, "value_loss": 0.0, "entropy": 0.0}, []
    std, mean = policy.returns.std.item(), policy.returns.mean.item()

    def look(b: int, row: int, before: str = "") -> tuple[list[float], float]:
        more = getattr(s, f"{before}privileged")
        besides = () if more is None else (more[b, row][None],)
        logits, value = policy(policy.inputs(getattr(s, f"{before}observation")[b, row][None]), *besides)
        return logits.log_softmax(0)[:, 0].tolist(), value.item()

    for b in range(B):
        ahead = 0.0
        for t in reversed(range(T)):
            log_policy, head = look(b, t)
            value, following = head * std + mean, look(b, t + 1)[1] * std + mean
            going = 1.0
            if s.truncated[b, t]:
                entry = s.final_row[b].tolist().index(t)
                following, going = look(b, entry, "final_")[1] * std + mean, 0.0
            if s.terminated[b, t]:
                following = going = 0.0
            ratio = np.exp(log_policy[int(s.action[b, t])] - s.log_probability[b, t].item())
            difference = s.reward[b, t].item() + config.discount * following - value
            carried = config.discount * config.gae_lambda * going * ahead
            advantage = difference + carried
            ahead = min(1.0, ratio) * (difference + carried)
            target = (ahead + value - mean) / std
            before = head if s.value is None else (s.value[b, t].item() - mean) / std
            kept = before + float(np.clip(head - before, -0.2, 0.2))
            found.append((ratio, advantage))
            sums["value_loss"] += 0.5 * max((head - target) ** 2, (kept - target) ** 2)
            sums["entropy"] -= sum(np.exp(p) * p for p in log_policy)
    ratios, advantages = np.array(found).T
    if config.normalize_advantage:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    sums["policy_loss"] = -np.minimum(ratios * advantages, ratios.clip(0.9, 1.1) * advantages).sum()
    means = {name: float(total) / (B * T) for name, total in sums.items()}
    value, entropy = config.value_coefficient * means["value_loss"], config.entropy_weight * means["entropy"]
    return {**means, "loss": means["policy_loss"] + value - entropy}


def test_steps_are_made_on_rows_in_a_new_order_which_are_judged_once_before_the_first() -> None:
    """Schulman et al. 2017, algorithm 1, with torch's own Adam: rows of all segments are shuffled in each epoch."""
    algorithm = PPO(minibatches=3, epochs=2, value_clip=0.2, entropy_coefficient=0.05, normalize_return=False)
    update, twin = updater(**algorithm.model_dump()), updater(**algorithm.model_dump()).policy
    segments = experience(twin)
    segments = zeroed(poisoned(segments, torch.arange(B) + T - B + 1))
    update.update(segments)

    batch = to_time_major(segments)
    every = batch.minibatch(torch.arange(B), ScratchBuffers())
    seen = evaluate(twin, every)
    judged = estimate_advantages(every, seen, PPO(normalize_advantage=False), row_weights(every))
    rows = [(t, b) for b in range(B) for t in range(int(segments.valid[b]))]
    generator = torch.Generator().manual_seed(0)
    adam = torch.optim.Adam(twin.parameters(), 0.01, eps=update.optimizer.epsilon)
    for _ in range(2):
        for part in torch.randperm(len(rows), generator=generator).tensor_split(3):
            t, b = torch.tensor([rows[i] for i in part]).T
            logits, head = twin(twin.inputs(segments.observation[b, t]))
            log_policy = logits.T.log_softmax(1)
            ratio = (log_policy.gather(1, segments.action[b, t][:, None])[:, 0] - segments.log_probability[b, t]).exp()
            advantage = judged.advantage[t, b]
            advantage = (advantage - advantage.mean()) / (advantage.std(correction=0) + 1e-8)
            gain = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
            assert segments.value is not None
            before = segments.value[b, t]
            kept = before + (head - before).clamp(-0.2, 0.2)
            error = torch.maximum((head - judged.target[t, b]) ** 2, (kept - judged.target[t, b]) ** 2) / 2
            entropy = -(log_policy.exp() * log_policy).sum(1)
            adam.zero_grad()
            (-gain.mean() + 0.5 * error.mean() - 0.05 * entropy.mean()).backward()
            torch.nn.utils.clip_grad_norm_(twin.parameters(), 1.0)
            adam.step()
    for mine, written in zip(update.policy.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, written, atol=1e-5, rtol=1e-4)


def poisoned(segments: SegmentBatch, valid: Tensor) -> SegmentBatch:
    """The same segments cut to `valid` rows, with garbage in all rows beyond."""
    given = {field.name: getattr(segments, field.name) for field in fields(segments)}
    changed = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    for b, rows in enumerate(valid.tolist()):
        changed["observation"][b, rows + 1 if rows else 0 :] = torch.nan
        changed["action"][b, rows:] = 2**40
        changed["terminated"][b, rows:] = True
        changed["truncated"][b, rows:] = True
        for name in {"reward", "log_probability", "value"} & changed.keys():
            changed[name][b, rows:] = torch.nan
        changed["final_observation"][b, (changed["final_row"][b] >= rows) | (changed["final_row"][b] < 0)] = torch.nan
    return SegmentBatch(**{**changed, "valid": valid})


def zeroed(segments: SegmentBatch) -> SegmentBatch:
    """Poisoned segments with zeros for garbage."""
    given = {field.name: getattr(segments, field.name) for field in fields(segments)}
    changed = {name: tensor.clone() for name, tensor in given.items() if tensor is not None}
    for name in ("observation", "reward", "log_probability", "value", "final_observation"):
        changed[name].nan_to_num_(0)
    changed["action"][changed["action"] > 3] = 0
    return SegmentBatch(**changed)


def test_k4_poison_beyond_the_valid_rows_reaches_nothing() -> None:
    """K4: NaN, wild actions and false ends beyond `valid` give the same bits as zeros do."""
    valid = torch.tensor([T, 5, 1, 0, T - 1, 7, 2, T])
    clean, dirty = (updater(minibatches=2, normalize_observation=True) for _ in range(2))
    segments = poisoned(experience(clean.policy), valid)
    for _ in range(3):
        first, second = clean.update(zeroed(segments)), dirty.update(segments)
        assert first == second
        assert first["rows"] == valid.sum()
    np.testing.assert_array_equal(flatten_(clean.policy).bytes_view(), flatten_(dirty.policy).bytes_view())
    assert flatten_(dirty.policy).parameters.isfinite().all()


def test_a_short_segment_bootstraps_from_the_row_after_its_last() -> None:
    policy, config = setting(normalize_advantage=False)
    segments = experience(policy)
    none = torch.zeros(B, T, dtype=torch.bool)
    segments = replace(segments, terminated=none, truncated=none, final_row=torch.full((B, T), -1))
    short = poisoned(segments, torch.full((B,), 6))
    whole = replace(
        segments,
        **{name: getattr(segments, name)[:, :6] for name in ("action", "reward", "log_probability", "value")},
        terminated=none[:, :6],
        truncated=none[:, :6],
        observation=segments.observation[:, :7],
        final_row=segments.final_row[:, :6],
        valid=torch.full((B,), 6),
    )
    assert isinstance(config.algorithm, PPO)
    losses = [
        objective(policy, to_time_major(s).minibatch(torch.arange(B), ScratchBuffers()), config.algorithm)
        for s in (short, whole)
    ]
    assert losses[0].total.item() == pytest.approx(losses[1].total.item(), abs=1e-6)
    assert losses[0].targets is not None
    torch.testing.assert_close(losses[0].targets[:6], losses[1].targets)


def test_a_batch_without_real_rows_changes_nothing() -> None:
    update = updater()
    kept = flatten_(update.policy).bytes_view().copy()
    segments = poisoned(experience(update.policy), torch.zeros(B, dtype=torch.int64))
    assert update.update(segments) == {"loss": 0.0, "rows": 0.0}
    assert update.train_steps == 0
    np.testing.assert_array_equal(flatten_(update.policy).bytes_view(), kept)


def test_a_reward_that_is_not_finite_raises_before_the_parameters_change() -> None:
    update = updater(minibatches=1)
    kept = flatten_(update.policy).bytes_view().copy()
    segments = experience(update.policy)
    segments.reward[2, 3] = torch.nan
    with raises(TrainingFault, "update_not_finite"):
        update.update(segments)
    np.testing.assert_array_equal(flatten_(update.policy).bytes_view(), kept)
    assert update.train_steps == 0


def test_a_truncation_without_its_last_observation_is_told() -> None:
    update = updater()
    segments = experience(update.policy)
    segments.final_row.fill_(-1)
    with raises(TrainingFault, "true_last_observation_missing"):
        update.update(segments)


def test_steps_are_counted_and_metrics_are_finite_numbers() -> None:
    update = updater(minibatches=4, epochs=3)
    metrics = update.update(experience(update.policy), 0.25)
    assert update.train_steps == 12
    assert metrics["learning_rate"] == pytest.approx(0.0075)
    assert metrics["weight_delta"] > 0
    assert all(isinstance(number, float) and np.isfinite(number) for number in metrics.values())


def test_an_annealed_entropy_bonus_is_the_smaller_one_of_that_moment() -> None:
    annealed = updater(entropy_coefficient=0.5, anneal_entropy=True)
    smaller, whole = updater(entropy_coefficient=0.125), updater(entropy_coefficient=0.5)
    for update in (annealed, smaller, whole):
        update.update(experience(update.policy, 1), 0.75)
    weights = [flatten_(update.policy).bytes_view() for update in (annealed, smaller, whole)]
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_c9_weights_loaded_in_place_are_those_the_optimiser_moves() -> None:
    """C9: after a load and a reset the moments are empty and the parameters are still the optimiser's."""
    update = updater()
    update.update(experience(update.policy))
    flatten_(update.policy).load(flatten_(setting(seed=5)[0]).bytes_view())
    update.optimizer.reset()
    assert not any(moment.any() for moment in (update.optimizer.first, update.optimizer.second))
    before = {name: parameter.clone() for name, parameter in update.policy.named_parameters()}
    update.update(experience(update.policy))
    assert all((parameter != before[name]).any() for name, parameter in update.policy.named_parameters())


def bandit(observation: Tensor, acted: dict[str, Any], reward: np.ndarray) -> SegmentBatch:
    """32 segments of 8 rows in which nothing ends."""
    none = torch.zeros(32, 8, dtype=torch.bool)
    action, chance, value = (torch.from_numpy(acted[n].reshape(32, 8)) for n in ("action", "log_probability", "value"))
    return SegmentBatch(
        observation=observation,
        action=action,
        reward=torch.from_numpy(reward),
        terminated=none,
        truncated=none,
        log_probability=chance,
        valid=torch.full((32,), 8),
        final_observation=torch.zeros(32, 1, 4),
        final_row=torch.full((32, 1), -1),
        value=value,
    )


def test_e10_ppo_learns_which_action_pays(trial: Trial) -> None:
    """E10: a contextual bandit with a delayed half of its reward; random earns 0.25 a step, the best 1."""
    agent = Agent(name="a", observation=Box(shape=(4,)), action=Discrete(n=4))
    config = PolicyConfig(algorithm=PPO(minibatches=2, epochs=2, gamma=0.5), learning_rate=trial.rate(0.005))
    policy = build(Interface.of(agent), config, trial.seed)
    update = build_update(policy, config)
    assert isinstance(update, PPOUpdate)
    rng, history = np.random.default_rng(trial.seed), []
    for _ in range(trial.steps(40)):
        context = rng.integers(0, 4, (32, 9))
        observation = torch.eye(4)[torch.from_numpy(context)]
        acted = policy.act(observation[:, :-1].reshape(-1, 4), rng)
        action = acted["action"].reshape(32, 8)
        right = (action == context[:, :-1]).astype(np.float32)
        reward = 0.5 * right
        reward[:, 1:] += 0.5 * right[:, :-1]
        history.append(right.mean())
        update.update(bandit(observation, acted, reward))
    trial.reaches(np.mean(history[-5:]), 0.9)
