"""A whole network of the user's own: what it is built for, what it says, and what is told of it before anything
starts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from protocol.config.network import Network
from protocol.config.run import PolicyConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Dict, Discrete, MultiDiscrete
from tests.faults import raises
from workers.algorithms.build import build_update
from workers.algorithms.common.batches import TransitionBatch
from workers.policies.action_encoding import ActionSpec
from workers.policies.build import build, state_size
from workers.policies.encoders.observation_spec import ObservationSpec
from workers.policies.export.module import ExportedModule
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic

SEEN = Dict(spaces={"image": Box(shape=(6, 6, 1), dtype="uint8"), "speed": Box(shape=(2,))})
PAIR = MultiDiscrete(nvec=(2, 3))
Outputs = dict[str, tuple[int, ...]]


class Net(nn.Module):
    """A good one for any algorithm: a layer, and a head for each output."""

    def __init__(self, observation: ObservationSpec, action: ActionSpec, outputs: Outputs, width: int = 8) -> None:
        super().__init__()
        self.given = (observation, action, outputs)
        self.layer = nn.LazyLinear(width)
        self.heads = nn.ModuleDict({name: nn.LazyLinear(int(np.prod(form))) for name, form in outputs.items()})

    def forward(self, seen: dict[str, Tensor]) -> Any:
        """Of each name [N, *shape]"""
        x = torch.cat([seen["image"].flatten(1).float() / 255, seen["speed"]], 1)
        x = self.layer(x).tanh()
        return {name: head(x).reshape(-1, *self.given[2][name]) for name, head in self.heads.items()}


class Towers(nn.Module):
    """The two perceptrons that are built in, of one vector."""

    def __init__(self, observation: ObservationSpec, action: ActionSpec, outputs: Outputs) -> None:
        super().__init__()
        (inputs,), (actions,) = observation.shape, outputs["policy"]
        self.policy = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, actions))
        self.value = nn.Sequential(nn.Linear(inputs, 5), nn.Tanh(), nn.Linear(5, 1))

    def forward(self, seen: Tensor) -> dict[str, Tensor]:
        """Both"""
        return {"policy": self.policy(seen), "value": self.value(seen)[:, 0]}


class Chained:
    """Two choices of which the second knows the first, `PAIR`."""

    def __init__(self, module: Pair, outputs: dict[str, Tensor]) -> None:
        self.module, self.hidden = module, outputs["hidden"]
        legal = outputs.get("legal", torch.ones(1, 5, dtype=torch.bool))
        self.first = self.log(outputs["first"], legal[:, :2])
        each = [module.second(self.hidden + module.known.weight[one]) for one in (0, 1)]
        self.both = self.first[:, :, None] + self.log(torch.stack(each, 1), legal[:, None, 2:])

    def log(self, logits: Tensor, legal: Tensor) -> Tensor:
        """Of chances"""
        return logits.masked_fill(~legal, -1e9).log_softmax(-1)

    def sample(self, uniform: Tensor) -> Any:
        first = (uniform[:, :1] > self.first.exp().cumsum(1)).sum(1).clamp(max=1)
        chances = self.both[torch.arange(len(first)), first].softmax(1)
        second = (uniform[:, 1:] > chances.cumsum(1)).sum(1).clamp(max=2)
        return torch.stack([first, second], 1), uniform.new_zeros(len(first), 0)

    def mode(self) -> Any:
        best = self.both.flatten(1).argmax(1)
        return torch.stack([best // 3, best % 3], 1), self.hidden[:, :0]

    def log_prob(self, choices: Tensor, amounts: Tensor) -> Any:
        return self.both[torch.arange(len(choices)), choices[:, 0], choices[:, 1]]

    def entropy(self) -> Any:
        both = self.both.flatten(1)
        return -(both.exp() * both).sum(1)


class Pair(nn.Module):
    """A good one with a distribution of its own."""

    KIND: Any = Chained

    def __init__(self, observation: ObservationSpec, action: ActionSpec, outputs: Outputs) -> None:
        super().__init__()
        self.layer, self.value, self.first = nn.Linear(2, 4), nn.Linear(4, 1), nn.Linear(4, 2)
        self.known, self.second = nn.Embedding(2, 4), nn.Linear(4, 3)

    def forward(self, seen: dict[str, Tensor]) -> Any:
        """What the distribution needs, and the value"""
        x = self.layer(seen["speed"]).tanh()
        return {"value": self.value(x)[:, 0], "first": self.first(x), "hidden": x}

    def distribution(self, outputs: dict[str, Tensor]) -> Chained:
        """Of both choices"""
        found: Chained = self.KIND(self, outputs)
        return found


def policy_of(name: str, algorithm: dict[str, Any], action: Any, masked: bool = False, seen: Any = SEEN) -> Any:
    """(interface, configuration, policy) of an agent with the network `name` of this file."""
    network = {"entry": f"{__name__}:{name}"}
    config = PolicyConfig.model_validate(
        {"algorithm": algorithm, "network": network, **DATA.get(algorithm["name"], {})}
    )
    interface = Interface.of(Agent(name="a", observation=seen, action=action, action_mask=masked), config)
    return interface, config, build(interface, config, 0)


DATA: dict[str, Any] = {"bc": {"dataset": {"path": "somewhere"}}}


def rows(interface: Interface, count: int) -> Tensor:
    """So many that may be seen."""
    return torch.from_numpy(np.random.default_rng(1).integers(0, 9, (count, *interface.observation_encoding.shape))).to(
        torch.from_numpy(np.empty(0, interface.observation_encoding.dtype)).dtype
    )


@pytest.mark.parametrize(
    ("algorithm", "outputs"),
    [
        ({"name": "ppo"}, {"policy": (2,), "value": ()}),
        ({"name": "impala"}, {"policy": (2,), "value": ()}),
        ({"name": "bc"}, {"policy": (2,), "value": ()}),
        ({"name": "dqn"}, {"q": (2,)}),
        ({"name": "c51", "atoms": 11}, {"atoms": (11, 2)}),
    ],
    ids=lambda given: given.get("name", ""),
)
def test_it_is_given_what_is_seen_what_is_done_and_what_is_needed(algorithm: Any, outputs: Outputs) -> None:
    interface, _, policy = policy_of("Net", algorithm, Discrete(n=2))
    net = next(one for one in policy.modules() if isinstance(one, Net))
    assert list(net.given[0]) == ["image", "speed"]
    assert net.given[1:] == (ActionSpec((2,), 0, False), outputs)
    seen = rows(interface, 5)
    acted = policy.act(seen if isinstance(policy, ActorCritic) else seen[:, None], np.random.default_rng(0))
    assert acted["action"].shape == (5,)


def test_amounts_spread_as_those_of_our_own_network() -> None:
    interface, _, policy = policy_of("Net", {"name": "ppo"}, Dict(spaces={"a": Discrete(n=2), "b": Box(shape=(3,))}))
    assert policy.log_std.shape == (3,)
    acted = policy.act(rows(interface, 4), np.random.default_rng(0))
    assert (acted["action"].shape, acted["amount"].shape) == ((4, 1), (4, 3))


@pytest.mark.parametrize("name", ["dqn", "c51"])
def test_replay_learns_by_it(name: str) -> None:
    interface, config, policy = policy_of("Net", {"name": name}, Discrete(n=2))
    config = config.model_copy(update={"learning_rate": 0.01})
    seen = rows(interface, 16)[:, None]
    batch = TransitionBatch(
        observation=seen,
        next_observation=seen.flip(0),
        action=torch.arange(16) % 2,
        reward=torch.ones(16),
        discount=torch.zeros(16),
    )
    update: Any = build_update(policy, config)
    losses = [update.update(batch)["loss"] for _ in range(60)]
    assert losses[-1] < 0.9 * losses[0]


def test_the_network_that_is_built_in_says_the_same() -> None:
    """Written as a module of one's own it acts alike, also when returns have another scale."""
    vector = Box(shape=(3,))
    _, _, own = policy_of("Towers", {"name": "ppo"}, Discrete(n=4), seen=vector)
    config = PolicyConfig.model_validate({"network": {"hidden": [5]}})
    ours: Any = build(Interface.of(Agent(name="a", observation=vector, action=Discrete(n=4)), config), config, 1)
    towers: Any = next(one for one in own.modules() if isinstance(one, Towers))
    with torch.no_grad():
        ours.layer_0_weight.copy_(torch.cat([towers.policy[0].weight, towers.value[0].weight]).T)
        ours.layer_0_bias.copy_(torch.cat([towers.policy[0].bias, towers.value[0].bias]))
        for mine, its in ((ours.policy_weight, towers.policy[2].weight), (ours.value_weight, towers.value[2].weight)):
            mine.copy_(its.T)
        ours.policy_bias.copy_(towers.policy[2].bias)
        ours.value_bias.copy_(towers.value[2].bias)
    seen = torch.randn(50, 3)
    for _ in range(2):
        mine, its = (policy.act(seen, np.random.default_rng(3)) for policy in (ours, own))
        assert (mine["action"] == its["action"]).all()
        for name in ("log_probability", "value"):
            np.testing.assert_allclose(mine[name], its[name], atol=1e-4)
        value = its["value"]
        for policy in (ours, own):
            policy.update_returns(torch.linspace(5, 300, 40))
    np.testing.assert_allclose(own.act(seen, np.random.default_rng(3))["value"], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("masked", [False, True])
def test_actions_come_as_often_as_its_distribution_says(masked: bool) -> None:
    interface, _, policy = policy_of("Pair", {"name": "ppo"}, PAIR, masked)
    count = 20_000
    seen = rows(interface, 1).expand(count, -1)
    legal = np.tile([[True, False, True, True, False]], (count, 1)) if masked else None
    acted = policy.act(seen, np.random.default_rng(0), legal=legal)
    assert policy.log_std is None
    for pair in product(range(2), range(3)):
        here = (acted["action"] == pair).all(1)
        chance = float(np.exp(acted["log_probability"][here][:1]).sum())
        assert abs(here.mean() - chance) < 4 * 0.5 / np.sqrt(count), pair
        assert here.any() or masked
    assert not masked or (legal is not None and {*map(tuple, acted["action"])} == {(0, 0), (0, 1)})


def test_what_is_learned_is_what_was_acted_by() -> None:
    interface, _, policy = policy_of("Pair", {"name": "ppo"}, PAIR)
    seen = rows(interface, 9)
    acted = policy.act(seen, np.random.default_rng(0))
    outputs, values = policy(policy.inputs(seen))
    chance, entropy = policy.heads.log_prob_and_entropy(outputs, None, torch.from_numpy(acted["action"]), None, None)
    np.testing.assert_allclose(chance.detach(), acted["log_probability"], atol=1e-6)
    np.testing.assert_allclose(policy.denormalize(values).detach(), acted["value"], atol=1e-6)
    assert (entropy <= np.log(6) + 1e-6).all()
    (chance.sum() + values.sum()).backward()
    assert all(one.grad is not None for name, one in policy.named_parameters() if "value_" not in name)


@pytest.mark.parametrize(("name", "action"), [("Net", PAIR), ("Pair", PAIR), ("Net", Box(shape=(2,)))])
def test_outside_it_does_what_it_does_without_exploring(name: str, action: Any) -> None:
    interface, _, policy = policy_of(name, {"name": "ppo"}, action, masked=action is PAIR)
    seen = rows(interface, 7)
    legal = np.tile([[False, True, True, False, True]], (7, 1)) if action is PAIR else None
    acted = policy.act(seen, np.random.default_rng(0), greedy=True, legal=legal)
    module = ExportedModule(interface, policy, 1, state_size(policy))
    columns = interface.observation_encoding.leaves(seen.numpy())
    given = [torch.from_numpy(np.ascontiguousarray(columns[name])) for name in columns]
    given += [] if legal is None else [torch.from_numpy(legal)]
    told = module.describe(tuple(given))
    np.testing.assert_array_equal(told["action"].detach(), acted["action"] if action is PAIR else acted["amount"])
    np.testing.assert_allclose(told["value"].detach(), acted["value"], atol=1e-6)


class Nameless(Net):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        return super().forward(seen)["policy"]


class Short(Net):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        return {"policy": super().forward(seen)["policy"]}


class Long(Net):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        found = super().forward(seen)
        return found | {"more": found["policy"]}


class Idle(Net):
    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.unused = nn.Linear(2, 2)


class Centred(Net):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        found = super().forward(seen)
        return found | {"policy": found["policy"] - found["policy"].mean(0)}


class Failing(Net):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        return super().forward({**seen, "speed": seen["speed"].T})


class Unbuilt(Net):
    def __init__(self, observation: ObservationSpec) -> None:
        super().__init__(observation, ActionSpec((), 0, False), {})


class Counting(Pair):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        found = super().forward(seen)
        return found | {"number": torch.arange(len(found["value"]))}


class Valueless(Pair):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        found = super().forward(seen)
        return {"first": found["first"], "hidden": found["hidden"]}


class Reserved(Pair):
    def forward(self, seen: dict[str, Tensor]) -> Any:
        found = super().forward(seen)
        return found | {"legal": found["first"]}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Nameless", "network_gives_wrong_shape"),
        ("Short", "network_gives_wrong_shape"),
        ("Long", "network_gives_wrong_shape"),
        ("Valueless", "network_gives_wrong_shape"),
        ("Reserved", "network_gives_wrong_shape"),
        ("Counting", "network_gives_wrong_shape"),
        ("Idle", "network_parameters_without_gradient"),
        ("Centred", "network_rows_not_independent"),
        ("Failing", "network_failed"),
        ("Unbuilt", "network_not_built"),
        ("Missing", "name_not_in_module"),
    ],
)
def test_what_would_go_wrong_later_is_told_before(name: str, kind: str) -> None:
    with raises(ConfigurationError, kind):
        policy_of(name, {"name": "ppo"}, PAIR)


