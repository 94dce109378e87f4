"""Acting by numpy alone says what torch says, to the bit where nothing is remembered."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.network import CellCore
from protocol.config.run import IQN, PPO, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete, MultiDiscrete
from workers.policies.backends.numpy_actor import numpy_actor
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.rollout.acting_policy import ActingPolicy

ACTIONS = (Discrete(n=5), MultiDiscrete(nvec=(3, 4)), Box(shape=(3,), low=-1.0, high=1.0))
SHAPES: tuple[tuple[int, ...], ...] = ((), (16,), (64, 64), (48, 32, 24))


def interface(action: Any = ACTIONS[0], observation: Box = Box(shape=(7,))) -> Interface:  # noqa: B008
    return Interface.of(Agent(name="one", observation=observation, action=action))


@pytest.mark.parametrize(
    ("normalize", "activation", "shared"),
    [(False, "tanh", False), (True, "relu", False), (True, "tanh", False), (False, "tanh", True)],
)
def test_numpy_acts_as_torch_does_to_the_bit(normalize: bool, activation: Any, shared: bool) -> None:
    """Of any shape, kind of action and number of rows; with masks, greedily, and after new weights came."""
    for hidden, action in product(SHAPES, ACTIONS):
        network = Network(hidden=hidden, activation=activation, share_layers=shared)
        config = PolicyConfig(algorithm=PPO(normalize_observation=normalize), model_config=network)
        seen = interface(action, Box(shape=(3, 5), dtype="uint8") if len(hidden) == 1 else Box(shape=(7,)))
        module = build(seen, config, 3).eval()
        assert isinstance(module, ActorCritic)
        host = numpy_actor(module)
        assert host is not None
        rng = np.random.default_rng(0)
        for rows in (1, 2, 7, 33, 1):
            with torch.no_grad():
                for parameter in module.parameters():
                    parameter.add_(0.01)
                module.returns.update(torch.randn(rows + 1) * 7 + 4)
                if module.observations is not None:
                    module.observations.update(torch.randn(9, module.features) * 3 + 2)
            x = (rng.normal(size=(rows, *seen.observation_encoding.shape)) * 4).astype(seen.observation_encoding.dtype)
            legal = np.arange(sum(seen.action_encoding.head_sizes)) != 1
            masks = [None, np.tile(legal, (rows, 1))] if len(legal) else [None]
            for greedy, mask in product((False, True), masks):
                expected = module.act(torch.from_numpy(x), np.random.default_rng(1), greedy=greedy, legal=mask)
                found = host.act(x, np.random.default_rng(1), greedy, mask)
                assert found.keys() == expected.keys()
                for name, array in expected.items():
                    assert found[name].dtype == array.dtype
                    np.testing.assert_array_equal(found[name], array, f"{hidden} {action} {rows} {name}")


@pytest.mark.parametrize("kind", ["lstm", "gru"])
@pytest.mark.parametrize(
    ("dtype", "action", "more"),
    [
        ("float32", ACTIONS[0], {"hidden": (16,), "share_layers": True}),
        ("uint8", ACTIONS[1], {"hidden": ()}),
        ("float32", ACTIONS[2], {"hidden": (8, 8), "activation": "relu"}),
    ],
)
def test_numpy_remembers_as_torch_does(kind: Any, dtype: Any, action: Any, more: dict[str, Any]) -> None:
    """To within the order of sums, turn after turn, after new weights came, of more and fewer rows; with masks and
    greedily."""
    network = Network(core=CellCore(name=kind, size=6), **more)
    config = PolicyConfig(algorithm=PPO(normalize_observation=dtype == "uint8"), model_config=network)
    seen = interface(action, Box(shape=(3, 5), dtype=dtype))
    module = build(seen, config, 3).eval()
    assert isinstance(module, ActorCritic)
    host, rng = numpy_actor(module), np.random.default_rng(0)
    assert host is not None
    assert module.core is not None
    for rows in (1, 7, 256, 257, 1):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(rows)) / 4)
            if module.observations is not None:
                module.observations.update(torch.randn(9, module.features) * 3 + 2)
        before = rng.normal(size=(rows, module.core.state_size)).astype(np.float32)
        states = [before.copy(), before.copy()]
        for turn in range(4):
            x = (rng.random((rows, 3, 5)) * 4).astype(dtype)
            legal = (
                np.tile(np.arange(sum(seen.action_encoding.head_sizes)) != 1, (rows, 1))
                if turn % 2 and seen.action_encoding.head_sizes
                else None
            )
            noise, greedy = np.random.default_rng(turn), turn == 3
            expected = module.act(torch.from_numpy(x), noise, greedy=greedy, legal=legal, state=states[0])
            given = states[1].copy()
            found = host.act(x, np.random.default_rng(turn), greedy, legal, states[1])
            np.testing.assert_array_equal(given, states[1])
            assert found.keys() == expected.keys()
            np.testing.assert_array_equal(found["action"], expected["action"])
            for name, array in expected.items():
                assert found[name].dtype == array.dtype
                np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
            states = [expected["state"], found["state"]]


OWN = "tests.workers.policies.encoders.test_own_network"


@pytest.mark.parametrize(
    "network",
    [
        {"encoder": {"name": "mlp", "hidden": [9]}, "hidden": [8, 8]},
        {"encoder": {"name": "mlp", "hidden": [9]}, "hidden": []},
        {"encoder": {"name": "mlp", "hidden": [9]}, "core": "gru"},
        {"entry": f"{OWN}:Towers"},
    ],
    ids=["encoder", "nothing behind it", "memory behind it", "whole network"],
)
def test_numpy_goes_on_behind_what_torch_reads(network: dict[str, Any]) -> None:
    """To the bit where nothing is remembered; after new weights came, with masks and greedily."""
    config = PolicyConfig.model_validate({"network": network, "algorithm": {"name": "ppo"}})
    seen = Interface.of(Agent(name="one", observation=Box(shape=(7,)), action=Discrete(n=5)), config)
    module = build(seen, config, 3).eval()
    assert isinstance(module, ActorCritic)
    assert module.encoder is not None
    host, rng = numpy_actor(module), np.random.default_rng(0)
    assert host is not None
    size = 0 if module.core is None else module.core.state_size
    for rows, greedy in product((1, 7, 33), (False, True)):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.01)
            module.returns.update(torch.randn(rows + 1) * 7 + 4)
        module.observe(torch.randn(9, 7) * 3 + 2)
        x, mask = rng.normal(size=(rows, 7)).astype(np.float32), np.tile(np.arange(5) != 1, (rows, 1))
        state = rng.normal(size=(rows, size)).astype(np.float32) if size else None
        expected = module.act(torch.from_numpy(x), np.random.default_rng(1), greedy, mask, state)
        found = host.act(x, np.random.default_rng(1), greedy, mask, state)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, rtol=1e-4 if size else 0, atol=1e-5 if size else 0)


def test_what_numpy_cannot_is_left_to_torch() -> None:
    """Policies that do what they value most, those whose value only learners know, and those with another memory."""
    for algorithm in (IQN(), PPO(central_critic=True)):
        assert numpy_actor(build(interface(), PolicyConfig(algorithm=algorithm), 0)) is None
    attention = PolicyConfig.model_validate({"network": {"core": "attention"}})
    assert numpy_actor(build(interface(), attention, 0)) is None


@pytest.mark.parametrize("kind", [None, "lstm", "gru"])
def test_what_was_acted_stays_when_one_acts_again(kind: Any) -> None:
    config = PolicyConfig.model_validate({"network": {"core": kind}})
    performer = ActingPolicy(interface(), config)
    state = np.ones((3, performer.state), np.float32) if performer.state else None
    first = performer.act(np.ones((3, 7), np.float32), np.random.default_rng(0), state=state)
    kept = {name: array.copy() for name, array in first.items()}
    performer.act(np.zeros((3, 7), np.float32), np.random.default_rng(1), state=state)
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)
