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

from protocol.config.run import Run
from protocol.spaces import (
    Agent,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiDiscrete,
    Observation,
    Text,
    World,
)
from tests.protocol.test_specification import network_keys
from workers.planning.policy_plan import PolicyPlan, plan_policies
from workers.planning.policy_spec import policy_spec
from workers.policies.build import Policy, build, published_weights
from workers.policies.networks.actor_critic import ActorCritic, CentralActorCritic
from workers.policies.networks.q_policy import QPolicy
from workers.policies.networks.soft_actor_critic import SoftActorCritic
from workers.policies.networks.team_q_network import TeamQPolicy

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


def told(plan: PolicyPlan, world: World = WORLD) -> tuple[Policy, Weights, dict[str, Any]]:
    """The policy with lively normalisers, its weights as the wire's manifest names them, and its network's facts."""
    policy = build(plan.interface, plan.config, seed=3)
    rng = np.random.default_rng(1)
    for name, buffer in policy.named_buffers():
        if name.endswith(("mean", "variance")):
            buffer.copy_(torch.from_numpy(np.asarray(rng.random(tuple(buffer.shape)) + 0.5)))
    for parameter in policy.parameters():
        shift = np.asarray(rng.standard_normal(tuple(parameter.shape)), np.float32)
        parameter.data.add_(torch.from_numpy(shift), alpha=0.1)
    flat = published_weights(policy)
    raw = flat.bytes_view().tobytes()
    weights = {
        entry["name"]: np.frombuffer(
            raw, entry["dtype"], int(np.prod(entry["shape"], dtype=int)), entry["offset"]
        ).reshape(entry["shape"])
        for entry in json.loads(flat.manifest.text)
    }
    facts = json.loads(policy_spec(plan, world).network)
    assert facts.keys() - {"frames"} == network_keys(facts["kind"]) - {"frames"}
    assert facts.get("frames", 1) == plan.config.algorithm.frames
    return policy, weights, facts


def activated(x: NDArray, facts: dict[str, Any]) -> NDArray:
    """`f` of the document."""
    return np.tanh(x) if facts["activation"] == "tanh" else np.maximum(x, 0)


def perceptron(x: NDArray, w: Weights, facts: dict[str, Any], of: str = "") -> NDArray:
    """All hidden layers."""
    for k in range(len(facts["hidden"])):
        name = f"{of}perceptron.layers.{k}"
        x = activated(w[f"{name}.weight"] @ x + w[f"{name}.bias"], facts)
    return x


def normalized(x: NDArray, w: Weights) -> NDArray:
    """Step 1 of the document."""
    std = np.maximum(np.sqrt(w["observations.variance"]), 1e-4)
    return np.clip((x - w["observations.mean"]) / std, -10, 10)


def remembered(x: NDArray, state: NDArray, w: Weights, facts: dict[str, Any]) -> tuple[NDArray, NDArray]:
    """`x` with what is remembered behind it, and the next state: step 2 of the document."""

    def sigma(z: NDArray) -> NDArray:
        return 1 / (1 + np.exp(-z))

    units = facts["recurrent_size"]
    h, c = state[:units], state[units:]
    a = (w["core.cell.weight_ih_l0"] @ x + w["core.cell.bias_ih_l0"]).reshape(-1, units)
    b = (w["core.cell.weight_hh_l0"] @ h + w["core.cell.bias_hh_l0"]).reshape(-1, units)
    if facts["recurrent"] == "gru":
        r, z = sigma(a[0] + b[0]), sigma(a[1] + b[1])
        h = state = (1 - z) * np.tanh(a[2] + r * b[2]) + z * h
    else:
        c = sigma(a[1] + b[1]) * c + sigma(a[0] + b[0]) * np.tanh(a[2] + b[2])
        h = sigma(a[3] + b[3]) * np.tanh(c)
        state = np.concatenate([h, c])
    return np.concatenate([x, h]), state