class Odd(Chained):
    def sample(self, uniform: Tensor) -> Any:
        return super().sample(uniform)[0]


class Random(Chained):
    def sample(self, uniform: Tensor) -> Any:
        return super().sample(torch.rand_like(uniform))


class Beyond(Chained):
    def mode(self) -> Any:
        choices, amounts = super().mode()
        return choices + 2, amounts


class Unequal(Chained):
    def log_prob(self, choices: Tensor, amounts: Tensor) -> Any:
        return super().log_prob(choices, amounts) + 0.1


class Detached(Chained):
    def log_prob(self, choices: Tensor, amounts: Tensor) -> Any:
        return super().log_prob(choices, amounts).detach()


class Crossed(Chained):
    def entropy(self) -> Any:
        return super().entropy() - self.hidden.mean()


class Evenly(Chained):
    def sample(self, uniform: Tensor) -> Any:
        first, second = ((uniform[:, one] * (one + 2)).long() for one in (0, 1))
        return torch.stack([first, second], 1), uniform.new_zeros(len(first), 0)


class Overwriting(Chained):
    def __init__(self, module: Pair, outputs: dict[str, Tensor]) -> None:
        super().__init__(module, outputs)
        outputs["first"].detach().add_(1)


class Leaking(Chained):
    def log(self, logits: Tensor, legal: Tensor) -> Tensor:
        return logits.masked_fill(~legal, -11).log_softmax(-1)


