"""IMPALA: its policy gradient is the published one, a late row counts by its truncated ratio once, and it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.config.run import IMPALA, Network, PolicyConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete
from tests.faults import raises
from tests.trial import Trial
from tests.workers.algorithms.test_ppo import AGENT, B, T, bandit, experience
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import SegmentBatch
from workers.algorithms.common.time_major import to_time_major
from workers.algorithms.ppo import PPOUpdate, objective
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.policies.tensors.flat_weights import flatten_
from workers.policies.tensors.scratch import ScratchBuffers


def setting(
    agent: Agent = AGENT, rate: float = 0.01, seed: int = 0, **algorithm: Any
) -> tuple[ActorCritic, PolicyConfig]:
    network = Network(hidden=(16, 16))
    config = PolicyConfig(algorithm=IMPALA(**algorithm), model_config=network, learning_rate=rate)
    policy = build(Interface.of(agent), config, seed)
    assert isinstance(policy, ActorCritic)
    return policy, config


@pytest.mark.parametrize("clips", [(1.0, 1.0), (2.0, 0.8)])
def test_the_update_is_the_published_one_on_rows_of_an_older_policy_E11(clips: tuple[float, float]) -> None:
    """Espeholt et al. 2018, equation 1 and section 4.2, with the products of c written out: rho * grad log pi *
    (r + gamma * v' - V) for the policy, (v - V)^2 / 2 for the value, the entropy's gradient."""
    policy, config = setting(rho_clip=clips[0], c_clip=clips[1], normalize_return=False)
    assert isinstance(config.algorithm, IMPALA)
    segments = experience(policy)
    segments = replace(segments, log_probability=segments.log_probability + torch.randn(B, T) * 0.5)
    loss, ratios = published(policy, segments, config.algorithm)
    expected = gradient(policy, loss)  # before the next look: the policy computes in memory that it uses again
    assert ratios.std() > 0.3
    batch = to_time_major(segments).minibatch(torch.randperm(B), ScratchBuffers())
    found = objective(policy, batch, config.algorithm)
    assert found.metrics["clip_fraction"].item() == pytest.approx((ratios > clips[0]).float().mean().item())
    assert found.total.item() == pytest.approx(loss.item(), abs=1e-4)
    for mine, theirs in zip(gradient(policy, found.total), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


def gradient(policy: ActorCritic, loss: Tensor) -> list[Tensor]:
    """Of every parameter."""
    return list(torch.autograd.grad(loss, [p for p in policy.parameters() if p.requires_grad]))


def published(policy: ActorCritic, s: SegmentBatch, config: IMPALA) -> tuple[Tensor, Tensor]:
    """The loss, from one row after another, and the ratios."""
    losses, ratios = [], []
    shown = torch.cat([s.observation.flatten(0, 1), s.final_observation.flatten(0, 1)])
    outputs, values = policy(policy.inputs(shown), None)
    log_policy, value = outputs.log_softmax(0).T, values
    rows = B * (T + 1)
    for b in range(B):
        chosen = torch.stack([log_policy[b * (T + 1) + t, s.action[b, t]] for t in range(T)])
        mine = log_policy[b * (T + 1) : (b + 1) * (T + 1) - 1]
        entropy = -(mine.exp() * mine).sum(1)
        seen = value[b * (T + 1) : (b + 1) * (T + 1)]
        ratio = (chosen.detach() - s.log_probability[b]).exp()
        rho, c = ratio.clamp(max=config.rho_clip), ratio.clamp(max=config.c_clip)
        following, going = seen[1:].detach().clone(), torch.ones(T)
        for t in range(T):
            if s.truncated[b, t]:
                entry = s.final_row[b].tolist().index(t)
                following[t], going[t] = value[rows + b * T + entry].detach(), 0.0
            if s.terminated[b, t]:
                following[t] = going[t] = 0.0
        delta = rho * (s.reward[b] + config.discount * following - seen[:-1].detach())
        target = seen[:-1].detach().clone()
        for t in range(T):
            product = 1.0
            for k in range(t, T):
                target[t] += product * delta[k]
                product = product * config.discount * float(c[k] * going[k])
        ahead = following.clone()  # v of the next row, or the bootstrap value where nothing follows
        for t in range(T - 1):
            if going[t]:
                ahead[t] = target[t + 1]
        advantage = s.reward[b] + config.discount * ahead - seen[:-1].detach()
        losses.append(
            -(rho * advantage * chosen)
            + config.value_coefficient * 0.5 * (seen[:-1] - target).square()
            - config.entropy_weight * entropy
        )
        ratios.append(ratio)
    return torch.stack(losses).mean(), torch.stack(ratios)


def test_a_batch_is_trained_on_once_in_one_step() -> None:
    update = build_update(*setting())
    assert isinstance(update, PPOUpdate)
    before = flatten_(update.policy).parameters.clone()
    metrics = update.update(experience(update.policy), progress=0.0)
    assert update.train_steps == 1
    assert metrics["rows"] == B * T
    assert not torch.equal(before, flatten_(update.policy).parameters)
    assert all(np.isfinite(number) for number in metrics.values())


def test_policy_gradients_cut_below_the_traces_are_refused() -> None:
    with raises(ConfigurationError, "rho_clip_below_c_clip", value=0.5, limit=1, key="policy.algorithm.rho_clip"):
        parse_run({"policy": {"algorithm": {"name": "impala", "rho_clip": 0.5}}})


def test_e10_impala_learns_which_action_pays(trial: Trial) -> None:
    """E10: a contextual bandit; random earns 0.25 a step, the best 1. Every batch is two updates old."""
    agent = Agent(name="a", observation=Box(shape=(4,)), action=Discrete(n=4))
    policy, config = setting(agent, trial.rate(0.02), trial.seed, gamma=0.5, entropy_coefficient=0.0)
    update = build_update(policy, config)
    assert isinstance(update, PPOUpdate)
    rng, history, waiting = np.random.default_rng(trial.seed), [], []
    for _ in range(trial.steps(80)):
        context = rng.integers(0, 4, (32, 9))
        observation = torch.eye(4)[torch.from_numpy(context)]
        acted = policy.act(observation[:, :-1].reshape(-1, 4), rng)
        action = acted["action"].reshape(32, 8)
        right = (action == context[:, :-1]).astype(np.float32)
        history.append(right.mean())
        waiting.append(bandit(observation, acted, right))
        if len(waiting) > 2:
            update.update(waiting.pop(0))
    trial.reaches(np.mean(history[-5:]), 0.9)