def actor_critic(
    x: NDArray, w: Weights, facts: dict[str, Any], state: NDArray | None = None
) -> tuple[NDArray, float, NDArray | None]:
    """Logits, value and next state of `x` [I]: steps 1 to 6 of the document."""
    if facts["normalize_observation"]:
        x = normalized(x, w)
    if state is not None:
        x, state = remembered(x, state, w, facts)
    p = v = x.astype(np.float32)
    for k, units in enumerate(facts["hidden"]):
        weight, bias = w[f"layer_{k}_weight"], w[f"layer_{k}_bias"]
        if k == 0:
            h = activated(x @ weight + bias, facts)
            p, v = (h, h) if facts["share_layers"] else (h[:units], h[units:])
        else:
            p = activated(p @ weight[0] + bias[0, 0], facts)
            v = p if facts["share_layers"] else activated(v @ weight[1] + bias[1, 0], facts)
    mean, variance = w["returns.mean"], w["returns.variance"]
    std = max(np.sqrt(variance), 0.01 * abs(mean), 1.0)
    value = float(mean + std * (v @ w["value_weight"] + w["value_bias"])[0])
    return p @ w["policy_weight"] + w["policy_bias"], value, state


def quantile(x: NDArray, w: Weights, facts: dict[str, Any]) -> NDArray:
    """Mean returns [A] of `x` [frames * I]: steps 1 to 3 of the document."""
    x = perceptron(x, w, facts, "online.")
    cosines = np.cos(np.pi * np.arange(facts["cosines"]) * w["midpoints"][:, None])
    phi = np.maximum(cosines @ w["online.embedding.weight"].T + w["online.embedding.bias"], 0).mean(0)
    q: NDArray = w["online.head.weight"] @ (x * phi) + w["online.head.bias"]
    return q[0] + q[1:] - q[1:].mean() if facts["dueling"] else q


def log_softmax(x: NDArray) -> NDArray:
    """Of the logits of one choice."""
    found: NDArray = x - x.max() - np.log(np.exp(x - x.max()).sum())
    return found


@pytest.mark.parametrize(
    ("hidden", "activation", "normalize", "shared", "frames"),
    [
        ([], "tanh", True, False, 1),
        ([8], "relu", False, False, 1),
        ([8, 8, 8], "tanh", False, False, 1),
        ([8, 8, 8], "tanh", True, True, 1),
        ([8], "tanh", True, False, 3),
    ],
)
def test_the_documents_arithmetic_is_that_of_ppo(
    hidden: list[int], activation: str, normalize: bool, shared: bool, frames: int
) -> None:
    plan = plan_of(
        algorithm={"name": "ppo", "normalize_observation": normalize, "frames": frames},
        network={"hidden": hidden, "activation": activation, "share_layers": shared},
    )
    policy, weights, facts = told(plan)
    assert isinstance(policy, ActorCritic)
    observation = np.random.default_rng(2).standard_normal((16, frames, 2, 3)).astype(np.float32) * 3
    acted = policy.act(torch.from_numpy(observation), np.random.default_rng(5))
    for i, seen in enumerate(observation):
        logits, value, _ = actor_critic(seen.reshape(-1), weights, facts)
        assert acted["log_probability"][i] == pytest.approx(log_softmax(logits)[acted["action"][i]], abs=1e-4)
        assert acted["value"][i] == pytest.approx(value, abs=1e-4)
    assert len(set(acted["action"])) > 1


@pytest.mark.parametrize(("recurrent", "hidden"), [(None, [8, 6]), ("lstm", [])])
def test_the_documents_arithmetic_is_that_of_an_actor_with_a_central_critic(
    recurrent: str | None, hidden: list[int]
) -> None:
    """What only its critic sees is no input, and nobody says what its rows are worth."""
    seen = Observation(
        components={
            "eye": Component(space=Box(shape=(3,))),
            "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
        }
    )
    world = World(id="w", agents=(Agent(name="a", observation=seen, action=Discrete(n=4)),))
    network = {"hidden": hidden, "core": {"name": recurrent or "none", "size": 5}}
    ppo = {"name": "ppo", "central_critic": True, "normalize_observation": True}
    run = Run.model_validate({"policy": {"algorithm": ppo, "network": network}, "environment": {"copies": 4}})
    policy, weights, facts = told(plan_policies(run, world)["a"])
    assert isinstance(policy, CentralActorCritic)
    assert facts["kind"] == "actor"
    assert [part["column"] for part in facts["inputs"]] == ["observation.eye"]
    assert all(name.startswith("actor.") for name in weights)
    weights = {name.removeprefix("actor."): one for name, one in weights.items()}
    rng = np.random.default_rng(2)
    states = np.zeros((16, 10), np.float32) if recurrent else None
    for _ in range(3):
        observation = rng.standard_normal((16, 3)).astype(np.float32) * 3
        acted = policy.act(torch.from_numpy(observation), rng, state=states)
        assert "value" not in acted
        for i, row in enumerate(observation):
            x = normalized(row, weights)
            if states is not None:
                x, after = remembered(x, states[i], weights, facts)
                np.testing.assert_allclose(acted["state"][i], after, atol=1e-5)
            x = perceptron(x, weights, facts)
            logits = weights["head.weight"] @ x + weights["head.bias"]
            assert acted["log_probability"][i] == pytest.approx(log_softmax(logits)[acted["action"][i]], abs=1e-4)
        states = acted.get("state")
    assert len(set(acted["action"])) > 1


