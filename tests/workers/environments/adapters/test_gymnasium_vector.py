"""Gymnasium's vector environments: in each way to restart, the streams of the scalar environments, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from workers.environments.adapters.batched.gymnasium_vector import GymnasiumVector
from workers.environments.base import AgentOutcome, AgentTimeStep
from workers.environments.checks.checked_environment import CheckedEnvironment
from workers.environments.registry import make

E = 5
Row = tuple[float, int, float, bool, bool, float | None]


class Clock(gymnasium.Env):
    """Shows the steps since it was made; pays the action; episodes of drawn length end in either way, or both."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(3, start=-1)

    def __init__(self, always: int | None = None) -> None:
        self.always, self.time = always, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = self.always or int(self.np_random.integers(1, 7))
        self.time += 1
        return np.array([self.time], np.float64), {}

    def step(self, action: Any) -> Any:
        assert self.left, "no step after the end"
        self.left, self.time = self.left - 1, self.time + 1
        how = int(self.np_random.integers(3))
        terminated, truncated = not self.left and how != 1, not self.left and how != 0
        return np.array([self.time], np.float64), float(action), terminated, truncated, {}


def rows_of_scalars(seed: int, count: int, always: int | None) -> list[list[Row]]:
    """[E][count]: (seen, action, reward, terminated, truncated, last seen), with the action seen % 3."""
    every: list[list[Row]] = []
    for i in range(E):
        env, rows = Clock(always), []
        env.reset()  # a first look, whether masks come with it
        seen = env.reset(seed=seed + i)[0].item()
        for _ in range(count):
            action = int(seen) % 3 - 1
            following, reward, terminated, truncated, _ = env.step(action)
            cut = truncated and not terminated
            rows.append((seen, action, reward, terminated, cut, following.item() if cut else None))
            seen = env.reset()[0].item() if terminated or truncated else following.item()
        every.append(rows)
    return every


def rows_of(environment: GymnasiumVector, turns: int) -> tuple[list[list[Row]], int]:
    """The same from our turns, and the environment steps."""
    guarded = CheckedEnvironment(environment)
    turn, steps = guarded.reset(7), 0
    rows: list[list[Row]] = [[] for _ in range(E)]
    open_: list[tuple[float, int] | None] = [None] * E
    for _ in range(turns):
        news: tuple[AgentOutcome | AgentTimeStep, ...] = (*turn.outcomes, *turn.present)
        for told in news:
            copies = range(E) if told.copies is None else told.copies.tolist()
            for n, i in enumerate(copies):
                row = open_[i]
                if row is None:
                    assert not told.reward[n]
                    continue
                final = None
                if told.truncated[n]:
                    assert told.final_observation is not None
                    final = told.final_observation[told.final_index.tolist().index(n)].item()
                ends = bool(told.terminated[n]), bool(told.truncated[n])
                rows[i].append((*row, float(told.reward[n]), *ends, final))
                open_[i] = None
        (present,) = turn.present
        actions = present.observation[:, 0].astype(np.int64) % 3 - 1
        copies = range(E) if present.copies is None else present.copies.tolist()
        for n, i in enumerate(copies):
            open_[i] = (present.observation[n].item(), int(actions[n]))
        turn = guarded.step([actions])
        steps += turn.env_steps
    return rows, steps


def vector(mode: AutoresetMode, always: int | None = None) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: Clock(always)] * E, autoreset_mode=mode)


