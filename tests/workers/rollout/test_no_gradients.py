"""Acting computes no gradients, in evaluation mode, and changes nothing of the policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from protocol.config.network import CellCore
from protocol.config.run import IQN, PPO, SAC, Network, PolicyConfig
from protocol.spaces import Agent, Box, Discrete
from workers.policies.interface import Interface
from workers.rollout.acting_policy import ActingPolicy

CHOICE, AMOUNT = Discrete(n=3), Box(shape=(2,), low=-1, high=1)


@pytest.mark.parametrize(
    ("algorithm", "action", "network"),
    [
        (PPO(), AMOUNT, Network(hidden=(8,), core=CellCore(name="lstm", size=4))),
        (IQN(), CHOICE, Network(hidden=(8,))),
        (SAC(), AMOUNT, Network(hidden=(8,))),
    ],
    ids=["lstm", "iqn", "sac"],
)
def test_acting_takes_no_gradients_and_runs_in_evaluation_mode_D6(
    algorithm: Any, action: Any, network: Network
) -> None:
    config = PolicyConfig(algorithm=algorithm, model_config=network)
    performer = ActingPolicy(Interface.of(Agent(name="a", observation=Box(shape=(3,)), action=action)), config)
    seen: list[tuple[bool, bool]] = []
    for module in performer._modules:
        for part in module.modules():
            if not list(part.children()):
                part.register_forward_pre_hook(lambda it, _: seen.append((torch.is_grad_enabled(), it.training)))
        assert not any(part.training for part in module.modules())
    before = [flat.bytes_view().copy() for flat in performer._flat]
    noise: Any = np.random.default_rng(0)
    state = np.zeros((4, performer.state), np.float32) if performer.state else None
    for _ in range(2):
        done = performer.act(np.ones((4, 3), np.float32), noise, state=state)
        assert all(isinstance(column, np.ndarray) for column in done.values())
    assert not any(gradients or training for gradients, training in seen)
    for module in performer._modules:
        assert all(parameter.grad is None for parameter in module.parameters())
    assert all(np.array_equal(was, flat.bytes_view()) for was, flat in zip(before, performer._flat, strict=True))