@pytest.mark.parametrize(("kind", "hidden"), [("lstm", [8]), ("gru", [])])
def test_the_documents_arithmetic_is_that_of_a_policy_that_remembers(kind: str, hidden: list[int]) -> None:
    """An episode of five steps in four streams, from a state of zeros on."""
    plan = plan_of(
        algorithm={"name": "ppo", "normalize_observation": True},
        network={"hidden": hidden, "core": {"name": kind, "size": 6}},
    )
    policy, weights, facts = told(plan)
    assert isinstance(policy, ActorCritic)
    rng = np.random.default_rng(2)
    (field,) = [field for field in json.loads(policy_spec(plan, WORLD).layout)["fields"] if field[0] == "state"]
    states = np.zeros((4, *field[2]), np.float32)
    assert field == ["state", "<f4", [12 if kind == "lstm" else 6], "slot"]
    for _ in range(5):
        observation = rng.standard_normal((4, 2, 3)).astype(np.float32) * 3
        acted = policy.act(torch.from_numpy(observation), rng, state=states)
        for i, seen in enumerate(observation):
            logits, value, after = actor_critic(seen.reshape(-1), weights, facts, states[i])
            assert acted["log_probability"][i] == pytest.approx(log_softmax(logits)[acted["action"][i]], abs=1e-4)
            assert acted["value"][i] == pytest.approx(value, abs=1e-4)
            assert after is not None
            np.testing.assert_allclose(acted["state"][i], after, atol=1e-5)
        states = acted["state"]
    assert np.abs(states).min() > 0


def seen_by(row: dict[str, NDArray], facts: dict[str, Any]) -> NDArray:
    """`x` of the document."""
    x = np.zeros(int(np.prod(facts["observation"])), np.float32)
    for part in facts["inputs"]:
        elements, at = np.ravel(row[part["column"]]), part["at"]
        if not part["choices"]:
            x[at : at + part["width"]] = elements
        for element, (first, count) in zip(elements, part["choices"], strict=False):
            x[at + int(element) - first] = 1
            at += count
    return x


def said(
    y: NDArray, w: Weights, facts: dict[str, Any], row: dict[str, NDArray], masks: dict[str, NDArray]
) -> tuple[float, dict[str, NDArray]]:
    """The log-probability of the action in `row`, and what the world gets, column by column: step 5."""
    total, at, amount, world = 0.0, 0, 0, {}
    for part in facts["outputs"]:
        name = part["column"]
        values = np.ravel(row[name]).astype(np.float64)
        if "sizes" in part:
            start = at
            for value, size, first in zip(values, part["sizes"], part["start"], strict=True):
                numbers = y[at : at + size].astype(np.float64)
                if part["masked"]:
                    legal = masks[name.replace("action", "action_mask", 1)][at - start : at - start + size]
                    numbers = np.where(legal, numbers, -1e9)
                total += log_softmax(numbers)[int(value) - first]
                at += size
            world[name] = values
            continue
        low, high = ([np.nan if one is None else one for one in part[end]] for end in ("low", "high"))
        world[name] = np.fmin(np.fmax(values, low), high)
        u = (values - part["middle"]) / part["scale"]
        std = np.exp(w["log_std"][amount : amount + len(u)])
        mean = y[at : at + len(u)]
        total += float((-(((u - mean) / std) ** 2) / 2 - np.log(std) - np.log(2 * np.pi) / 2).sum())
        at, amount = at + len(u), amount + len(u)
    return total, world


