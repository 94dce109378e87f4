"""Value decomposition: mixing and targets number by number, who sees what, gradients, refusals, and that it learns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protocol.config.run import Network, PolicyConfig
from protocol.spaces import Agent, Box, Dict, DictPopulation, Discrete, World
from tests.trial import Trial
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.value_decomposition import DecompositionUpdate, team_estimates
from workers.policies.build import build
from workers.policies.export.safetensors import acting_weights
from workers.policies.interface import Interface
from workers.policies.networks.team_q_network import TeamQPolicy
from workers.policies.team_layout import TeamMember, members_of

B, F = 7, 2
LIKE = Agent(
    name="t",
    observation=Dict(spaces={"a": Box(shape=(2,)), "b": Dict(spaces={"x": Box(shape=(1,)), "y": Box(shape=(1,))})}),
    action=Dict(spaces={"a": Discrete(n=3), "b": Discrete(n=3)}),
)
UNLIKE = Agent(
    name="t",
    observation=Dict(spaces={"a": Box(shape=(2,)), "b": Box(shape=(3,)), "c": Discrete(n=2)}),
    action=Dict(spaces={"a": Discrete(n=2), "b": Discrete(n=4), "c": Discrete(n=3)}),
)


def interface_of(agent: Agent, common: int = 0) -> Interface:
    box = Box(shape=(common,)) if common else None
    world = World(id="w", population=DictPopulation(agents=(agent,), common=box))
    return Interface.at(world, world.places[0])


def updater(
    agent: Agent = LIKE, common: int = 0, name: str = "vdn", rate: float = 0.01, seed: int = 0, **algorithm: Any
) -> DecompositionUpdate:
    given = {"name": name, "frames": F, "shared": agent is LIKE, **algorithm}
    config = PolicyConfig.model_validate({"algorithm": given, "network": Network(hidden=(8,)), "learning_rate": rate})
    policy = build(interface_of(agent, common), config, seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed + 1)) * 0.3)
    update = build_update(policy, config)
    assert isinstance(update, DecompositionUpdate)
    return update


def transitions(policy: TeamQPolicy, rows: int = B, seed: int = 0, masked: bool = False) -> TransitionBatch:
    g = torch.Generator().manual_seed(seed)
    legal = torch.rand(rows, policy.actions, generator=g) < 0.5
    for first in policy.firsts:
        legal[:, first + 1] = True
    return TransitionBatch(
        observation=torch.randn(rows, F, *policy.shape, generator=g),
        action=torch.stack([torch.randint(0, size, (rows,), generator=g) for size in policy.sizes], 1),
        reward=torch.randn(rows, generator=g),
        discount=torch.where(torch.rand(rows, generator=g) < 0.3, 0.0, 0.97),
        next_observation=torch.randn(rows, F, *policy.shape, generator=g),
        next_legal=legal if masked else None,
    )


Numbers = dict[str, NDArray[np.float64]]


def values(w: Numbers, tower: str, policy: TeamQPolicy, frames: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """[A] of each member of what it sees of `frames` [F, I], by numpy alone."""
    found = []
    for i, member in enumerate(policy.online.sight.members):
        seen = [np.concatenate([row[member.start : member.stop], row[policy.online.sight.common]]) for row in frames]
        x = np.concatenate(seen)
        shared = policy.online.shared
        if shared:
            x = np.concatenate([x, np.eye(len(policy.sizes))[i]])
        name = f"{tower}.networks.{0 if shared else i}"
        x = np.tanh(w[f"{name}.perceptron.layers.0.weight"] @ x + w[f"{name}.perceptron.layers.0.bias"])
        q = w[f"{name}.head.weight"] @ x + w[f"{name}.head.bias"]
        found.append(q if len(q) == policy.sizes[i] else q[0] + q[1:] - q[1:].mean())
    return found


def elu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(x > 0, x, np.expm1(x))


def mixed(w: Numbers, tower: str, q: list[float], frames: NDArray[np.float64]) -> float:
    """The members' values, added up or mixed by hypernetworks, by numpy alone."""
    if f"{tower}.mixer.first.weight" not in w:
        return sum(q)

    def linear(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
        found: NDArray[np.float64] = w[f"{tower}.mixer.{name}.weight"] @ x + w[f"{tower}.mixer.{name}.bias"]
        return found

    state = frames.ravel()
    first = np.abs(linear("first", state)).reshape(len(q), -1)
    hidden = elu(np.array(q) @ first + linear("first_bias", state))
    bias = linear("last_bias.2", np.maximum(linear("last_bias.0", state), 0))
    return float(hidden @ np.abs(linear("last", state)) + bias[0])


@pytest.mark.parametrize(("name", "double"), [("vdn", True), ("qmix", False)])
@pytest.mark.parametrize(
    ("agent", "common", "dueling", "masked"),
    [(LIKE, 0, False, False), (LIKE, 2, True, True), (UNLIKE, 0, True, False), (UNLIKE, 1, False, True)],
)
def test_values_and_targets_are_the_formulas_written_out_number_by_number(
    agent: Agent, common: int, dueling: bool, masked: bool, name: str, double: bool
) -> None:
    """E1: each member's best legal choice by itself, then the sum of all or their mixture, to 1e-5."""
    policy = updater(agent, common, name, dueling=dueling, double=double).policy
    batch = transitions(policy, masked=masked)
    told, aim = team_estimates(policy, batch, double=double)
    assert not aim.requires_grad
    w = {name: tensor.double().numpy() for name, tensor in policy.state_dict().items()}
    for b in range(B):
        here, after = batch.observation[b].double().numpy(), batch.next_observation[b].double().numpy()
        taken = [q[a] for q, a in zip(values(w, "online", policy, here), batch.action[b].tolist(), strict=True)]
        assert told[b].item() == pytest.approx(mixed(w, "online", taken, here), rel=1e-6, abs=1e-5)
        future, chooser = values(w, "target", policy, after), values(w, "online", policy, after)
        chosen = []
        for i, first in enumerate(policy.firsts):
            q = (chooser if double else future)[i].copy()
            if batch.next_legal is not None:
                q[~batch.next_legal[b, first : first + len(q)].numpy()] = -np.inf
            chosen.append(future[i][q.argmax()])
        target = batch.reward[b].item() + batch.discount[b].item() * mixed(w, "target", chosen, after)
        assert aim[b].item() == pytest.approx(target, rel=1e-6, abs=1e-5)


@pytest.mark.parametrize("agent", [LIKE, UNLIKE])
@pytest.mark.parametrize("greedy", [True, False])
def test_what_a_member_does_depends_on_its_own_part_and_the_common_one_alone(agent: Agent, greedy: bool) -> None:
    policy = updater(agent, 1, epsilon=0.0).policy
    chance = np.random.default_rng(0)
    seen = chance.standard_normal((200, F, *policy.shape)).astype(np.float32)
    before = policy.act(torch.from_numpy(seen), chance, greedy=greedy)["action"]
    assert before.shape == (200, len(policy.sizes))
    for i, member in enumerate(policy.online.sight.members):
        other = chance.standard_normal(seen.shape).astype(np.float32)
        own = other.copy()
        own[:, :, member.start : member.stop] = seen[:, :, member.start : member.stop]
        own[:, :, -1] = seen[:, :, -1]
        after = policy.act(torch.from_numpy(own), chance, greedy=greedy)["action"]
        np.testing.assert_array_equal(after[:, i], before[:, i])
        assert all((after[:, k] != before[:, k]).any() for k in range(len(policy.sizes)) if k != i)


def test_members_explore_for_themselves_among_what_is_legal() -> None:
    """At epsilon 0.5 both do as they like in a quarter of the rows; illegal choices are never made."""
    policy, n = updater(UNLIKE, epsilon=0.5).policy, 8_000
    legal = np.ones((n, 9), np.bool_)
    legal[:, [2, 7]] = False
    seen, chance = torch.zeros(n, F, *policy.shape), np.random.default_rng(0)
    best = policy.act(seen, chance, greedy=True, legal=legal)["action"]
    action = policy.act(seen, chance, legal=legal)["action"]
    assert not (action[:, 1] == 0).any()
    assert not (action[:, 2] == 1).any()
    explored = action != best
    shares = [0.5 * (count - 1) / count for count in (2, 3, 2)]
    np.testing.assert_allclose(explored.mean(0), shares, atol=0.02)
    assert (explored[:, 0] & explored[:, 1]).mean() == pytest.approx(shares[0] * shares[1], abs=0.02)


@pytest.mark.parametrize(
    ("name", "shared", "noisy"),
    [("vdn", True, False), ("qmix", False, False), ("qmix", True, True), ("vdn", False, True)],
)
def test_gradients_reach_every_member_and_the_mixture(name: str, shared: bool, noisy: bool) -> None:
    update = updater(name=name, shared=shared, noisy=noisy)
    batch = transitions(update.policy)
    before = {name: tensor.clone() for name, tensor in update.policy.state_dict().items()}
    metrics = update.update(batch)
    assert metrics["grad_norm"] > 0
    assert update.priorities is not None
    assert update.priorities.shape == (B,)
    for name, tensor in update.policy.state_dict().items():
        if name.startswith("online."):
            assert not torch.equal(tensor, before[name]), name
    assert update.update(replace(batch, weight=torch.zeros(B)))["loss"] == 0


def test_noisy_heads_are_drawn_for_each_member() -> None:
    """Members of one network that see the same choose differently only by their noise."""
    policy = updater(noisy=True, epsilon=0.0).policy
    with torch.no_grad():
        policy.online.networks[0].perceptron.layers[0].weight[:, -2:] = 0  # type: ignore[union-attr, index]
    chance = np.random.default_rng(0)
    action = policy.act(torch.zeros(500, F, 4), chance)["action"]
    assert (action[:, 0] != action[:, 1]).mean() > 0.1
    greedy = policy.act(torch.zeros(500, F, 4), chance, greedy=True)["action"]
    assert (greedy == greedy[0, 0]).all()


def test_members_are_parts_of_the_same_names_with_one_choice_each() -> None:
    assert members_of(interface_of(LIKE)) == (TeamMember("a", 0, 2, 3), TeamMember("b", 2, 4, 3))
    assert members_of(interface_of(UNLIKE, 5))[-1] == TeamMember("c", 5, 7, 3)
    others: list[dict[str, Any]] = [
        {"observation": Box(shape=(2,))},
        {"action": Discrete(n=2)},
        {"action": Dict(spaces={"a": Discrete(n=3)})},
        {"action": Dict(spaces={"a": Discrete(n=3), "c": Discrete(n=3)})},
        {"action": Dict(spaces={"a": Discrete(n=3), "b": Box(shape=(1,))})},
        {"action": Dict(spaces={"a": Discrete(n=3), "b": Dict(spaces={"x": Discrete(n=2), "y": Discrete(n=2)})})},
    ]
    for change in others:
        assert members_of(interface_of(LIKE.model_copy(update=change))) == ()


def test_what_mixes_values_is_not_exported() -> None:
    """Acting takes the members' networks alone."""
    names = {name.split(".")[1] for name in acting_weights(updater(name="qmix").policy) if name.startswith("online.")}
    assert names == {"networks"}


@pytest.mark.parametrize(("name", "error"), [("vdn", 0.1), ("qmix", 0.2)])
def test_e10_a_team_learns_who_has_to_do_what(name: str, error: float, trial: Trial) -> None:
    """E10: each member is shown a number and is to name it; the team's reward is the sum of what both earn."""
    agent = Agent(
        name="t",
        observation=Dict(spaces={"a": Box(shape=(3,)), "b": Box(shape=(3,))}),
        action=Dict(spaces={"a": Discrete(n=3), "b": Discrete(n=3)}),
    )
    update = updater(agent, name=name, rate=trial.rate(0.01), seed=trial.seed, shared=True, frames=1)
    chance, one_hot = np.random.default_rng(trial.seed), np.eye(3, dtype=np.float32)
    for _ in range(trial.steps(300)):
        shown, action = chance.integers(0, 3, (64, 2)), chance.integers(0, 3, (64, 2))
        right = (shown == action).astype(np.float32)
        seen = torch.from_numpy(one_hot[shown].reshape(64, 1, 6))
        reward = torch.from_numpy(right[:, 0] + 2 * right[:, 1])
        update.update(TransitionBatch(seen, torch.from_numpy(action), reward, torch.zeros(64), seen))
    shown = np.indices((3, 3)).reshape(2, -1).T
    seen = torch.from_numpy(one_hot[shown].reshape(9, 1, 6))
    trial.reaches((update.policy.act(seen, chance, greedy=True)["action"] == shown).mean(), 1, "right")
    with torch.no_grad():
        x = update.policy.inputs(seen)
        value = update.policy.online.mix(update.policy.online(x).view(9, 2, 3).amax(2), x)
    trial.errs_less((value - 3).abs().max().item(), error, "error")
