"""Acting on another device says what acting here says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.run import PolicyConfig, parse_run
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Discrete
from protocol.weights.manifest import Version
from tests.faults import raises
from workers.learning.device import acting_device
from workers.policies.interface import Interface
from workers.rollout.acting_policy import ActingPolicy

AGENT = Agent(name="a", observation=Box(shape=(4,)), action=Discrete(n=5))
NETWORKS: list[dict[str, Any]] = [
    {},
    {"share_layers": True},
    {"core": {"name": "lstm", "size": 6}},
    {"core": "gru"},
]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_policy_does_on_a_gpu_what_it_does_here(cuda: torch.device, network: dict[str, Any]) -> None:
    does_the_same(cuda, network)


@pytest.mark.parametrize("network", NETWORKS[::2])
def test_where_no_graph_can_be_recorded_it_does_so_as_well(network: dict[str, Any]) -> None:
    does_the_same(torch.device("cpu"), network)


def does_the_same(device: torch.device, network: dict[str, Any]) -> None:
    """As here, with new weights each time, and more and fewer rows."""
    settings = {
        "algorithm": {"name": "ppo", "normalize_observation": True},
        "model_config": {"hidden": (8,), **network},
    }
    config = PolicyConfig.model_validate(settings)
    here, there = (ActingPolicy(Interface.of(AGENT), config, 0, where) for where in (None, device))
    noise = np.random.default_rng(0)
    for turn, rows in enumerate((3, 7, 3, 3, 3, 7, 7, 7)):
        for performer in (here, there):
            performer.spare[:] = performer._flat[performer._live].bytes_view()
            weights = performer._flat[1 - performer._live].parameters
            weights += torch.randn(weights.shape, generator=torch.Generator().manual_seed(turn))
            performer.adopt(lambda *_, turn=turn: Version(1, turn + 1))
        seen = noise.standard_normal((rows, 4)).astype(np.float32)
        legal = noise.random((rows, 5)) < 0.8
        legal[:, 0] = True
        state = noise.random((rows, here.state), np.float32) if here.state else None
        expected, found = (
            performer.act(seen, np.random.default_rng(turn), legal=legal, state=state) for performer in (here, there)
        )
        assert expected.keys() == found.keys()
        np.testing.assert_array_equal(expected["action"], found["action"])
        for name in expected:
            np.testing.assert_allclose(expected[name], found[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_gpu_to_act_on_is_taken_in_turn_or_refused_E9(monkeypatch: pytest.MonkeyPatch) -> None:
    assert acting_device(parse_run({}), 0) is None
    run = parse_run({"act_device": "cuda", "device_per_agent": True})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert [str(acting_device(run, index)) for index in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with raises(ConfigurationError, "acting_device_not_available", key="act_device", value="cuda"):
        acting_device(run, 0)
    with raises(ConfigurationError, "lockstep_setting_forbidden", setting="act_device: cuda", key="schedule"):
        parse_run({"act_device": "cuda", "schedule": "lockstep"})