def test_the_documents_arithmetic_is_that_of_any_space() -> None:
    """Nested observations of all kinds, masked choices and numbers, from the facts alone."""
    eyes = Dict(
        spaces={
            "camera": Box(shape=(2, 2), dtype="uint8"),
            "gears": MultiDiscrete(nvec=(3, 2), start=(1, 0)),
            "said": Text(max_length=2, charset="ab"),
        }
    )
    hands = Dict(
        spaces={
            "force": Box(shape=(2,), low=-1.0, high=(3.0, 1.0)),
            "legs": MultiDiscrete(nvec=(2, 3), start=(0, 5)),
            "move": Discrete(n=3, start=-1),
        }
    )
    world = World(id="w", agents=(Agent(name="a", observation=eyes, action=hands, action_mask=True),))
    plan = plan_policies(Run.model_validate({"environment": {"copies": 4}}), world)["a"]
    policy, weights, facts = told(plan)
    rng, place = np.random.default_rng(4), world.places[0]
    rows = place.observed.zeros(32)
    rows["camera"] = rng.integers(0, 9, (32, 2, 2))
    rows["gears"] = rng.integers([1, 0], [4, 2], (32, 2))
    rows["said"] = rng.integers(0, 2, (32, 2)) + 1
    assert place.masked is not None
    mask = place.masked.zeros(32)
    mask["move"], mask["legs"] = rng.random((32, 3)) < 0.5, rng.random((32, 5)) < 0.5
    mask["move"][:, 1] = mask["legs"][:, 0] = mask["legs"][:, 3] = True
    shown = plan.interface.observation_encoding.encode(place.parts("observation", rows).__getitem__, (32,))
    legal = plan.interface.action_encoding.legal(place.parts("action_mask", mask).__getitem__, (32,))
    assert isinstance(policy, ActorCritic)
    acted = policy.act(torch.from_numpy(shown), rng, legal=legal)
    columns, actions = plan.interface.action_encoding.decode(acted["action"], acted["amount"])
    for i in range(32):
        row = {name: part[i] for name, part in {**place.parts("observation", rows), **columns}.items()}
        masks = {name: part[i] for name, part in place.parts("action_mask", mask).items()}
        y, *_ = actor_critic(seen_by(row, facts), weights, facts)
        log_probability, world_gets = said(y, weights, facts, row, masks)
        assert acted["log_probability"][i] == pytest.approx(log_probability, abs=2e-4)
        for name, part in place.parts("action", actions).items():
            np.testing.assert_allclose(part[i].ravel(), world_gets[name], atol=1e-6)
    assert len(set(map(tuple, acted["action"]))) > 5


@pytest.mark.parametrize(("hidden", "activation", "dueling"), [([], "relu", False), ([8, 6], "tanh", True)])
@pytest.mark.parametrize("name", ["iqn", "dqn", "c51"])
def test_the_documents_arithmetic_is_that_of_iqn_dqn_and_c51_and_of_masks(
    name: str, hidden: list[int], activation: str, dueling: bool
) -> None:
    cosines = {"cosines": 7} if name == "iqn" else {}
    plan = plan_of(
        algorithm={"name": name, "frames": 3, "dueling": dueling, **cosines},
        network={"hidden": hidden, "activation": activation},
    )
    policy, weights, facts = told(plan)
    assert isinstance(policy, QPolicy)
    rng = np.random.default_rng(2)
    frames, legal = rng.standard_normal((16, 3, 2, 3)).astype(np.float32), rng.random((16, 4)) < 0.6
    legal[:, 2] = True
    acted = policy.act(torch.from_numpy(frames), rng, greedy=True, legal=legal)
    for i, seen in enumerate(frames):
        q = RETURNS[name](seen.reshape(-1), weights, facts)
        assert int(np.where(legal[i], q, -np.inf).argmax()) == acted["action"][i]
    assert len(set(acted["action"])) > 1


