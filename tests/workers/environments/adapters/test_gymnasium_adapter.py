"""Gymnasium environments against the plain scalar loop with the same seeds and actions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest

from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from workers.environments.adapters.adapter_checks import copy_seeds
from workers.environments.adapters.batched.gymnasium_vector import CartPole
from workers.environments.adapters.gymnasium_adapter import GymnasiumEnvironment, from_id
from workers.environments.base import Environment


def same_as_scalar_loop(
    environment: Environment, make_one: Callable[[], gymnasium.Env], seed: int, steps: int, start: int = 0
) -> tuple[int, int]:
    """Steps both with the same random actions; returns how many episodes terminated and were truncated."""
    copies = environment.copies
    n = environment.world.agents[0].action.n
    dtype = environment.world.agents[0].observation.dtype
    scalars = [make_one() for _ in range(copies)]
    environment.reset(seed + 1)
    (present,) = environment.reset(seed).present
    for i, (scalar, one) in enumerate(zip(scalars, copy_seeds(seed, copies), strict=True)):
        first, _ = scalar.reset(seed=one)
        assert np.array_equal(present.observation[i], np.asarray(first, dtype))
    assert not present.reward.any()
    generator = np.random.default_rng(seed)
    terminations = truncations = 0
    for _ in range(steps):
        actions = start + generator.integers(n, size=copies)
        turn = environment.step([actions])
        assert turn.env_steps == copies
        (present,) = turn.present
        finals = []
        for i, scalar in enumerate(scalars):
            seen, reward, terminated, truncated, _ = scalar.step(actions[i])
            truncated = truncated and not terminated
            assert present.reward[i] == np.float32(reward)
            assert (bool(present.terminated[i]), bool(present.truncated[i])) == (terminated, truncated)
            terminations, truncations = terminations + terminated, truncations + truncated
            if truncated:
                finals.append((i, np.asarray(seen, dtype)))
            if terminated or truncated:
                seen, _ = scalar.reset()
            assert np.array_equal(present.observation[i], np.asarray(seen, dtype))
        assert present.final_index.tolist() == [i for i, _ in finals]
        if finals:
            assert present.final_observation is not None
            assert np.array_equal(present.final_observation, np.stack([seen for _, seen in finals]))
        else:
            assert present.final_observation is None
    for scalar in scalars:
        scalar.close()
    environment.close()
    return terminations, truncations


@pytest.mark.parametrize("settings", [{"max_episode_steps": 20}, {"sutton_barto_reward": True}])
def test_cartpole_gives_the_rows_of_scalar_cartpoles(settings: Mapping[str, Any]) -> None:
    environment = from_id("gymnasium:CartPole-v1", 7, settings)
    assert isinstance(environment, CartPole)
    terminations, truncations = same_as_scalar_loop(
        environment, lambda: gymnasium.make("CartPole-v1", **settings), seed=3, steps=200
    )
    assert terminations > 10
    assert (truncations > 10) == ("max_episode_steps" in settings)


def test_cartpole_is_cut_after_500_steps() -> None:
    environment = from_id("gymnasium:CartPole-v1", 2, {})
    assert environment.world.episode_steps == 500
    (present,) = environment.reset(0).present
    lengths: list[int] = []
    ages, final = np.zeros(2, int), None
    for _ in range(1_600):
        # Leaning against the fall: good enough to stay up for long.
        actions = (
            present.observation[:, 2] + 0.5 * present.observation[:, 3] + 0.1 * present.observation[:, 1] > 0
        ) * 1
        (present,) = environment.step([actions]).present
        ages += 1
        assert not (present.terminated & present.truncated).any()
        if present.truncated.any():
            final = present.final_observation
            lengths.extend(ages[present.truncated])
        ages[present.terminated | present.truncated] = 0
    environment.close()
    assert lengths
    assert set(lengths) == {500}
    assert final is not None
    assert final.shape[1:] == (4,)


def test_any_environment_gives_the_rows_of_the_scalar_loop() -> None:
    environment = from_id("gymnasium:MountainCar-v0", 3, {"max_episode_steps": 30})
    assert isinstance(environment, GymnasiumEnvironment)
    assert environment.world.episode_steps == 30
    _, truncations = same_as_scalar_loop(
        environment, lambda: gymnasium.make("MountainCar-v0", max_episode_steps=30), seed=1, steps=100
    )
    assert truncations == 9


class Toy(gymnasium.Env):
    """A picture, float64 or wrong observations; actions from -1; episodes end as `ends` says."""

    def __init__(self, ends: str = "both", dtype: Any = np.float64, shape: tuple[int, ...] = (2, 3)) -> None:
        self.observation_space = gymnasium.spaces.Box(-5, 200, shape, dtype)
        self.action_space = gymnasium.spaces.Discrete(3, start=-1)
        self.ends, self.dtype, self.shape = ends, dtype, shape
        self.closed = False

    def _see(self) -> np.ndarray:
        return np.full(self.shape, self.at + self.np_random.random(), self.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at = 0
        self.length = int(self.np_random.integers(1, 6))
        return self._see(), {}

    def step(self, action: Any) -> Any:
        assert -1 <= action <= 1
        self.at += 1
        done = self.at >= self.length
        terminated = done and (self.ends == "both" or self.length % 2 == 0)
        truncated = done and (self.ends == "both" or self.length % 2 == 1)
        return self._see(), float(action), terminated, truncated, {}

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(
    ("ends", "dtype", "shape"),
    [("either", np.float64, (2, 3)), ("either", np.float32, ()), ("both", np.int16, (4,))],
)
def test_boxes_of_any_shape_and_actions_that_start_anywhere(ends: str, dtype: Any, shape: tuple[int, ...]) -> None:
    def make_one() -> gymnasium.Env:
        return Toy(ends, dtype, shape)

    environment = GymnasiumEnvironment("toy", make_one, 5)
    observation = environment.world.agents[0].observation
    assert observation.shape == shape
    assert observation.dtype == ("float32" if dtype == np.float64 else np.dtype(dtype).name)
    assert (observation.low, observation.high) == (-5, 200)
    terminations, truncations = same_as_scalar_loop(environment, make_one, 0, 60, start=-1)
    assert terminations > 10
    assert (truncations > 0) == (ends == "either"), "an episode that terminated is not called cut as well"


def test_seeds_of_copies_are_distinct() -> None:
    seeds = copy_seeds(2**62, 100_000)
    assert len(set(seeds)) == 100_000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert not set(copy_seeds(1, 100)) & set(copy_seeds(2, 100))


class Odd(Toy):
    """Says one thing and observes another."""

    def _see(self) -> Any:
        return np.zeros((1, 2, 3), np.float64)


class Floats(Toy):
    def __init__(self) -> None:
        super().__init__(dtype=np.int16)

    def _see(self) -> Any:
        return np.full((2, 3), np.nan)


@pytest.mark.parametrize(
    ("toy", "kind", "facts"),
    [
        (Odd, "array_shape_wrong", {"expected": [2, 3], "value": [1, 2, 3]}),
        (Floats, "array_type_wrong", {"expected": "int16", "value": np.dtype("float64")}),
    ],
)
def test_an_observation_that_numpy_would_silently_convert_is_a_fault(toy: Any, kind: str, facts: Any) -> None:
    environment = GymnasiumEnvironment("odd", toy, 2)
    with raises(EnvironmentFault, kind, field="odd, agent agent: observation", **facts):
        environment.reset(0)


def test_all_copies_are_closed_also_when_the_spaces_are_refused() -> None:
    made: list[Toy] = []

    class Endless(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = gymnasium.spaces.Sequence(gymnasium.spaces.Discrete(2))
            made.append(self)

    with raises(ConfigurationError, "space_without_fixed_size", where="endless, agent agent", value="Sequence"):
        GymnasiumEnvironment("endless", Endless, 3)
    assert len(made) == 3
    assert all(one.closed for one in made)


class Wrong(Toy):
    """Does one wrong thing."""

    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.wrong, self.resets = wrong, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        told = super().reset(seed=seed)
        self.resets += 1
        if self.wrong == "space" and self.resets > 1:
            self.action_space = gymnasium.spaces.Discrete(4)
        return told[0] if self.wrong == "old reset" else told

    def step(self, action: Any) -> Any:
        seen, _, terminated, truncated, info = super().step(action)
        reward = "much" if self.wrong == "text" else 1.0
        if self.wrong == "nothing":
            return None
        return (seen, reward, terminated, info) if self.wrong == "old" else (seen, reward, terminated, truncated, info)


@pytest.mark.parametrize(
    ("wrong", "kind", "facts"),
    [
        ("old", "environment_call_malformed", {"method": "step", "value": "4 values"}),
        ("nothing", "environment_call_malformed", {"method": "step", "value": "NoneType"}),
        (
            "old reset",
            "environment_call_malformed",
            {"method": "reset", "expected": "(observation, info)", "value": "ndarray"},
        ),
        ("text", "reward_not_number", {"value": "much"}),
        (
            "space",
            "space_changed",
            {
                "field": "action space",
                "expected": gymnasium.spaces.Discrete(3, start=-1),
                "value": gymnasium.spaces.Discrete(4),
            },
        ),
    ],
)
def test_a_faulty_environment_is_told_in_one_sentence(wrong: str, kind: str, facts: dict[str, Any]) -> None:
    with raises(EnvironmentFault, kind, where="wrong, agent agent", **facts) as caught:
        environment = GymnasiumEnvironment("wrong", lambda: Wrong(wrong), 2)
        environment.reset(0)
        for _ in range(10):
            environment.step([np.zeros(2, np.int64)])
    assert "\n" not in str(caught.value)


def test_what_only_looks_like_a_gymnasium_environment_is_enough() -> None:
    class Duck:
        observation_space, action_space = gymnasium.spaces.Box(0, 9, (1,)), gymnasium.spaces.Discrete(2)

        def reset(self, seed: int | None = None) -> Any:
            return np.zeros(1, np.float32), {}

        def step(self, action: int) -> Any:
            return np.full(1, action, np.float32), 1.5, False, False, {}

        def close(self) -> None:
            pass

    environment = GymnasiumEnvironment("duck", Duck, 2)
    with raises(EnvironmentFault, "step_before_reset", environment="duck"):
        environment.step([np.zeros(2, np.int64)])
    environment.reset(0)
    (present,) = environment.step([np.array([0, 1])]).present
    assert (present.observation.tolist(), present.reward.tolist()) == ([[0], [1]], [1.5, 1.5])
    environment.close()


@pytest.mark.parametrize(
    ("id", "settings", "kind", "facts"),
    [
        ("gymnasium:CartPoll-v1", {}, "gymnasium_id_unknown", {"key": "environment.id"}),
        ("gymnasium:CartPole-v1", {"colour": 1}, "environment_settings_refused", {"key": "environment.settings"}),
        ("gymnasium:MountainCar-v0", {"colour": 1}, "environment_settings_refused", {"key": "environment.settings"}),
        ("gymnasium:no_such_package_here:Thing-v0", {}, "module_missing", {"module": "no_such_package_here"}),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_sentence(
    id: str, settings: dict[str, Any], kind: str, facts: dict[str, str]
) -> None:
    with raises(ConfigurationError, kind, **facts) as caught:
        from_id(id, 1, settings)
    assert "\n" not in str(caught.value)
