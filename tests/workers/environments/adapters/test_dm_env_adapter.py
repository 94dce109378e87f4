"""dm_env's environments by `module:function`: rewards, ends of both kinds, and what is refused."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np
import pytest
from dm_env import specs

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from workers.environments.registry import make


class Count(dm_env.Environment):
    """Episodes of 3 steps end with the discount given; pays the action."""

    def __init__(self, discount: float = 0.0, actions: Any = None, seen: Any = None, restarts: bool = False) -> None:
        self.discount, self.restarts, self.at = discount, restarts, 0
        self.actions = actions or specs.DiscreteArray(4)
        self.seen = seen or specs.BoundedArray((2,), np.float64, 0, 9)

    def look(self) -> Any:
        seen = np.full(2, self.at, np.float64)
        return {"position": seen} if isinstance(self.seen, dict) else seen

    def reset(self) -> dm_env.TimeStep:
        self.at = 0
        return dm_env.restart(self.look())

    def step(self, action: Any) -> dm_env.TimeStep:
        self.at += 1
        if self.restarts and self.at == 2:
            return self.reset()
        if self.at < 3:
            return dm_env.transition(float(action), self.look())
        return dm_env.TimeStep(dm_env.StepType.LAST, float(action), self.discount, self.look())

    def observation_spec(self) -> Any:
        return self.seen

    def action_spec(self) -> Any:
        return self.actions


_how: dict[str, Any] = {}
"""What the next one is made of; specs are nothing that a configuration could hold."""


def counted() -> Count:
    return Count(**_how)


def made(copies: int = 2, **how: Any) -> Any:
    _how.clear()
    _how.update(how)
    return make(EnvironmentConfig(id=f"{__name__}:counted", copies=copies))


@pytest.mark.parametrize("discount", [0.0, 0.9])
def test_a_last_discount_of_0_terminates_and_any_other_truncates(discount: float) -> None:
    environment = made(discount=discount)
    assert environment.world.agents[0].action.n == 4
    (present,) = environment.reset(0).present
    for step in range(1, 10):
        (present,) = environment.step([np.array([1, 2])]).present
        over = step % 3 == 0
        assert present.reward.tolist() == [1, 2]
        assert present.terminated.tolist() == [over and discount == 0] * 2
        assert present.truncated.tolist() == [over and discount > 0] * 2
        assert (present.observation == step % 3).all()
        if present.truncated.any():
            assert present.final_observation.tolist() == [[3, 3], [3, 3]]
    environment.close()


def test_choices_may_start_anywhere_and_a_dictionary_has_a_leaf_for_each_entry() -> None:
    spec = {"position": specs.Array((2,), np.float64)}
    environment = made(1, actions=specs.BoundedArray((), np.int32, -2, 2), seen=spec)
    environment.reset(0)
    (present,) = environment.step([np.array([-2])]).present
    assert environment.world.agents[0].action.n == 5
    assert present.reward.tolist() == [-2]
    assert present.observation["position"].tolist() == [[1, 1]]


def test_what_is_not_taken_is_refused_in_one_sentence() -> None:
    texts = specs.StringArray(())
    with raises(ConfigurationError, "spec_not_numeric", value=texts) as caught:
        made(actions=texts)
    assert "action" in str(caught.value)
    environment = made(restarts=True)
    environment.reset(0)
    environment.step([np.zeros(2, np.int64)])
    with raises(EnvironmentFault, "episode_restarted_without_end"):
        environment.step([np.zeros(2, np.int64)])