def value(x: NDArray, w: Weights, facts: dict[str, Any]) -> NDArray:
    """Mean returns [A] of `x` [frames * I] by DQN."""
    x = perceptron(x, w, facts, "online.")
    q: NDArray = w["online.head.weight"] @ x + w["online.head.bias"]
    return q[0] + q[1:] - q[1:].mean() if facts["dueling"] else q


def categorical(x: NDArray, w: Weights, facts: dict[str, Any]) -> NDArray:
    """Mean returns [A] of `x` [frames * I] by C51."""
    y = value(x, w, facts | {"dueling": False}).reshape(len(w["support"]), -1)
    y = y[:, :1] + y[:, 1:] - y[:, 1:].mean(1, keepdims=True) if facts["dueling"] else y
    p = np.exp(y) / np.exp(y).sum(0)
    q: NDArray = w["support"] @ p
    return q


RETURNS = {"iqn": quantile, "dqn": value, "c51": categorical}


@pytest.mark.parametrize("name", ["iqn", "dqn", "c51"])
def test_the_documents_arithmetic_is_that_of_noisy_heads(name: str) -> None:
    """From the same normal numbers, the same actions; and they differ from those without noise."""
    plan = plan_of(algorithm={"name": name, "noisy": True, "epsilon": 0.0}, network={"hidden": [8]})
    policy, weights, facts = told(plan)
    assert isinstance(policy, QPolicy)
    assert facts["noisy"]
    frames = np.random.default_rng(2).standard_normal((64, 1, 2, 3)).astype(np.float32)
    acted = policy.act(torch.from_numpy(frames), np.random.default_rng(5))["action"]
    normal = np.random.default_rng(5).standard_normal((64, policy.numbers), np.float32)
    factors = np.sign(normal) * np.sqrt(np.abs(normal))
    for i, seen in enumerate(frames):
        spread = weights["online.head.weight_scale"] * np.outer(factors[i, 8:], factors[i, :8])
        drawn = {
            **weights,
            "online.head.weight": weights["online.head.weight"] + spread,
            "online.head.bias": weights["online.head.bias"] + weights["online.head.bias_scale"] * factors[i, 8:],
        }
        assert int(RETURNS[name](seen.reshape(-1), drawn, facts).argmax()) == acted[i]
    assert (acted != policy.act(torch.from_numpy(frames), np.random.default_rng(5), greedy=True)["action"]).any()


PAIR = World(
    id="w",
    population=DictPopulation(
        agents=(
            Agent(
                name="t",
                observation=Dict(spaces={"a": Box(shape=(2,)), "b": Box(shape=(2,))}),
                action=Dict(spaces={"a": Discrete(n=3), "b": Discrete(n=3)}),
            ),
        ),
        common=Box(shape=(3,)),
    ),
)


@pytest.mark.parametrize(("shared", "dueling", "noisy"), [(True, True, False), (False, False, True)])
def test_the_documents_arithmetic_is_that_of_teams(shared: bool, dueling: bool, noisy: bool) -> None:
    """Each member's values, with and without noise, from what is its own and the common numbers of three frames."""
    algorithm = {"name": "vdn", "frames": 3, "shared": shared, "dueling": dueling, "noisy": noisy, "epsilon": 0.0}
    run = Run.model_validate({"policy": {"algorithm": algorithm, "network": {"hidden": [8]}}})
    plan = plan_policies(run, PAIR)["t"]
    policy, weights, facts = told(plan, PAIR)
    assert isinstance(policy, TeamQPolicy)
    assert facts["kind"] == "members"
    frames = np.random.default_rng(2).standard_normal((40, 3, 7)).astype(np.float32)
    acted = policy.act(torch.from_numpy(frames), np.random.default_rng(5))["action"]
    outputs = 3 + dueling
    normal = np.random.default_rng(5).standard_normal((40, 2 * (8 + outputs)), np.float32)
    factors = (np.sign(normal) * np.sqrt(np.abs(normal))).reshape(40, 2, -1)
    for i, seen in enumerate(frames):
        for m, member in enumerate(facts["members"]):
            at = np.r_[member["at"] : member["at"] + member["width"]]
            common = facts["common"]["at"] + np.arange(facts["common"]["width"])
            x = seen[:, np.r_[at, common]].ravel()
            x = np.concatenate([x, np.eye(2)[m]]) if shared else x
            before = f"online.networks.{0 if shared else m}."
            own = {name.replace(before, "online."): w for name, w in weights.items() if name.startswith(before)}
            if noisy:
                scale, factor = own["online.head.weight_scale"], factors[i, m]
                own["online.head.weight"] = own["online.head.weight"] + scale * np.outer(factor[8:], factor[:8])
                own["online.head.bias"] = own["online.head.bias"] + own["online.head.bias_scale"] * factor[8:]
            assert int(value(x, own, facts).argmax()) == acted[i, m]
    assert len(set(acted[:, 0])) > 1