class Whole(Chained):
    def entropy(self) -> Any:
        return super().entropy().sum()


class Broken(Chained):
    def log_prob(self, choices: Tensor, amounts: Tensor) -> Any:
        return self.first @ amounts


class Unmasked(Chained):
    def __init__(self, module: Pair, outputs: dict[str, Tensor]) -> None:
        outputs.pop("legal", None)
        super().__init__(module, outputs)

    def mode(self) -> Any:
        choices, amounts = super().mode()
        return torch.ones_like(choices), amounts


class Unheeding(Unmasked):
    mode = Chained.mode


@pytest.mark.parametrize(
    ("kind", "said", "part"),
    [
        (Odd, "distribution_invalid", "sample"),
        (Random, "distribution_invalid", "sample"),
        (Beyond, "distribution_invalid", "mode"),
        (Unequal, "distribution_invalid", "log_prob"),
        (Whole, "distribution_invalid", "entropy"),
        (Detached, "distribution_invalid", "log_prob"),
        (Evenly, "distribution_invalid", "sample"),
        (Crossed, "network_rows_not_independent", "distribution"),
        (Overwriting, "network_modifies_input", None),
        (Broken, "network_failed", None),
        (Unmasked, "distribution_breaks_mask", None),
        (Unheeding, "distribution_breaks_mask", None),
        (Leaking, "distribution_breaks_mask", None),
    ],
)
def test_a_distribution_is_tried_before_anything_is_learned(
    kind: Any, said: str, part: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Pair, "KIND", kind)
    with raises(ConfigurationError, said, **({"part": part} if part else {})):
        policy_of("Pair", {"name": "ppo"}, PAIR, masked=kind is not Evenly)


