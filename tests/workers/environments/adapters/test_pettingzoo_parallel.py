"""PettingZoo parallel environments against the plain loop with the same seeds and actions."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
import numpy as np
import psutil
import pytest
from mpe2 import simple_spread_v3

from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from tests.workers.environments.worlds.table import Table
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment, from_id

SPREAD = "pettingzoo:mpe2.simple_spread_v3"


def test_simple_spread_gives_the_rows_of_the_plain_loop() -> None:
    copies, seed = 3, 11
    environment = from_id(SPREAD, copies, {"max_cycles": 8})
    assert environment.world.episode_steps == 8
    names = [agent.name for agent in environment.world.agents]
    assert names == ["agent_0", "agent_1", "agent_2"]
    plain = [simple_spread_v3.parallel_env(max_cycles=8) for _ in range(copies)]
    environment.reset(seed + 1)
    turn = environment.reset(seed)
    for i, (one, first) in enumerate(zip(plain, copy_seeds(seed, copies), strict=True)):
        seen, _ = one.reset(seed=first)
        for present in turn.present:
            assert np.array_equal(present.observation[i], seen[names[present.agent]])
    generator = np.random.default_rng(0)
    cut = 0
    for _ in range(30):
        actions = [generator.integers(5, size=copies) for _ in names]
        turn = environment.step(actions)
        assert turn.env_steps == copies
        assert [present.agent for present in turn.present] == [0, 1, 2]
        for i, one in enumerate(plain):
            chosen = {name: int(action[i]) for name, action in zip(names, actions, strict=True)}
            seen, rewards, terminations, truncations, _ = one.step(chosen)
            last = seen
            if not one.agents:
                seen, _ = one.reset()
            for name, present in zip(names, turn.present, strict=True):
                assert present.reward[i] == np.float32(rewards[name])
                assert present.terminated[i] == terminations[name]
                assert present.truncated[i] == truncations[name]
                assert np.array_equal(present.observation[i], seen[name])
                if truncations[name]:
                    cut += 1
                    assert present.final_observation is not None
                    row = present.final_index.tolist().index(i)
                    assert np.array_equal(present.final_observation[row], last[name])
                    assert not np.array_equal(last[name], seen[name])
    assert cut == 3 * 3 * 3
    environment.close()


class Pair:
    """Two unlike agents; `plan` says at which step each one ends, and how."""

    possible_agents = ["left", "right"]  # noqa: RUF012
    unwrapped = None

    def __init__(self, **plan: tuple[int, str]) -> None:
        self.plan = plan
        self.closed = False

    @property
    def agents(self) -> list[str]:
        return [name for name in self.possible_agents if self.at < self.plan[name][0]]

    def observation_space(self, name: str) -> Any:
        return gymnasium.spaces.Box(0, 255, (2,) if name == "left" else (1, 3), np.uint8)

    def action_space(self, name: str) -> Any:
        return gymnasium.spaces.Discrete(2 if name == "left" else 4, start=10)

    def _see(self) -> dict[str, Any]:
        return {
            "left": np.full(2, self.at, np.uint8),
            "right": np.full((1, 3), self.at, np.uint8),
        }

    def reset(self, seed: int | None = None) -> Any:
        self.at = 0
        return self._see(), {}

    def step(self, actions: dict[str, int]) -> Any:
        self.at += 1
        how = {name: self.plan[name][1] if self.at >= self.plan[name][0] else "" for name in self.possible_agents}
        terminated = {name: how[name] == "terminated" for name in how}
        truncated = {name: how[name] == "truncated" for name in how}
        return self._see(), {name: float(actions[name]) for name in actions}, terminated, truncated, {}

    def close(self) -> None:
        self.closed = True


def test_agents_may_have_unlike_spaces_and_ends_of_their_own_kind() -> None:
    environment = PettingZooEnvironment("pair", lambda: Pair(left=(3, "terminated"), right=(3, "truncated")), copies=2)
    left, right = environment.world.agents
    assert (left.observation.shape, right.observation.shape) == ((2,), (1, 3))
    assert (left.action.n, right.action.n) == (2, 4)
    environment.reset(0)
    for step in range(1, 10):
        turn = environment.step([np.array([10, 11]), np.array([12, 13])])
        one, other = turn.present
        assert one.reward.tolist() == [10, 11]
        assert other.reward.tolist() == [12, 13]
        ended = step % 3 == 0
        assert one.terminated.tolist() == other.truncated.tolist() == [ended, ended]
        assert not one.truncated.any()
        assert not other.terminated.any()
        assert one.final_observation is None
        assert (one.observation == step % 3).all()
        if ended:
            assert other.final_index.tolist() == [0, 1]
            assert other.final_observation is not None
            assert (other.final_observation == 3).all()
    environment.close()


class Late(Pair):
    """`right` comes in the last of 8 cycles only, in which all are cut."""

    max_cycles = 8

    @property
    def unwrapped(self) -> Any:  # type: ignore[override]
        return self

    @property
    def agents(self) -> list[str]:
        if self.at >= self.max_cycles:
            return []
        return ["left", "right"] if self.at == self.max_cycles - 1 else ["left"]

    def step(self, actions: dict[str, int]) -> Any:
        self.at += 1
        over = self.at >= self.max_cycles
        cut = dict.fromkeys(actions, over)
        return self._see(), dict.fromkeys(actions, 1.0), dict.fromkeys(actions, False), cut, {}

    def action_space(self, name: str) -> Any:
        return gymnasium.spaces.Discrete(5)


def test_an_agent_that_comes_late_is_cut_more_often_than_the_limit_of_cycles_says() -> None:
    """K5: `right` ends an episode with each of its rows, and all of them are in segments with what it saw last."""
    environment = PettingZooEnvironment("late", Late, 2)
    assert environment.world.episode_steps == 8
    table = Table(environment)
    table.play(8 * 12)
    rows = table.found(1)
    assert [len(copy) for copy in rows] == [11, 11], "the last row's segment goes on"
    assert all(row.truncated and row.final == 8 for copy in rows for row in copy)


class Faulty(Pair):
    """Does one wrong thing in its first step."""

    def __init__(self, wrong: str) -> None:
        super().__init__(left=(2, "truncated"), right=(3, "terminated"))
        self.wrong = wrong

    @property
    def agents(self) -> list[str]:
        if self.at and self.wrong in ("left vanishes", "stranger"):
            return ["right"] if self.wrong == "left vanishes" else ["left", "right", "stranger"]
        return self.possible_agents if self.wrong == "stays" else super().agents

    def observation_space(self, name: str) -> Any:
        space = super().observation_space(name)
        return gymnasium.spaces.Box(0, 1, (7,)) if self.wrong == "space" and self.resets > 2 else space

    resets = 0

    def reset(self, seed: int | None = None) -> Any:
        self.resets += 1
        seen, infos = super().reset(seed)
        if self.wrong.startswith("reset") and self.resets > 2:
            (infos if self.wrong == "reset infos" else seen)["righty"] = 0
        return seen, infos

    def step(self, actions: dict[str, int]) -> Any:
        seen, rewards, terminated, truncated, infos = super().step(actions)
        match self.wrong:
            case "no observation":
                del seen["left"]
            case "no reward":
                del rewards["left"]
            case "text":
                rewards["left"] = "much"
            case "shape":
                seen["right"] = np.zeros((3, 1), np.uint8)
            case "dtype":
                seen["right"] = np.zeros((1, 3), np.float32)
            case "seen" | "rewards" | "infos" if self.at == 1:
                {"seen": seen, "rewards": rewards}.get(self.wrong, infos)["righty"] = 0.0
            case "rewards late" if self.at == 2:
                rewards["righty"] = 0.0
            case "ghost" if self.at == 3:
                rewards["left"] = 1.0
        return seen, rewards, terminated, truncated, infos


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        ("left vanishes", "agent_data_invalid", {"agent": "left", "field": "copy 0", "value": "neither"}),
        ("stranger", "agent_unknown", {"agent": "stranger", "choices": ["left", "right"]}),
        *(
            (wrong, "agent_unknown", {"environment": "pair", "agent": "righty", "choices": ["left", "right"]})
            for wrong in ("seen", "rewards", "rewards late", "infos", "reset", "reset infos")
        ),
        ("stays", "agent_data_invalid", {"agent": "left", "field": "copy 0", "value": "there"}),
        ("space", "space_changed", {"where": "pair, agent left", "field": "observation space"}),
        ("no observation", "agent_data_invalid", {"agent": "left", "field": "observation in copy 0"}),
        ("no reward", "agent_data_invalid", {"agent": "left", "field": "reward in copy 0", "value": "missing"}),
        ("text", "reward_not_number", {"where": "pair, agent left", "value": "much"}),
        (
            "shape",
            "array_shape_wrong",
            {"field": "pair, agent right: observation", "expected": [1, 3], "value": [3, 1]},
        ),
        (
            "dtype",
            "array_type_wrong",
            {"field": "pair, agent right: observation", "expected": "uint8", "value": np.dtype("float32")},
        ),
        ("ghost", "agent_data_invalid", {"agent": "left", "field": "reward in copy 0", "value": "1.0"}),
    ],
)
def test_a_faulty_environment_is_told_in_one_sentence(wrong: str, kind: str, facts: dict[str, Any]) -> None:
    environment = PettingZooEnvironment("pair", lambda: Faulty(wrong), 1)
    with raises(EnvironmentFault, "step_before_reset", environment="pair"):
        environment.step([np.zeros(1, np.int64)] * 2)
    turn = environment.reset(0)
    with raises(EnvironmentFault, kind, **facts) as caught:
        for _ in range(4):
            turn = environment.step([np.full(1, 10) for _ in turn.present])
    said = str(caught.value)
    assert said.startswith("pair, ")
    assert "\n" not in said


@pytest.mark.parametrize("field", range(5))
def test_what_other_libraries_say_of_all_agents_is_no_agent(field: int) -> None:
    class Whole(Pair):
        def step(self, actions: dict[str, int]) -> Any:
            told = super().step(actions)
            told[field]["__all__"] = False
            return told

    environment = PettingZooEnvironment("pair", lambda: Whole(left=(3, "truncated"), right=(2, "terminated")), 1)
    turn = environment.reset(0)
    for _ in range(5):
        turn = environment.step([np.full(1, 10) for _ in turn.present])
    assert {one.agent for one in turn.present} <= {0, 1}


@pytest.mark.parametrize(
    ("id", "settings", "kind", "facts"),
    [
        ("pettingzoo:no_such_package.thing_v1", {}, "module_missing", {"module": "no_such_package"}),
        ("pettingzoo:mpe2.simple_spread_v99", {}, "pettingzoo_id_unusable", {"key": "environment.id"}),
        ("pettingzoo:json", {}, "pettingzoo_id_unusable", {"key": "environment.id"}),
        (SPREAD, {"colour": 1}, "environment_settings_refused", {"key": "environment.settings"}),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_sentence(
    id: str, settings: dict[str, Any], kind: str, facts: dict[str, str]
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        from_id(id, 1, settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mode", [None, "sequential"])
def test_copies_that_nobody_looks_at_hold_no_pictures(mode: Literal["sequential"] | None) -> None:
    from_id(SPREAD, 1, {}, mode).close()
    process, copies = psutil.Process(), 64
    before = process.memory_info().rss
    environment = from_id(SPREAD, copies, {}, mode)
    environment.reset(0)
    assert process.memory_info().rss - before < copies * 2**20, "each picture is twice as large"
    environment.close()
    shown = from_id(SPREAD, 1, {"render_mode": "rgb_array"}, mode)
    shown.reset(0)
    picture = shown.render_rgb()
    assert picture is not None
    assert picture.shape == (700, 700, 3)
    shown.close()
