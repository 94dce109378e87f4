"""What an actor in another language is told suffices: its layout hashes right, and its arithmetic, written from
protocol/README.md with nothing but numpy, acts as the policies do."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.config import Run
from protocol.messages import PolicyFacts, Welcome
from protocol.spaces import Agent, Box, Discrete, World
from workers.facts import facts_of
from workers.plan import PolicyPlan, plan_policies
from workers.policies.actor_critic import ActorCritic
from workers.policies.build import Policy, build
from workers.policies.flat import flatten_

WORLD = World(
    id="w",
    agents=(
        Agent(name="a", observation=Box(shape=(2, 3)), action=Discrete(n=4)),
        Agent(name="b", observation=Box(shape=(2, 3)), action=Discrete(n=4)),
    ),
    episode_steps=10,
)
Weights = dict[str, NDArray]


def plan_of(**policy: Any) -> PolicyPlan:
    """Both agents play one policy."""
    run = Run.model_validate(
        {"policy": policy, "agents": {"a": "both", "b": "both"}, "environment": {"copies": 4}, "actors": 2}
    )
    return plan_policies(run, WORLD)["both"]


def told(plan: PolicyPlan) -> tuple[Policy, Weights, dict[str, Any]]:
    """The policy with lively normalisers, its weights as the wire's manifest names them, and its network's facts."""
    policy = build(plan.interface, plan.config, seed=3)
    rng = np.random.default_rng(1)
    for name, buffer in policy.named_buffers():
        if name.endswith(("mean", "variance")):
            buffer.copy_(torch.from_numpy(np.asarray(rng.random(tuple(buffer.shape)) + 0.5)))
    for parameter in policy.parameters():
        parameter.data.add_(torch.from_numpy(rng.standard_normal(tuple(parameter.shape)).astype(np.float32) * 0.1))
    flat = flatten_(policy)
    raw = flat.bytes_view().tobytes()
    weights = {
        entry["name"]: np.frombuffer(
            raw, entry["dtype"], int(np.prod(entry["shape"], dtype=int)), entry["offset"]
        ).reshape(entry["shape"])
        for entry in json.loads(flat.manifest.text)
    }
    return policy, weights, json.loads(facts_of(plan, WORLD).network)


def activated(x: NDArray, facts: dict[str, Any]) -> NDArray:
    """`f` of the document."""
    return np.tanh(x) if facts["activation"] == "tanh" else np.maximum(x, 0)


def actor_critic(x: NDArray, w: Weights, facts: dict[str, Any]) -> tuple[NDArray, float]:
    """Logits and value of `x` [I]: steps 1 to 5 of the document."""
    if facts["normalize_observation"]:
        std = np.maximum(np.sqrt(w["observations.variance"]), 1e-4)
        x = np.clip((x - w["observations.mean"]) / std, -10, 10)
    p = v = x.astype(np.float32)
    for k, units in enumerate(facts["hidden"]):
        weight, bias = w[f"layer_{k}_weight"], w[f"layer_{k}_bias"]
        if k == 0:
            h = activated(x @ weight + bias, facts)
            p, v = h[:units], h[units:]
        else:
            p, v = (activated(s @ weight[i] + bias[i, 0], facts) for i, s in enumerate((p, v)))
    mean, variance = w["returns.mean"], w["returns.variance"]
    std = max(np.sqrt(variance), 0.01 * abs(mean), 1e-4)
    return p @ w["policy_weight"] + w["policy_bias"], float(mean + std * (v @ w["value_weight"] + w["value_bias"])[0])


def quantile(x: NDArray, w: Weights, facts: dict[str, Any]) -> NDArray:
    """Mean returns [A] of `x` [frames * I]: steps 1 to 3 of the document."""
    for i in range(len(facts["hidden"])):
        name = f"online.perceptron.layers.{i}"
        x = activated(w[f"{name}.weight"] @ x + w[f"{name}.bias"], facts)
    cosines = np.cos(np.pi * np.arange(facts["cosines"]) * w["midpoints"][:, None])
    phi = np.maximum(cosines @ w["online.embedding.weight"].T + w["online.embedding.bias"], 0).mean(0)
    q: NDArray = w["online.head.weight"] @ (x * phi) + w["online.head.bias"]
    return q[0] + q[1:] - q[1:].mean() if facts["dueling"] else q


@pytest.mark.parametrize("hidden", [[], [8], [8, 8, 8]])
@pytest.mark.parametrize(("activation", "normalize"), [("tanh", True), ("relu", False)])
def test_the_documents_arithmetic_is_that_of_ppo(hidden: list[int], activation: str, normalize: bool) -> None:
    plan = plan_of(
        algorithm={"name": "ppo", "normalize_observation": normalize},
        network={"hidden": hidden, "activation": activation},
    )
    policy, weights, facts = told(plan)
    assert isinstance(policy, ActorCritic)
    observation = np.random.default_rng(2).standard_normal((16, 2, 3)).astype(np.float32) * 3
    acted = policy.act(torch.from_numpy(observation), np.random.default_rng(5))
    for i, seen in enumerate(observation):
        logits, value = actor_critic(seen.reshape(-1), weights, facts)
        log_probability = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        assert acted["log_probability"][i] == pytest.approx(log_probability[acted["action"][i]], abs=1e-4)
        assert acted["value"][i] == pytest.approx(value, abs=1e-4)
    assert len(set(acted["action"])) > 1


@pytest.mark.parametrize(("hidden", "activation", "dueling"), [([], "relu", False), ([8, 6], "tanh", True)])
def test_the_documents_arithmetic_is_that_of_iqn(hidden: list[int], activation: str, dueling: bool) -> None:
    plan = plan_of(
        algorithm={"name": "iqn", "frames": 3, "dueling": dueling, "cosines": 7},
        network={"hidden": hidden, "activation": activation},
    )
    policy, weights, facts = told(plan)
    frames = np.random.default_rng(2).standard_normal((16, 3, 2, 3)).astype(np.float32)
    acted = policy.act(torch.from_numpy(frames), np.random.default_rng(5), greedy=True)
    for i, seen in enumerate(frames):
        assert int(quantile(seen.reshape(-1), weights, facts).argmax()) == acted["action"][i]
    assert len(set(acted["action"])) > 1


@pytest.mark.parametrize("algorithm", ["ppo", "iqn"])
def test_an_actor_is_told_layout_and_credit_of_its_policy(algorithm: str) -> None:
    plan = plan_of(algorithm={"name": algorithm}, sync_interval=7)
    facts = facts_of(plan, WORLD)
    assert hashlib.sha256(facts.layout.encode()).hexdigest()[:16] == plan.layout.hash
    assert (facts.policy, facts.agents, facts.sync_interval) == ("both", ["a", "b"], 7)
    assert facts.credits == plan.credit_blocks * plan.copies
    assert facts.inline_most == plan.pool_slots >= facts.credits
    assert facts.discipline == ("stream" if algorithm == "ppo" else "replay")
    welcome = Welcome(
        run="r", name="a", incarnation=1, config="{}", world="{}", policies=["both"], facts=[facts], lease=1.0, beat=1.0
    )
    assert PolicyFacts.model_validate(welcome.model_dump()["facts"][0]) == facts