@pytest.mark.parametrize(
    ("spoil", "kind", "part"),
    [
        (lambda net: net.layer.bias.data.fill_(torch.nan), "network_not_finite", None),
        (lambda net: setattr(net, "KIND", Unmasked), "distribution_breaks_mask", None),
        (lambda net: setattr(net, "KIND", Beyond), "distribution_invalid", "mode"),
        (lambda net: setattr(net, "KIND", Broken), "network_failed", None),
    ],
)
def test_what_goes_wrong_in_a_run_is_told_before_a_world_is_given_it(spoil: Any, kind: str, part: str | None) -> None:
    interface, _, policy = policy_of("Pair", {"name": "ppo"}, PAIR, masked=True)
    spoil(next(one for one in policy.modules() if isinstance(one, Pair)))
    legal = np.tile([[True, False, True, False, False]], (5, 1))
    with raises(ConfigurationError, kind, **({"part": part} if part else {})):
        policy.act(rows(interface, 5), np.random.default_rng(0), greedy=True, legal=legal)


@pytest.mark.parametrize(
    ("algorithm", "kind", "key"),
    [
        ({"name": "sac"}, "own_network_refused", "network.entry"),
        ({"name": "iqn"}, "own_network_refused", "network.entry"),
        ({"name": "vdn"}, "own_network_refused", "network.entry"),
        ({"name": "ppo", "central_critic": True}, "own_network_conflict", "algorithm.central_critic"),
        ({"name": "dqn", "dueling": True}, "own_network_conflict", "algorithm.dueling"),
        ({"name": "c51", "noisy": True}, "own_network_conflict", "algorithm.noisy"),
        ({"name": "dqn", "burn_in": 2}, "burn_in_without_core", "algorithm.burn_in"),
    ],
)
def test_what_makes_other_networks_is_refused(algorithm: Any, kind: str, key: str) -> None:
    with raises(ValueError, kind, key=key):
        PolicyConfig.model_validate({"algorithm": algorithm, "network": {"entry": "a:B"}})