@pytest.mark.parametrize(("hidden", "activation"), [([], "relu"), ([8, 6], "tanh")])
def test_the_documents_arithmetic_is_that_of_sac(hidden: list[int], activation: str) -> None:
    """From what is published alone: the actor's part."""
    hands = Dict(spaces={"force": Box(shape=(2,), low=-1.0, high=(3.0, 1.0)), "turn": Box(shape=(), low=0.0, high=9.0)})
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(2, 3)), action=hands),))
    policy_of = {"algorithm": {"name": "sac", "frames": 2}, "network": {"hidden": hidden, "activation": activation}}
    plan = plan_policies(Run.model_validate({"environment": {"copies": 4}, "policy": policy_of}), world)["a"]
    policy, weights, facts = told(plan)
    assert isinstance(policy, SoftActorCritic)
    assert all(name.startswith("actor.") for name in weights)
    frames = np.random.default_rng(2).standard_normal((16, 2, 2, 3)).astype(np.float32)
    acted = policy.act(torch.from_numpy(frames), np.random.default_rng(5))
    noise = np.random.default_rng(5).standard_normal((16, 3), np.float32)
    columns, _ = plan.interface.action_encoding.decode(acted["action"], acted["amount"])
    for i, x in enumerate(frames.reshape(16, -1)):
        x = perceptron(x, weights, facts, "actor.")
        y = weights["actor.head.weight"] @ x + weights["actor.head.bias"]
        mean, log_std = y[: facts["actions"]], np.clip(y[facts["actions"] :], -20, 2)
        u, at = np.tanh(mean + np.exp(log_std) * noise[i]), 0
        for part in facts["outputs"]:
            count = len(part["scale"])
            expected = u[at : at + count] * part["scale"] + part["middle"]
            np.testing.assert_allclose(columns[part["column"]][i].ravel(), expected, atol=1e-5)
            assert (expected >= part["low"]).all()
            assert (expected <= part["high"]).all()
            at += count


def test_choices_of_sac_are_those_of_an_actor_without_a_value() -> None:
    """What clients know already: from the actor's part alone."""
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4)),))
    policy_of = {"algorithm": {"name": "sac"}, "network": {"hidden": [8]}}
    plan = plan_policies(Run.model_validate({"environment": {"copies": 4}, "policy": policy_of}), world)["a"]
    policy, weights, facts = told(plan)
    assert facts["kind"] == "actor"
    seen = np.random.default_rng(2).standard_normal((16, 3)).astype(np.float32)
    acted = policy.act(torch.from_numpy(seen[:, None]), np.random.default_rng(5), greedy=True)["action"]
    for x, action in zip(seen, acted, strict=True):
        y = perceptron(x, weights, facts, "actor.")
        assert int((weights["actor.head.weight"] @ y + weights["actor.head.bias"]).argmax()) == action


@pytest.mark.parametrize("algorithm", ["ppo", "iqn"])
def test_an_actor_is_told_layout_and_credit_of_its_policy(algorithm: str) -> None:
    plan = plan_of(algorithm={"name": algorithm}, sync_interval=7)
    facts = policy_spec(plan, WORLD)
    assert hashlib.sha256(facts.layout.encode()).hexdigest()[:16] == plan.layout.hash
    assert (facts.policy, facts.agents, facts.sync_interval) == ("both", ["a", "b"], 7)
    assert facts.credits == plan.credit_blocks * plan.copies
    assert facts.max_inline == plan.pool_slots >= facts.credits
    assert facts.mode == ("stream" if algorithm == "ppo" else "replay")
