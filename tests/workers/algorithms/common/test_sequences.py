"""Values and targets of those who remember, against networks that are asked step by step and sums written out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protocol.config.run import C51, DQN, IQN, QMIX, VDN, Network, PolicyConfig
from protocol.spaces import Agent, Box, Dict, Discrete
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import SequenceBatch, TransitionBatch
from workers.algorithms.common.sequences import sequences_of
from workers.algorithms.dqn import DQNUpdate
from workers.algorithms.value_decomposition import team_sequences
from workers.policies.build import build, state_size
from workers.policies.interface import Interface
from workers.policies.networks.categorical_network import C51Policy
from workers.policies.networks.q_policy import DQNPolicy, ValueTower
from workers.policies.networks.quantile_network import IQNPolicy
from workers.policies.networks.recurrent_context import RecurrentContext
from workers.policies.networks.team_q_network import MemberTower, TeamQPolicy

AGENT = Agent(name="a", observation=Box(shape=(3,)), action=Discrete(n=4))
B, T, K = 5, 7, 2


def updater(core: Any = "lstm", **algorithm: Any) -> DQNUpdate:
    network = {"core": {"name": core, "size": 8}, "hidden": [8]}
    config = PolicyConfig(
        algorithm=DQN(**algorithm), model_config=Network.model_validate(network), segment_length=T, learning_rate=0.01
    )
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, DQNPolicy)
    with torch.no_grad():
        for parameter in policy.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return DQNUpdate(policy, config)


def sequences(state: int, masked: bool = False) -> SequenceBatch:
    """Terminations, truncations (one behind the other), segments that are short, one that begins with its episode."""
    g = torch.Generator().manual_seed(0)
    terminated, truncated = torch.zeros(2, B, T, dtype=torch.bool)
    terminated[0, 2] = truncated[1, 3] = truncated[1, 4] = truncated[2, T - 1] = terminated[3, 1] = True
    valid = torch.tensor([T, T, T, 4, 2])
    final_row = torch.full((B, K), -1)
    final_row[1] = torch.tensor([3, 4])
    final_row[2, 1] = T - 1
    observation = torch.randn(B, T + 1, 3, generator=g)
    observation[torch.arange(T + 1) > valid[:, None]] = 0
    states = torch.randn(B, state, generator=g)
    states[2] = 0
    legal = torch.rand(B, T + 1, 4, generator=g) < 0.5
    legal[..., 3] = True
    return SequenceBatch(
        observation=observation,
        action=torch.randint(0, 4, (B, T), generator=g),
        reward=torch.randn(B, T, generator=g),
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        final_observation=torch.randn(B, K, 3, generator=g),
        final_row=final_row,
        state=states,
        legal=legal if masked else None,
    )


def told(tower: ValueTower | MemberTower, batch: SequenceBatch, i: int) -> tuple[list[Tensor], dict[int, Tensor]]:
    """Values of each row of segment `i`, and of the true last observation behind each that was truncated."""
    state, rows, finals = batch.state[i : i + 1], [], {}
    for t in range(int(batch.valid[i]) + 1):
        values, state = tower.step(batch.observation[i, t : t + 1], state)
        rows.append(values[0])
        if t < T and batch.truncated[i, t]:
            entry = batch.final_row[i].tolist().index(t)
            finals[t] = tower.step(batch.final_observation[i, entry : entry + 1], state)[0][0]
        if t < T and (batch.terminated[i, t] or batch.truncated[i, t]):
            state = torch.zeros_like(state)
    return rows, finals


@pytest.mark.parametrize(
    ("core", "n_step", "burn_in", "double", "masked"),
    [("lstm", 3, 0, True, False), ("gru", 1, 3, False, True), ("attention", 4, 3, True, True)],
)
@torch.no_grad()
def test_targets_are_the_formula_written_out_step_by_step(
    core: str, n_step: int, burn_in: int, double: bool, masked: bool
) -> None:
    update = updater(core, n_step=n_step, burn_in=burn_in, double=double, gamma=0.9)
    remembered = update.policy.online.perceptron.core
    assert remembered is not None
    batch = sequences(remembered.state_size, masked)
    found = update.evaluate(update.policy, batch)
    expected: dict[tuple[int, int], tuple[float, float]] = {}
    for i in range(B):
        (online, online_finals), (target, target_finals) = (
            told(tower, batch, i) for tower in (update.policy.online, update.policy.target)
        )
        begun = not batch.state[i].any()
        for t in range(int(batch.valid[i])):
            ended = bool(batch.terminated[i, t] or batch.truncated[i, t])
            if begun or t >= burn_in:
                total, discount, last = 0.0, 1.0, t
                for last in range(t, min(t + n_step, int(batch.valid[i]))):
                    total += discount * float(batch.reward[i, last])
                    discount *= 0.9
                    if batch.terminated[i, last] or batch.truncated[i, last]:
                        break
                cut = bool(batch.truncated[i, last])
                future = target_finals[last] if cut else target[last + 1]
                chooser = (online_finals[last] if cut else online[last + 1]) if double else future
                if batch.legal is not None:
                    chooser = chooser.masked_fill(~batch.legal[i, last if cut else last + 1], -np.inf)
                if not batch.terminated[i, last]:
                    total += discount * float(future[int(chooser.argmax())])
                expected[t, i] = float(online[t][batch.action[i, t]]), total
            begun = begun or ended
    assert len(found.value) == len(expected)
    for row, (_, (value, target_value)) in enumerate(sorted(expected.items())):
        assert float(found.value[row]) == pytest.approx(value, abs=1e-5)
        assert float(found.target[row]) == pytest.approx(target_value, abs=1e-5)


def distributional(kind: type[C51] | type[IQN], core: str | None) -> Any:
    """An update by it, whose target network is another than the online one."""
    network = {"core": core and {"name": core, "size": 8}, "hidden": [8]}
    algorithm = IQN(n_step=2, gamma=0.9) if kind is IQN else C51(n_step=2, gamma=0.9, v_min=-3, v_max=3, atoms=7)
    config = PolicyConfig(algorithm=algorithm, model_config=Network.model_validate(network), segment_length=T)
    policy = build(Interface.of(AGENT), config, 0)
    assert isinstance(policy, C51Policy | IQNPolicy)
    with torch.no_grad():
        for parameter in policy.target.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    return build_update(policy, config)


@pytest.mark.parametrize("kind", [C51, IQN])
@torch.no_grad()
def test_distributions_of_who_remembers_are_those_of_transitions_where_nobody_heeds_it(
    kind: type[C51] | type[IQN],
) -> None:
    """The loss of rows of segments is that of the same rows as transitions, of a network without a core."""
    update, alone = distributional(kind, "lstm"), distributional(kind, None)
    for network in ("online", "target"):
        whole = {name: one.clone() for name, one in getattr(update.policy, network).state_dict().items()}
        whole["perceptron.layers.0.weight"][:, 3:] = 0
        getattr(update.policy, network).load_state_dict(whole)
        kept = {name: one for name, one in whole.items() if ".core." not in name}
        kept["perceptron.layers.0.weight"] = kept["perceptron.layers.0.weight"][:, :3]
        getattr(alone.policy, network).load_state_dict(kept)
    batch = update.draw(sequences(16, masked=True))
    rows = update.rows(batch)
    same = TransitionBatch(
        observation=rows.observation[rows.row],
        next_observation=rows.observation[rows.following],
        action=rows.action,
        reward=rows.reward,
        discount=rows.discount,
        next_legal=rows.next_legal,
        fractions=batch.fractions,
    )
    found, expected = update.loss(update.policy, batch), alone.loss(alone.policy, same)
    assert float(found.total) == pytest.approx(float(expected.total), rel=1e-5)
    torch.testing.assert_close(found.priorities, expected.priorities, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [C51, IQN])
@torch.no_grad()
def test_distributions_are_acted_on_as_they_are_learned(kind: type[C51] | type[IQN]) -> None:
    policy = distributional(kind, "gru").policy
    x, state = torch.randn(T, 1, 3), torch.randn(1, 8)
    recall = RecurrentContext(state, torch.zeros(T - 1, 1, dtype=torch.bool), torch.zeros(0, dtype=torch.int64))
    online = policy.online
    if kind is C51:
        means = policy.mean(online(x[:, 0], None, recall))
    else:
        means = online.means(online(x[:, 0], None, recall), policy.midpoints)
    for step in range(T):
        acted, state = policy.step(x[step], state)
        torch.testing.assert_close(acted[0], means[step], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [C51, IQN])
def test_the_loss_of_a_distribution_reaches_what_remembers(kind: type[C51] | type[IQN]) -> None:
    update = distributional(kind, "gru")
    before = update.policy.online.perceptron.core.cell.weight_hh_l0.detach().clone()
    assert np.isfinite(update.update(sequences(8))["loss"])
    assert not torch.equal(update.policy.online.perceptron.core.cell.weight_hh_l0, before)


def test_a_burn_in_that_leaves_nothing_to_train_on_is_not_kept_to() -> None:
    """All segments of a batch may be as short."""
    update = updater("gru", burn_in=5)
    whole = sequences(8)
    short = {name: getattr(whole, name)[4:] for name in whole.__dataclass_fields__ if getattr(whole, name) is not None}
    assert len(update.evaluate(update.policy, SequenceBatch(**short)).value) == 2


def test_the_loss_reaches_what_remembers_and_goes_down() -> None:
    update, batch = updater("lstm", kappa=None), sequences(16)
    losses = [update.update(batch)["loss"] for _ in range(30)]
    assert losses[-1] < 0.5 * losses[0]
    core = update.policy.online.perceptron.core
    assert core is not None
    fresh = updater("lstm").policy.online.perceptron.core
    assert fresh is not None
    for moved, before in zip(core.parameters(), fresh.parameters(), strict=True):
        assert not torch.equal(moved, before)


TEAM = Agent(
    name="t",
    observation=Dict(spaces=dict.fromkeys(("a", "b"), Box(shape=(2,)))),
    action=Dict(spaces=dict.fromkeys(("a", "b"), Discrete(n=3))),
    action_mask=True,
)


@pytest.mark.parametrize(("kind", "shared"), [(VDN, True), (VDN, False), (QMIX, True), (QMIX, False)])
@torch.no_grad()
def test_each_member_of_a_team_remembers_for_itself(kind: type[VDN | QMIX], shared: bool) -> None:
    """Targets of one step, of networks that are asked step by step."""
    network = {"core": {"name": "gru", "size": 5}, "hidden": [8]}
    algorithm = kind(shared=shared, n_step=1, gamma=0.9)
    config = PolicyConfig(algorithm=algorithm, model_config=Network.model_validate(network), segment_length=T)
    policy = build(Interface.of(TEAM), config, 0)
    assert isinstance(policy, TeamQPolicy)
    assert state_size(policy) == 10
    for parameter in policy.target.parameters():
        parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    g, plain = torch.Generator().manual_seed(2), sequences(10)
    legal = torch.rand(B, T + 1, 6, generator=g) < 0.5
    legal[..., [0, 4]] = True
    batch = replace(
        plain,
        observation=torch.randn(B, T + 1, 4, generator=g),
        final_observation=torch.randn(B, K, 4, generator=g),
        action=torch.randint(0, 3, (B, T, 2), generator=g),
        legal=legal,
    )
    value, target = team_sequences(policy, sequences_of(batch, algorithm), double=True)
    expected = {}
    for i in range(B):
        (online, online_finals), (other, other_finals) = (
            told(tower, batch, i) for tower in (policy.online, policy.target)
        )
        for t in range(int(batch.valid[i])):
            cut, end = bool(batch.truncated[i, t]), float(batch.reward[i, t])
            entry = batch.final_row[i].tolist().index(t) if cut else 0
            seen = batch.final_observation[i, entry] if cut else batch.observation[i, t + 1]
            mask = batch.legal[i, t if cut else t + 1] if batch.legal is not None else None
            chooser, future = (online_finals[t], other_finals[t]) if cut else (online[t + 1], other[t + 1])
            chosen = policy.best(chooser[None], None if mask is None else mask[None])
            if not batch.terminated[i, t]:
                end += 0.9 * float(policy.target.mix(policy.picked(future[None], chosen), seen[None]))
            picked = policy.picked(online[t][None], batch.action[i, t][None])
            expected[t, i] = float(policy.online.mix(picked, batch.observation[i, t][None])), end
    assert len(value) == len(expected)
    for row, (_, pair) in enumerate(sorted(expected.items())):
        assert (float(value[row]), float(target[row])) == pytest.approx(pair, rel=1e-5, abs=1e-5)


@torch.no_grad()
def test_members_who_see_unequally_much_remember_as_much_as_each_sees() -> None:
    """`attention` keeps what was seen: all rows at once against row after row."""
    network = {"core": {"name": "attention", "size": 4, "heads": 2, "window": 3}, "hidden": [8]}
    seen = Dict(spaces={"a": Box(shape=(1,)), "b": Box(shape=(2,))})
    team = Agent(name="t", observation=seen, action=Dict(spaces=dict.fromkeys("ab", Discrete(n=2))))
    config = PolicyConfig(algorithm=VDN(shared=False), model_config=Network.model_validate(network), segment_length=T)
    policy = build(Interface.of(team), config, 0)
    assert isinstance(policy, TeamQPolicy)
    first, second = policy.online.states
    assert first < second
    batch = sequences(state_size(policy))
    rows = sequences_of(batch, VDN())
    values = policy.online.values(policy.inputs(rows.observation), None, rows.recall)
    for i in range(B):
        expected, _ = told(policy.online, batch, i)
        for t, one in enumerate(expected):
            torch.testing.assert_close(values[t * B + i], one, rtol=1e-5, atol=1e-5)
