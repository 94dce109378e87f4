"""What is frozen stays to the bit, for as long as is said, and then moves by moments of now."""

from __future__ import annotations

import pytest
import torch

from protocol.config.run import PolicyConfig
from protocol.config.trainable import Freeze, Start
from tests.workers.policies.exports import PLAIN, alone
from workers.algorithms.common.adam import FlatAdam
from workers.algorithms.common.held_parts import HeldParts
from workers.algorithms.group_update import graphable
from workers.algorithms.ppo import PPOUpdate
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.networks.actor_critic import ActorCritic
from workers.runtime.torch_setup import Precision


def made(**network: object) -> ActorCritic:
    config = PolicyConfig.model_validate(
        {"algorithm": {"name": "ppo", "normalize_observation": True}, "network": {"hidden": [8], **network}}
    )
    world = alone(PLAIN).deployed()
    policy = build(Interface.at(world, world.places[0], config), config, 0)
    assert isinstance(policy, ActorCritic)
    policy.returns.mean.fill_(0.3)
    policy.returns.variance.fill_(2.7)
    with torch.no_grad():
        policy.value_bias.fill_(0.1)
    return policy


def step(policy: ActorCritic, optimizer: FlatAdam) -> dict[str, bool]:
    """Which weights a step and new statistics change."""
    before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
    loss = sum((one.square().sum() + one.sum() for one in policy.parameters()), torch.zeros(()))
    optimizer.backward(loss, 1.0)
    optimizer.step(0.01)
    policy.update_returns(torch.arange(5.0) + policy.returns.count.item())
    policy.observe(torch.arange(12.0).reshape(2, 3, 2))
    return {name: not torch.equal(tensor, before[name]) for name, tensor in policy.state_dict().items()}


def frozen(freeze: Freeze | None) -> PolicyConfig:
    return PolicyConfig(start=None if freeze is None else Start(path="x", freeze=freeze))


def moved(freeze: Freeze | None, rows: int) -> set[str]:
    policy = made()
    optimizer = FlatAdam(policy)
    HeldParts(policy, optimizer, frozen(freeze)).hold(rows)
    return {name.partition(".")[0] for name, changed in step(policy, optimizer).items() if changed}


EVERY = {"layer_0_weight", "layer_0_bias", "policy_weight", "policy_bias", "value_weight", "value_bias"}
EVERY |= {"returns", "observations"}


def test_what_is_frozen_stays_to_the_bit_and_all_else_moves() -> None:
    assert moved(None, 0) == EVERY
    assert moved(Freeze(only=("policy",)), 10**9) == EVERY - {"policy_weight", "policy_bias"}
    assert moved(Freeze(only=("normalizer",)), 0) == EVERY - {"returns", "observations"}
    assert moved(Freeze(only=("hidden", "heads")), 0) == {"observations"}


def test_statistics_of_returns_stay_with_a_value_head_that_they_would_rescale() -> None:
    assert moved(Freeze(only=("value",)), 0) == EVERY - {"value_weight", "value_bias", "returns"}


def test_what_is_frozen_for_some_steps_moves_from_there_on() -> None:
    freeze = Freeze(only=("hidden",), steps=100)
    assert moved(freeze, 99) == EVERY - {"layer_0_weight", "layer_0_bias"}
    assert moved(freeze, 100) == EVERY


def test_who_is_frozen_makes_no_steps_with_others_until_it_thaws() -> None:
    """Nor are they recorded or compiled: those know nothing of what stays."""
    policy = made()
    update = PPOUpdate(policy, frozen(Freeze(only=("heads",), steps=5)))
    update.arithmetic = Precision(compiled=True)
    held = HeldParts(policy, update.optimizer, update.config)
    for rows, joins in ((4, False), (5, True)):
        held.hold(rows)
        assert graphable(update) is joins


def test_what_thaws_moves_as_far_as_what_was_never_frozen() -> None:
    """Its moments went on: with those of nothing, its first steps would be several times as long."""
    policy = made()
    optimizer = FlatAdam(policy)
    held = HeldParts(policy, optimizer, frozen(Freeze(only=("hidden",), steps=300)))
    for number in range(310):
        held.hold(number)
        before = {name: tensor.clone() for name, tensor in policy.state_dict().items()}
        optimizer.backward(sum((one.sum() for one in policy.parameters()), torch.zeros(())), 1e9)
        optimizer.step(0.01)
    far = {name: float((tensor - before[name]).abs().max()) for name, tensor in policy.state_dict().items()}
    assert far["layer_0_bias"] == pytest.approx(far["policy_bias"], rel=0.01)
