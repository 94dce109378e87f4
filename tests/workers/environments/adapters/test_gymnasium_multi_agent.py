"""Gymnasium environments of several agents, whose spaces are tuples, against the plain loop with the same actions."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from tests.tools import skip_or_fail
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.gymnasium_multi_agent import TupleMultiAgent
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import describe, make

FORAGING = "gymnasium_multi:lbforaging:Foraging-5x5-2p-1f-coop-v3"
Space = gymnasium.spaces


class Pair(gymnasium.Env[Any, Any]):
    """Two agents with unlike spaces; episodes of three turns, ended in the way `ends`."""

    def __init__(self, ends: str = "once", short: str = "") -> None:
        self.observation_space = Space.Tuple((Space.Box(0, 9, (2,), np.float32), Space.Discrete(4)))
        self.action_space = Space.Tuple((Space.Discrete(3), Space.Discrete(2)))
        self.ends, self.short, self.t = ends, short, 0
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.t = 0
        return self._look(), {}

    def step(self, action: Any) -> Any:
        assert action in self.action_space
        self.t += 1
        over = self.t == 3
        rewards: Any = [float(action[0]), -float(action[1])]
        ends: Any = over
        if self.ends == "each":
            ends = [over, over]
        elif self.ends == "apart":
            ends = [over, False]
        return self._look(), rewards[:1] if self.short == "reward" else rewards, False, ends, {}

    def _look(self) -> Any:
        seen = np.full(2, self.t, np.float32), self.t
        return seen[:1] if self.short == "observation" else seen


@pytest.mark.parametrize("ends", ["once", "each"])
def test_each_agent_gets_its_entry_of_every_tuple(ends: str) -> None:
    environment = CheckedEnvironment(PettingZooEnvironment("pair", lambda: TupleMultiAgent("pair", Pair(ends)), 2))
    assert [agent.name for agent in environment.world.agents] == ["agent_0", "agent_1"]
    one, other = environment.reset(0).present
    for t in range(1, 8):
        one, other = environment.step([np.array([t % 3, 2]), np.array([1, t % 2])]).present
        over = t % 3 == 0
        assert one.observation.tolist() == [[t % 3] * 2] * 2
        assert other.observation.tolist() == [t % 3] * 2
        assert one.reward.tolist() == [t % 3, 2]
        assert other.reward.tolist() == [-1, -(t % 2)]
        for told in (one, other):
            assert told.truncated.tolist() == [over] * 2
            assert not told.terminated.any()
        if over:
            assert one.final_observation is not None
            assert one.final_observation.tolist() == [[3, 3]] * 2, "what was seen at the end, not the new beginning"
    environment.close()


def test_nothing_is_drawn_before_a_seed_is_given() -> None:
    """An environment that keeps something of its first look would play every run of one seed otherwise."""
    made: list[Pair] = []

    def one() -> TupleMultiAgent:
        made.append(Pair())
        return TupleMultiAgent("pair", made[-1])

    environment = PettingZooEnvironment("pair", one, 2)
    environment.reset(5)
    environment.close()
    seeds = [pair.seeds for pair in made]
    assert seeds == [[0, *copy_seeds(5, 2)[:1]], copy_seeds(5, 2)[1:]]


@pytest.mark.parametrize(
    ("made", "kind", "facts"),
    [
        (Pair("apart"), "episode_ends_for_some", {}),
        (Pair(short="reward"), "tuple_per_agent_expected", {"field": "reward", "count": 2, "value": "of 1"}),
        (Pair(short="observation"), "tuple_per_agent_expected", {"field": "observation", "count": 2, "value": "of 1"}),
    ],
)
def test_what_is_not_told_of_each_agent_ends_the_run_in_one_sentence(made: Pair, kind: str, facts: Any) -> None:
    with raises(EnvironmentFault, kind, environment="pair", **facts):
        environment = PettingZooEnvironment("pair", lambda: TupleMultiAgent("pair", made), 1)
        environment.reset(0)
        for _ in range(3):
            environment.step([np.zeros(1, np.int64)] * 2)


def test_an_environment_of_one_agent_is_named_as_such() -> None:
    with raises(ConfigurationError, "spaces_not_per_agent", single="CartPole-v1"):
        describe(EnvironmentConfig(id="gymnasium_multi:CartPole-v1"))


def test_a_missing_package_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lbforaging", None)
    with raises(ConfigurationError, "package_missing", package="lbforaging"):
        describe(EnvironmentConfig(id=FORAGING))


def test_foraging_is_that_of_the_package() -> None:
    """Rewards of all foods and agents add up to 1 at most: the figures' maximum."""
    if importlib.util.find_spec("lbforaging") is None:
        skip_or_fail("lbforaging is not installed")
    environment = make(EnvironmentConfig(id=FORAGING, copies=4))
    plain: list[Any] = [gymnasium.make("Foraging-5x5-2p-1f-coop-v3", disable_env_checker=True) for _ in range(4)]
    plain[0].reset(seed=0)  # from which the agents' spaces were told; where its players stood decides where they may
    turn, chance = environment.reset(4), np.random.default_rng(0)
    for i, (one, seed) in enumerate(zip(plain, copy_seeds(4, 4), strict=True)):
        seen, _ = one.reset(seed=seed)
        assert np.array_equal(turn.present[1].observation[i], seen[1])
    earned, returns = np.zeros(4), []
    for _ in range(250):
        actions = chance.choice(6, (2, 4), p=[0, 0.15, 0.15, 0.15, 0.15, 0.4])
        turn = environment.step(list(actions))
        for i, one in enumerate(plain):
            seen, reward, terminated, truncated, _ = one.step(tuple(actions[:, i].tolist()))
            assert [told.reward[i] for told in turn.present] == pytest.approx(list(reward))
            earned[i] += sum(reward)
            if terminated or truncated:
                returns.append(earned[i])
                earned[i] = 0
                seen, _ = one.reset()
            for told, expected in zip(turn.present, seen, strict=True):
                assert np.array_equal(told.observation[i], expected)
    assert set(np.round(returns, 6)) == {0.0, 1.0}