def run_with(common: dict[str, Any], own: dict[str, Any]) -> Any:
    """The network of a policy that has one of its `own`."""
    policy = {"algorithm": {"name": "dqn"}, "network": common}
    run = parse_run({"environment": {"id": "rendezvous"}, "policy": policy, "policies": {"agent_0": {"network": own}}})
    return run.policy_config("agent_0").network


def test_a_policy_of_its_own_has_a_whole_network_or_parts_and_not_both() -> None:
    assert run_with({"hidden": [8]}, {"entry": "a:B", "size": 3}).model_dump() == {"entry": "a:B", "size": 3}
    assert run_with({"entry": "a:B", "size": 3}, {"size": 4}).model_dump() == {"entry": "a:B", "size": 4}
    assert run_with({"entry": "a:B", "size": 3}, {"entry": "a:C"}).model_dump() == {"entry": "a:C"}
    for own in ({"hidden": [9]}, {"entry": None, "hidden": [9]}):
        found = run_with({"entry": "a:B", "size": 3}, own)
        assert (type(found), found.hidden) == (Network, (9,))
    assert run_with({"hidden": [8], "core": "lstm"}, {"core": None}).core is None


def test_keys_of_parts_beside_an_entry_that_does_not_take_them_are_told() -> None:
    network = {"entry": f"{__name__}:Net", "hidden": [8], "width": 3}
    config = PolicyConfig.model_validate({"network": network})
    interface = Interface.of(Agent(name="a", observation=SEEN, action=PAIR), config)
    with raises(ConfigurationError, "own_network_with_parts", found="hidden"):
        build(interface, config, 0)
