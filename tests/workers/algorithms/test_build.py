"""Which update a policy gets is its configuration's to say."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.config.run import BC, C51, DQN, IQN, PPO, SAC, VDN, Dataset, Network, PolicyConfig
from protocol.spaces import Agent, Box, Dict, Discrete
from workers.algorithms.build import build_update
from workers.policies.build import build
from workers.policies.interface import Interface

CHOICE = Discrete(n=2)
KINDS: list[tuple[Any, Any, Any]] = [
    (PPO(), CHOICE, IQN()),
    (BC(), CHOICE, PPO()),
    (IQN(), CHOICE, PPO()),
    (DQN(), CHOICE, IQN()),
    (C51(), CHOICE, DQN()),
    (SAC(), Box(shape=(1,), low=-1.0, high=1.0), PPO()),
    (VDN(), Dict(spaces={"a": CHOICE, "b": CHOICE}), DQN()),
]


@pytest.mark.parametrize(("algorithm", "action", "other"), KINDS, ids=lambda one: getattr(one, "name", ""))
def test_the_configuration_of_another_algorithm_is_refused(algorithm: Any, action: Any, other: Any) -> None:
    """J5: also between cloning and PPO, whose policies are alike."""
    seen = Dict(spaces={"a": Box(shape=(1,)), "b": Box(shape=(1,))}) if algorithm.name == "vdn" else Box(shape=(2,))
    dataset = Dataset(path="somewhere") if algorithm.name == "bc" else None
    config = PolicyConfig(algorithm=algorithm, model_config=Network(hidden=(4,)), dataset=dataset)
    policy: Any = build(Interface.of(Agent(name="a", observation=seen, action=action)), config, 0)
    update = build_update(policy, config)
    with pytest.raises(ValueError, match=f"needs the configuration of {algorithm.name}"):
        type(update)(policy, config.model_copy(update={"algorithm": other}))  # type: ignore[arg-type]
