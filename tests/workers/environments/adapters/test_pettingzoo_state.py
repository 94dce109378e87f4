"""What a PettingZoo environment calls its state is seen by learners, at each step and at the true end (I2, X10)."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from mpe2 import simple_spread_v3
from pettingzoo import AECEnv, ParallelEnv

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError
from tests.faults import raises
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.pettingzoo_parallel import wrap_pettingzoo
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make
from workers.policies.interface import Interface

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def test_simple_spread_shows_learners_its_state_and_policies_what_they_saw() -> None:
    config = EnvironmentConfig(id=SPREAD, copies=2, settings={"max_cycles": 4}, central_state="state")
    environment = CheckedEnvironment(make(config))
    interface = Interface.at(environment.world, environment.world.places[0])
    assert [part.column for part in interface.observation_encoding.parts] == ["observation.own"]
    assert interface.privileged is not None
    assert [(part.column, part.width) for part in interface.privileged.parts] == [("observation.central", 54)]
    plain = [simple_spread_v3.parallel_env(max_cycles=4) for _ in range(2)]
    turn = environment.reset(11)
    for one, seed in zip(plain, copy_seeds(11, 2), strict=True):
        one.reset(seed=seed)
    rng, ends = np.random.default_rng(0), 0
    for _ in range(9):
        actions = [rng.integers(5, size=2) for _ in range(3)]
        turn = environment.step(actions)
        for i, one in enumerate(plain):
            seen, *_ = one.step({f"agent_{k}": int(actions[k][i]) for k in range(3)})
            state = one.state()
            if not one.agents:
                ends += 1
                for k, present in enumerate(turn.present):
                    assert present.final_observation is not None
                    np.testing.assert_array_equal(present.final_observation["central"][i], state)
                    np.testing.assert_array_equal(present.final_observation["own"][i], seen[f"agent_{k}"])
                seen, _ = one.reset()
                state = one.state()
            for k, present in enumerate(turn.present):
                np.testing.assert_array_equal(present.observation["central"][i], state)
                np.testing.assert_array_equal(present.observation["own"][i], seen[f"agent_{k}"])
    assert ends == 4
    environment.close()


class Counting(AECEnv[str, Any, int]):
    """Two agents in turn, with masks; its state, which it never declared, counts their actions."""

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]

    def observation_space(self, agent: str) -> Any:
        mask = gymnasium.spaces.Box(0, 1, (2,), np.int8)
        return gymnasium.spaces.Dict({"observation": gymnasium.spaces.Box(0, 9, (1,)), "action_mask": mask})

    def action_space(self, agent: str) -> Any:
        return gymnasium.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> None:
        self.agents, self.agent_selection, self.count = ["a", "b"], "a", 0
        for table, value in (("rewards", 0.0), ("_cumulative_rewards", 0.0), ("infos", {})):
            setattr(self, table, dict.fromkeys(self.agents, value))
        self.terminations, self.truncations = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, False)

    def observe(self, agent: str) -> Any:
        return {"observation": np.ones(1, np.float32), "action_mask": np.array([1, 0], np.int8)}

    def state(self) -> Any:
        return np.array([self.count])

    def step(self, action: int | None) -> None:
        if self.truncations[self.agent_selection]:
            self._was_dead_step(action)
            return
        assert action == 0
        self.count += 1
        self.agent_selection = "b" if self.agent_selection == "a" else "a"
        if self.count == 4:
            self.truncations = dict.fromkeys(self.agents, True)


def test_agents_in_turn_with_masks_have_it_as_well() -> None:
    environment = CheckedEnvironment(wrap_pettingzoo("counting", Counting(), Counting, 1, None, True))
    turn, counted, final = environment.reset(0), [], []
    for _ in range(10):
        (present,) = turn.present
        assert present.action_mask is not None
        assert present.action_mask.tolist() == [[True, False]]
        assert present.observation["own"].tolist() == [[1]]
        counted.append(int(present.observation["central"][0, 0]))
        entries: tuple[AgentTimeStep | AgentOutcome, ...] = (present, *turn.outcomes)
        for told in entries:
            if told.final_observation is not None:
                final.append(int(told.final_observation["central"][0, 0]))
        turn = environment.step([np.zeros(1, np.int64)])
    assert counted == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert final == [4, 4, 4, 4]


class Stateless(ParallelEnv[str, Any, int]):
    """One that never had a state."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        return {"a": 0}, {}


def test_without_a_state_it_is_refused_in_a_sentence() -> None:
    with raises(ConfigurationError, "state_method_missing", environment="lone", key="environment.central_state"):
        wrap_pettingzoo("lone", Stateless(), Stateless, 1, None, True)
    with raises(ConfigurationError, "state_needs_pettingzoo", environment="tag", key="environment.central_state"):
        make(EnvironmentConfig(id="tag", copies=2, central_state="state"))