@pytest.mark.parametrize("mode", list(AutoresetMode))
@pytest.mark.parametrize("always", [None, 1])
def test_every_way_to_restart_gives_the_rows_of_the_scalar_loop(
    mode: AutoresetMode, always: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K5: also where all copies end at once."""
    seeds: list[int] = []
    envs = vector(mode, always)
    inner = envs.reset

    def reset(**how: Any) -> Any:
        seeds.extend([how["seed"]] if "seed" in how else [])
        return inner(**how)

    monkeypatch.setattr(envs, "reset", reset)
    rows, steps = rows_of(GymnasiumVector("clock", envs), 120)
    assert len(seeds) == 2
    assert seeds[0] == 0, "the first look is the same in every run, for an environment that keeps something of it"
    expected = rows_of_scalars(seeds[1], 120, always)
    for got, wanted in zip(rows, expected, strict=True):
        assert len(got) > 60
        assert got == wanted[: len(got)]
    closed = sum(map(len, rows))
    assert closed <= steps <= closed + E
    ends = [row for got in rows for row in got if row[4]]
    assert len(ends) > 10


def test_a_vector_environment_of_a_user_is_taken_by_its_function(tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "own_vector.py").write_text(
        "import gymnasium\n"
        "def envs(copies):\n    return gymnasium.make_vec('MountainCar-v0', num_envs=copies)\n"
        "def few(copies):\n    return gymnasium.make_vec('MountainCar-v0', num_envs=1)\n"
        "def naked():\n    return gymnasium.make_vec('MountainCar-v0', num_envs=1)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    environment = make(EnvironmentConfig(id="own_vector:envs", copies=3))
    assert isinstance(environment, GymnasiumVector)
    assert environment.world.episode_steps == 200
    assert environment.reset(0).present[0].observation.shape == (3, 2)
    environment.close()
    with raises(ConfigurationError, "environment_copies_ignored", count=3):
        make(EnvironmentConfig(id="own_vector:few", copies=3))
    with raises(ConfigurationError, "environment_function_without_copies", expected="a VectorEnv or a BatchedWorld"):
        make(EnvironmentConfig(id="own_vector:naked", copies=3))


class Spoilt:
    """A vector environment whose answers `spoil` changes."""

    def __init__(self, mode: AutoresetMode | None, spoil: Callable[[list[Any]], None] = lambda told: None) -> None:
        self.num_envs, self.spoil = 2, spoil
        self.single_observation_space, self.single_action_space = Clock.observation_space, Clock.action_space
        self.metadata = {"autoreset_mode": mode}

    def reset(self, **how: Any) -> Any:
        return np.ones((2, 1)), {}

    def step(self, actions: Any) -> Any:
        told: list[Any] = [np.ones((2, 1)), np.ones(2), np.array([False, True]), np.zeros(2, np.bool_), {}]
        self.spoil(told)
        return told

    def close(self) -> None:
        pass


def put(place: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda told: told.__setitem__(place, value)


def form(dtype: str, shape: list[int]) -> dict[str, Any]:
    """The facts of an observation of this form instead of its own."""
    return {
        "field": "observation",
        "dtype": np.dtype("float32"),
        "shape": [2, 1],
        "got_dtype": np.dtype(dtype),
        "got_shape": shape,
    }


@pytest.mark.parametrize(
    ("mode", "spoil", "kind", "facts"),
    [
        ("SAME_STEP", put(0, np.ones((2, 3))), "array_form_mismatch", form("float64", [2, 3])),
        ("SAME_STEP", put(0, np.ones((2, 1), np.complex64)), "array_form_mismatch", form("complex64", [2, 1])),
        (
            "SAME_STEP",
            put(1, np.ones(3)),
            "vector_array_mismatch",
            {"field": "reward", "expected": "float32[2]", "dtype": np.dtype("float64"), "shape": [3]},
        ),
        (
            "SAME_STEP",
            put(2, np.ones(2)),
            "vector_array_mismatch",
            {"field": "terminated", "expected": "bool[2]", "dtype": np.dtype("float64"), "shape": [2]},
        ),
        ("SAME_STEP", put(3, np.array([True, False])), "final_observations_missing", {}),
        ("NEXT_STEP", lambda told: None, "restarting_copy_ended", {"copy": 1}),
    ],
)
def test_a_faulty_vector_environment_is_told_in_one_sentence(mode: str, spoil: Any, kind: str, facts: Any) -> None:
    environment = GymnasiumVector("spoilt", Spoilt(AutoresetMode[mode], spoil))
    with raises(EnvironmentFault, "step_before_reset", environment="spoilt"):
        environment.step([np.zeros(2, np.int64)])
    turn = environment.reset(0)
    with raises(EnvironmentFault, kind, where="spoilt, agent agent", **facts) as caught:
        for _ in range(2):
            turn = environment.step([np.zeros(len(turn.present[0].observation), np.int64)])
    assert "\n" not in str(caught.value)


def test_a_vector_environment_must_say_when_it_restarts() -> None:
    with raises(ConfigurationError, "autoreset_mode_missing", environment="silent"):
        GymnasiumVector("silent", Spoilt(None))
