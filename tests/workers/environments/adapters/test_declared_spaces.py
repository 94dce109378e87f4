"""What a class forgot to declare, or declared as something else, is told as that, with the class."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, Tuple
from pettingzoo import AECEnv, ParallelEnv

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault
from tests.faults import raises
from workers.environments.registry import make

SEEN = Box(-1, 1, (2,))


class OldSpace:
    """As Gym had them, before it was Gymnasium."""

    __module__ = "gym.spaces.discrete"


class Single(gymnasium.Env):
    observation_space: Any = SEEN
    action_space: Any = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}


class Vector(gymnasium.vector.VectorEnv):
    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    single_observation_space: Any = SEEN
    single_action_space: Any = Discrete(2)
    num_envs = 2


class Parallel(ParallelEnv):
    possible_agents: Any = ("a", "b")

    def observation_space(self, agent: Any) -> Any:
        return SEEN

    def action_space(self, agent: Any) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = ["a", "b"]
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {}


class Turns(AECEnv):
    possible_agents: Any = ("a", "b")

    def observation_space(self, agent: Any) -> Any:
        return SEEN

    def action_space(self, agent: Any) -> Any:
        return Discrete(2)


class Wrapped(gymnasium.Env):
    """Without spaces."""


made: list[Any] = []


def function() -> Any:
    return made.pop()


def function_of_copies(copies: int) -> Any:
    return made.pop()


def opened(world: Any) -> None:
    """Made as a run makes what a function returns."""
    made.append(world)
    of = function_of_copies if isinstance(world, gymnasium.vector.VectorEnv) else function
    make(EnvironmentConfig(id=f"{__name__}:{of.__name__}", copies=2 if of is function_of_copies else 1))


def without(base: type, name: str) -> type:
    """The same class, called World, that never declared `name`."""
    own = {key: value for key, value in vars(base).items() if key not in (name, "__dict__", "__weakref__")}
    return type("World", base.__bases__, own)


def returning(value: Any) -> Any:
    return lambda self, agent: value


@pytest.mark.filterwarnings("ignore:Your environment should override")
@pytest.mark.parametrize("base", [Single, Vector, Parallel, Turns])
@pytest.mark.parametrize("space", ["observation_space", "action_space"])
def test_a_space_that_was_forgotten_is_missing_in_its_class(base: type, space: str) -> None:
    name = f"single_{space}" if base is Vector else space
    with raises(ConfigurationError, "space_missing", name="World", field=name):
        opened(without(base, name)())


def test_it_is_the_users_class_that_is_named_whatever_wraps_it() -> None:
    with raises(ConfigurationError, "space_missing", name="Wrapped", field="observation_space"):
        opened(gymnasium.wrappers.TimeLimit(Wrapped(), 5))


@pytest.mark.parametrize("space", ["observation_space", "action_space"])
@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (None, "None"),
        ((4,), "(4,), of type tuple"),
        (4, "4, of type int"),
        ({"x": 1}, "{'x': 1}, of type dict"),
        ([], "[], of type list"),
        (Discrete, "the class Discrete, which should be called"),
        (Box, "the class Box, which should be called"),
    ],
)
def test_what_is_no_space_of_gymnasium_is_told_as_what_it_is(space: str, declared: Any, value: str) -> None:
    facts = {"name": "World", "field": space}
    with raises(ConfigurationError, "space_not_gymnasium", value=value, **facts):
        opened(type("World", (Single,), {space: declared})())
    for base in (Parallel, Turns):
        with raises(ConfigurationError, "space_not_gymnasium", value=f"one that returns {value}", **facts):
            opened(type("World", (base,), {space: returning(declared)})())
    vector = type("World", (Vector,), {f"single_{space}": declared})
    with raises(ConfigurationError, "space_not_gymnasium", value=value, name="World", field=f"single_{space}"):
        opened(vector())


@pytest.mark.parametrize(
    ("base", "declared", "value"),
    [
        (Single, lambda self: SEEN, "a method"),
        (Parallel, SEEN, f"{SEEN}, of type Box"),
        (Turns, {"a": SEEN}, "{'a': Box(-1.0, 1.0, (2,), float32)}, of type dict"),
        (Parallel, lambda self: SEEN, "a method with the arguments ()"),
    ],
)
def test_a_method_is_told_from_an_attribute(base: type, declared: Any, value: str) -> None:
    with raises(ConfigurationError, "space_not_gymnasium", field="observation_space", value=value):
        opened(type("World", (base,), {"observation_space": declared})())


def test_a_space_of_gym_is_told_as_one_of_the_package_before() -> None:
    with raises(ConfigurationError, "space_not_gymnasium") as caught:
        opened(type("World", (Single,), {"action_space": OldSpace()})())
    assert " of gym, " in caught.value.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("base", [Parallel, Turns])
@pytest.mark.parametrize(("listed", "value"), [(None, "None"), ((), "()"), ("ab", "'ab'"), (2, "2"), (..., "missing")])
def test_agents_that_are_not_listed_are_told_with_what_is(base: type, listed: Any, value: str) -> None:
    world = without(base, "possible_agents") if listed is ... else type("World", (base,), {"possible_agents": listed})
    with raises(ConfigurationError, "possible_agents_empty", name="World", value=value):
        opened(world())


def test_spaces_of_several_agents_that_were_forgotten_are_missing_too() -> None:
    half = type("World", (gymnasium.Env,), {"n_agents": 2, "observation_space": Tuple((SEEN, SEEN))})
    with raises(ConfigurationError, "space_missing", name="World", field="action_space"):
        opened(half())


@pytest.mark.parametrize("world", [Single, Parallel, Turns])
def test_a_class_that_was_not_called_is_told_as_one(world: type) -> None:
    with raises(ConfigurationError, "environment_function_result", value=f"the class {world.__name__}, uncalled"):
        opened(world)


def test_what_a_property_lacks_is_not_the_space() -> None:
    def look(self: Any) -> Any:
        return self.width

    with raises(EnvironmentFault, "environment_creation_failed", function="look"):
        opened(type("World", (Single,), {"observation_space": property(look)})())


def test_a_single_world_may_have_a_number_of_envs_and_a_vector_may_lack_it() -> None:
    made.append(type("Counting", (Single,), {"num_envs": 7})())
    single = make(EnvironmentConfig(id=f"{__name__}:function", copies=1))
    assert single.copies == 1
    single.close()
    with raises(ConfigurationError, "space_missing", name="VectorEnv", field="single_observation_space"):
        make(EnvironmentConfig(id=f"{__name__}:bare", copies=2))


def bare(copies: int) -> Any:
    """A vector that declares no spaces."""
    vector: Any = gymnasium.vector.VectorEnv()
    vector.num_envs, vector.metadata = copies, Vector.metadata
    return vector
