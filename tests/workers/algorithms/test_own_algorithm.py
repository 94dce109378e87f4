"""An algorithm of the user's own: what it is given, and what is told of it before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from pydantic import BaseModel, Field
from torch import Tensor

from protocol.config.run import PolicyConfig
from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Box, Component, Dict, Discrete, Observation, Space
from tests.faults import raises
from tests.workers.algorithms.test_ppo import B, experience, setting
from workers.algorithms.build import build_own, try_algorithm
from workers.algorithms.common.batches import TransitionBatch
from workers.algorithms.common.loss import Loss
from workers.algorithms.common.time_major import Minibatch, to_time_major
from workers.algorithms.off_policy import ReplayAlgorithm
from workers.algorithms.ppo import PPOUpdate
from workers.algorithms.stream import StreamAlgorithm
from workers.policies.build import build
from workers.policies.interface import Interface
from workers.policies.tensors.scratch import ScratchBuffers

KEY = "policy.algorithm.entry"
SEEN = Dict(spaces={"image": Box(shape=(6, 6, 1), dtype="uint8"), "speed": Box(shape=(2,))})


class Keys(BaseModel):
    """Two keys of one's own."""

    weight: float = Field(default=1.0, gt=0)
    often: int = 2


class Streaming(StreamAlgorithm):
    """A good one: advantage actor-critic."""

    Config = Keys

    def loss(self, policy: Any, batch: Any) -> Any:
        rows = self.evaluate(policy, batch)
        found = self.advantages(batch, rows)
        value = batch.mean(self.value_error(policy, batch, rows, found.target))
        total = value - batch.mean(rows.log_probability * found.advantage)
        return Loss(total, {"value_loss": value}, found.priority, found.target)


class Replaying(ReplayAlgorithm):
    """A good one on any networks of values: their means, towards the reward."""

    Config = Keys

    def loss(self, policy: Any, batch: Any) -> Any:
        error = policy.means(policy.inputs(batch.observation)).mean(-1) - batch.reward
        return Loss(batch.mean(error.square()), {}, error.abs())


class Squashed(ReplayAlgorithm):
    """A good one on the networks of sac."""

    def loss(self, policy: Any, batch: Any) -> Any:
        assert batch.noise.shape == (2, len(batch.action), policy.amounts)
        value = policy.critics(policy.inputs(batch.observation), batch.amount)
        return Loss((value - batch.reward).square().mean(), {"value": value.mean()})


class Different(Streaming):
    """A base of bad ones, which change what the good one says."""

    changed: Callable[[Loss], Any]

    def loss(self, policy: Any, batch: Any) -> Any:
        return type(self).changed(super().loss(policy, batch))


class Floating(Different):
    changed = staticmethod(lambda loss: loss.total)


class Listed(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics=[loss.total]))


class Rows(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total.expand(3)))


class Number(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"a": 1.0}))


class Long(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={"a": torch.ones(1)}))


class Lost(Different):
    changed = staticmethod(lambda loss: loss._replace(priorities=torch.ones(7)))


class Aimless(Different):
    changed = staticmethod(lambda loss: loss._replace(targets=torch.ones(7)))


class Varying(Different):
    changed = staticmethod(lambda loss: loss._replace(metrics={str(loss.total.item()): loss.total}))


class Flat(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total.detach()))


class Endless(Different):
    changed = staticmethod(lambda loss: loss._replace(total=loss.total / 0))


class Failing(Streaming):
    def loss(self, policy: Any, batch: Any) -> Any:
        return batch.nothing


class Lossless(StreamAlgorithm):
    """Nothing is said of what it descends."""


class Unbuilt(Streaming):
    def __init__(self, *given: Any) -> None:
        raise ValueError("no")


class Taking(Streaming):
    """A key of ppo's."""

    class Config(Keys):
        clip: float = 0.3


def no_class() -> None:
    """A function."""


def policy_config(entry: str, name: str, network: dict[str, Any] | None = None, **keys: Any) -> PolicyConfig:
    algorithm = {"name": name, "entry": f"{__name__}:{entry}", **keys}
    return PolicyConfig.model_validate({"algorithm": algorithm, "network": {"hidden": [4], **(network or {})}})


def tried(
    entry: str, name: str = "ppo", seen: Any = SEEN, action: Space | None = None, masked: bool = False, **keys: Any
) -> str:
    """What is said of it."""
    config = policy_config(entry, name, **keys)
    action = action or Discrete(n=3)
    agent = Agent(name="a", observation=seen, action=action, action_mask=masked)
    return try_algorithm(Interface.of(agent, config), config)


HIDDEN = Observation(
    components={
        "seen": Component(space=Box(shape=(2,))),
        "truth": Component(space=Box(shape=(2,)), evaluation_only=True),
    }
)
AMOUNTS = Box(shape=(2,), low=-1, high=1)


@pytest.mark.parametrize(
    ("entry", "name", "more"),
    [
        ("Streaming", "ppo", {"priority_alpha": 0.5, "value_clip": 0.2}),
        ("Streaming", "impala", {"network": {"recurrent": "lstm", "encoder": "mlp"}}),
        ("Streaming", "ppo", {"action": AMOUNTS, "seen": Box(shape=(3,))}),
        ("Streaming", "ppo", {"central_critic": True, "seen": HIDDEN, "masked": True, "value_clip": 0.2}),
        ("Replaying", "dqn", {"priority_alpha": 0.5, "frames": 2}),
        ("Replaying", "iqn", {"noisy": True, "masked": True}),
        ("Squashed", "sac", {"action": AMOUNTS}),
    ],
)
def test_it_makes_an_update_of_all_kinds_of_rows(entry: str, name: str, more: dict[str, Any]) -> None:
    assert tried(entry, name, **more).startswith(f"{__name__}:{entry} on {name}")


def test_its_keys_are_its_settings() -> None:
    config = policy_config("Streaming", "ppo", weight=0.5)
    policy = build(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config, 0)
    settings = build_own(policy, config, 0).settings
    assert isinstance(settings, Keys)
    assert dict(settings) == {"weight": 0.5, "often": 2}
    assert tried("Streaming", weight=0.5).endswith("on ppo weight=0.5 often=2")


@pytest.mark.parametrize(
    ("entry", "kind", "facts"),
    [
        ("Missing", "name_not_in_module", {}),
        ("no_class", "algorithm_of_other_base", {"expected": "StreamAlgorithm", "hint": ""}),
        ("Replaying", "algorithm_of_other_base", {"expected": "StreamAlgorithm", "algorithm": "ppo"}),
        ("Lossless", "algorithm_not_built", {}),
        ("Unbuilt", "algorithm_not_built", {"function": "__init__"}),
        ("Failing", "loss_failed", {"function": "loss", "file": __file__}),
        ("Floating", "loss_not_a_loss", {"found": "Tensor"}),
        ("Listed", "loss_not_a_loss", {"found": "list"}),
        ("Rows", "loss_shape_wrong", {"field": "total", "found": "[3]"}),
        ("Number", "loss_shape_wrong", {"field": "metrics['a']", "found": "float"}),
        ("Long", "loss_shape_wrong", {"field": "metrics['a']", "found": "[1]"}),
        ("Lost", "loss_shape_wrong", {"field": "priorities", "found": "[7]"}),
        ("Aimless", "loss_shape_wrong", {"field": "targets", "found": "[7]"}),
        ("Varying", "loss_shape_wrong", {"field": "metrics"}),
        ("Flat", "loss_without_gradient", {}),
        ("Endless", "loss_not_finite", {}),
    ],
)
def test_what_would_go_wrong_later_is_told_before(entry: str, kind: str, facts: dict[str, Any]) -> None:
    with raises(ConfigurationError, kind, key=KEY, value=f"{__name__}:{entry}", **facts):
        tried(entry)


def test_a_base_that_does_not_fit_says_which_names_do() -> None:
    with raises(ConfigurationError, "algorithm_of_other_base", expected="ReplayAlgorithm") as caught:
        tried("Streaming", "dqn")
    assert "ppo, impala" in str(caught.value)


def test_a_module_that_cannot_be_imported_is_told() -> None:
    algorithm = {"entry": "tests.flows.nowhere:Mine"}
    config = PolicyConfig.model_validate({"algorithm": algorithm})
    with raises(ConfigurationError, "module_not_found", key=KEY):
        try_algorithm(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config)


@pytest.mark.parametrize(
    ("keys", "kind", "key"),
    [
        ({"weigth": 1}, "unknown_key", "policy.algorithm.weigth"),
        ({"weight": 0}, "value_invalid", "policy.algorithm.weight"),
        ({"often": "x"}, "value_invalid", "policy.algorithm.often"),
    ],
)
def test_a_key_that_its_config_refuses_is_named(keys: dict[str, Any], kind: str, key: str) -> None:
    with raises(ConfigurationError, kind, key=key):
        tried("Streaming", **keys)


def test_a_key_of_both_is_refused() -> None:
    with raises(ConfigurationError, "algorithm_key_taken", key="policy.algorithm.clip"):
        tried("Taking")


def test_priorities_are_missed_where_rows_are_drawn_by_them() -> None:
    with raises(ConfigurationError, "loss_shape_wrong", field="priorities", found="NoneType"):
        tried("Squashed", "sac", action=AMOUNTS, priority_alpha=0.5)


def test_nothing_is_imported_where_no_class_is_named() -> None:
    config = PolicyConfig()
    assert try_algorithm(Interface.of(Agent(name="a", observation=SEEN, action=Discrete(n=3)), config), config) == ""


def test_means_are_over_real_rows_and_by_weights() -> None:
    zeros = torch.zeros(2)
    batch = TransitionBatch(zeros, zeros.long(), zeros, zeros, zeros, weight=torch.tensor([1.0, 0.5]))
    losses: Tensor = torch.tensor([2.0, 4.0])
    assert batch.mean(losses).item() == 2.0


def test_a_loss_may_look_at_its_rows_twice() -> None:
    """The policy computes in memory that it uses again; both looks have their gradients."""
    policy, config = setting()
    update = PPOUpdate(policy, config)
    first, second = (
        to_time_major(experience(policy, seed)).minibatch(torch.arange(B), ScratchBuffers()) for seed in range(2)
    )

    def gradient(*batches: Minibatch) -> Tensor:
        policy.zero_grad()
        torch.stack([update.evaluate(policy, one).log_probability.sum() for one in batches]).sum().backward()
        return torch.cat([one.grad.flatten() for one in policy.parameters() if one.grad is not None]).clone()

    torch.testing.assert_close(gradient(first, second), gradient(first) + gradient(second))
