"""Spaces to and from JSON, Gymnasium and PettingZoo, and values to and from their leaves."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from pydantic import TypeAdapter

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiDiscrete,
    Observation,
    Space,
    Text,
    Tuple,
    World,
    dtype_of,
    elements,
    flatten,
    unflatten,
)
from protocol.spaces.gymnasium import from_gymnasium, to_gymnasium, world_from_gymnasium
from protocol.spaces.pettingzoo import to_pettingzoo, world_from_pettingzoo
from tests.faults import raises
from tests.protocol.spaces.spaces_strategies import SLOW, spaces, worlds
from tests.tools import ROOT

ANY: TypeAdapter[Any] = TypeAdapter(Space)


@given(spaces())
@SLOW
def test_a_space_is_the_same_after_json_and_after_gymnasium_I1(space: Any) -> None:
    assert ANY.validate_json(ANY.dump_json(space)) == space
    assert hash(ANY.validate_json(ANY.dump_json(space))) == hash(space)
    assert from_gymnasium(to_gymnasium(space), "w") == space
    assert to_gymnasium(from_gymnasium(to_gymnasium(space), "w")) == to_gymnasium(space)


def test_a_bound_of_minus_zero_is_zero() -> None:
    """Gymnasium samples nothing between 0.0 and -0.0."""
    box = Box(shape=(1,), low=-0.0, high=-0.0)
    assert box.model_dump_json() == Box(shape=(1,), low=0.0, high=0.0).model_dump_json()
    assert to_gymnasium(box).sample() == 0


@given(spaces())
@SLOW
def test_what_is_sampled_from_a_space_is_in_it_and_comes_back_from_its_leaves(space: Any) -> None:
    foreign = to_gymnasium(space)
    foreign.seed(7)
    sample = foreign.sample()
    arrays = flatten(space, sample, "observation")
    leaves = list(elements(space, "observation"))
    assert list(arrays) == [leaf.name for leaf in leaves]
    for leaf in leaves:
        array = arrays[leaf.name]
        assert (array.shape, array.dtype) == (leaf.space.shape, dtype_of(leaf.space))
        assert np.array_equal(array, leaf.space.encode(leaf.pick(sample), ""))
    again = unflatten(space, arrays, "observation")
    assert foreign.contains(again)
    assert _same(again, sample)


def _same(one: Any, other: Any) -> bool:
    """Are they, to the last bit and type? Of no axis, Gymnasium samples a scalar and takes an array as well."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, str):
        return one == other
    return np.asarray(one).dtype == np.asarray(other).dtype and np.array_equal(one, other)


ORIGINALS: list[Any] = [
    gym.Box(-1, 1, (2, 3)),
    gym.Box(np.array([-np.inf, 0, 1], np.float64), np.array([0, np.inf, 2], np.float64), dtype=np.float64),
    gym.Box(0, 255, (210, 160, 3), np.uint8),
    gym.Box(-np.inf, np.inf, (), np.float32),
    gym.Box(-np.inf, 9, (2,), np.int16),
    gym.Box(2**62, 2**62 + 1, (2,), np.int64),
    gym.Box(np.array([-(2**63), -3]), np.array([2, 2**63 - 2]), dtype=np.int64),
    gym.Box(0, 2**64 - 1, (2,), np.uint64),
    gym.Discrete(5, start=-2),
    gym.MultiDiscrete([3, 4], start=[1, -1]),
    gym.MultiDiscrete(np.array([[3, 4], [5, 6]]), dtype="int32"),
    gym.MultiBinary((2, 3)),
    gym.Text(7, min_length=0, charset="abc"),
    gym.Tuple((gym.Discrete(2), gym.Dict(a=gym.MultiBinary(2)), gym.Tuple(()))),
    gym.Dict(z=gym.Discrete(2), a=gym.Dict(deep=gym.Box(0, 1, (2,)), also=gym.Text(3))),
]


@pytest.mark.parametrize("space", ORIGINALS, ids=str)
def test_a_gymnasium_space_is_equal_after_the_way_there_and_back(space: Any) -> None:
    ours = from_gymnasium(space, "w")
    back = to_gymnasium(ours)
    assert back == space
    assert ANY.validate_json(ANY.dump_json(ours)) == ours
    if space.dtype != np.uint64:  # Gymnasium cannot sample these
        assert space.contains(back.sample())


@pytest.mark.parametrize(
    ("space", "value"),
    [
        (gym.Sequence(gym.Discrete(2)), "Sequence"),
        (gym.Graph(gym.Discrete(2), None), "Graph"),
        (gym.OneOf((gym.Discrete(2), gym.Discrete(3))), "OneOf"),
        (gym.Dict({"x": gym.Tuple((gym.Sequence(gym.Discrete(2)),))}), "Sequence"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_space_without_a_fixed_size_is_refused_with_one_sentence(space: Any, value: str) -> None:
    with raises(ConfigurationError, "space_without_fixed_size", where="w, agent a", value=value) as refusal:
        from_gymnasium(space, "w, agent a")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("space", "key", "value"),
    [
        (gym.Dict({"a b": gym.Discrete(2)}), "spaces.a b.[key]", "'a b'"),
        (gym.Dict({"a.b": gym.Discrete(2)}), "spaces.a.b.[key]", "'a.b'"),
        (gym.Box(np.inf, np.inf, (2,)), "low.all.int", "inf"),
        (gym.Box(np.arange(70_000), np.inf, (70_000,)), "low.each", "(0.0, 1.0, "),
    ],
    ids=["space", "dot", "infinite", "too many"],
)
def test_a_space_that_cannot_be_taken_is_refused_with_one_sentence(space: Any, key: str, value: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        from_gymnasium(space, "w, agent a")
    told = refusal.value
    assert (told.kind, told.where, told.reason.kind, told.reason.key) == (
        "space_not_supported",
        "w, agent a",
        "value_invalid",
        key,
    )
    assert told.reason.value.startswith(value)
    assert str(told.reason) in str(told)
    assert "\n" not in str(told)


def test_equal_spaces_are_one_whatever_the_order_and_form_they_were_given_in() -> None:
    one, other = Box(shape=(2,), low=0, high=1), Box(shape=(2,), low=(0.0, 0), high=(1, 1.0))
    assert one == other
    assert one.model_dump_json() == other.model_dump_json()
    assert Box(shape=(2,), dtype="int8") == Box(shape=(2,), dtype="int8", low=-128, high=(127, 127))
    ab, ba = Dict(spaces={"a": one, "b": Discrete(n=2)}), Dict(spaces={"b": Discrete(n=2), "a": one})
    assert [leaf.name for leaf in elements(ab, "observation")] == ["observation.a", "observation.b"]
    assert ab.model_dump_json() == ba.model_dump_json()


SEEN = Dict(
    spaces={"camera": Box(shape=(2, 2), dtype="uint8"), "pair": Tuple(spaces=(Discrete(n=3), Text(max_length=3)))}
)
GOOD: dict[str, Any] = {"camera": np.zeros((2, 2), np.uint8), "pair": (2, "abc")}


@pytest.mark.parametrize(
    ("change", "field", "kind", "facts"),
    [
        ({"camera": np.zeros((2, 1), np.uint8)}, ".camera", "array_shape_wrong", {"expected": [2, 2], "value": [2, 1]}),
        (
            {"camera": np.zeros((2, 2), np.float32)},
            ".camera",
            "array_type_wrong",
            {"expected": "uint8", "value": np.dtype("float32")},
        ),
        (
            {"camera": np.full((2, 2), 300)},
            ".camera",
            "element_outside_bounds",
            {"low": 0, "high": 255, "value": 300, "place": " at [0, 0]"},
        ),
        ({"camera": [[1], [1, 2]]}, ".camera", "array_is_ragged", {"expected": "uint8", "shape": [2, 2]}),
        ({"pair": (3, "abc")}, ".pair.0", "element_outside_bounds", {"low": 0, "high": 2, "value": 3}),
        ({"pair": (-1, "abc")}, ".pair.0", "element_outside_bounds", {"low": 0, "high": 2, "value": -1}),
        ({"pair": (0.5, "abc")}, ".pair.0", "array_type_wrong", {"expected": "int64", "value": np.dtype("float64")}),
        ({"pair": (0, "abcd")}, ".pair.1", "text_length_wrong", {"low": 1, "high": 3, "value": "4 of them"}),
        ({"pair": (0, "a!")}, ".pair.1", "text_character_unknown", {"value": "!"}),
        ({"pair": (0,)}, ".pair", "value_not_a_tuple", {"count": 2, "value": "of 1"}),
        ({"pair": {"0": 0}}, ".pair", "value_not_a_tuple", {"count": 2, "value": "dict"}),
        ({"more": 1}, "", "component_not_in_space", {"component": "more"}),
    ],
)
def test_a_value_outside_its_space_is_refused_by_the_name_of_the_leaf(
    change: dict[str, Any], field: str, kind: str, facts: dict[str, Any]
) -> None:
    flatten(SEEN, GOOD, "observation", "w, agent a")
    with raises(EnvironmentFault, kind, field=f"w, agent a: observation{field}", **facts):
        flatten(SEEN, GOOD | change, "observation", "w, agent a")


def test_a_value_that_lacks_an_element_is_refused() -> None:
    with raises(
        EnvironmentFault, "component_missing", field="observation", component="pair", choices=["camera", "pair"]
    ):
        flatten(SEEN, {"camera": GOOD["camera"]}, "observation")
    with raises(EnvironmentFault, "value_not_a_mapping", field="observation", value="ndarray"):
        flatten(SEEN, np.zeros(3), "observation")
    with raises(EnvironmentFault, "element_outside_bounds", field="action", low=1, high=3, value=0, place=" at [1]"):
        flatten(MultiDiscrete(nvec=(3, 3), start=1), [1, 0], "action")


def test_a_gymnasium_environment_is_the_tree_with_one_agent_I10() -> None:
    env = gymnasium.make("CartPole-v1")
    world = world_from_gymnasium("gymnasium:CartPole-v1", env.observation_space, env.action_space, 500)
    (place,) = world.places
    assert (place.name, world.agents[0].action) == ("agent", Discrete(n=2))
    assert [leaf.name for leaf in place.leaves] == ["observation", "action"]
    assert to_gymnasium(world.agents[0].observation) == env.observation_space
    assert to_pettingzoo(world) == ({"agent": env.observation_space}, {"agent": env.action_space})
    with raises(ConfigurationError, "space_without_fixed_size", where="odd", value="Sequence"):
        world_from_gymnasium("odd", gym.Sequence(gym.Discrete(2)), env.action_space)


BOARD = gym.Box(0, 1, (3, 3, 2), np.int8)


def _masked(mask: Any, seen: Any = BOARD) -> gym.Dict:
    return gym.Dict({"observation": seen, "action_mask": mask})


def test_pettingzoo_spaces_become_a_world_and_come_back() -> None:
    seen = {"player_1": _masked(gym.Box(0, 1, (9,), np.int8)), "player_0": BOARD, "coach": gym.Discrete(4)}
    done = {"player_1": gym.Discrete(9), "player_0": gym.Discrete(9), "coach": gym.Box(-1, 1, (2,))}
    world = world_from_pettingzoo("board", seen, done)
    assert [agent.name for agent in world.agents] == ["player_1", "player_0", "coach"]
    assert [agent.action_mask for agent in world.agents] == [True, False, False]
    assert world.agents[0].observation == world.agents[1].observation
    names = [(leaf.name, leaf.space.shape) for leaf in world.places[0].leaves]
    assert names == [("observation", (3, 3, 2)), ("action_mask", (9,)), ("action", ())]
    assert to_pettingzoo(world) == (seen, done)


@pytest.mark.parametrize("dtype", ["uint8", "bool", "int64", None])
def test_a_mask_is_known_in_whichever_type_it_comes(dtype: Any) -> None:
    mask = gym.Box(0, 1, (9,), np.dtype(dtype).type) if dtype else gym.MultiBinary(9)
    world = world_from_pettingzoo("board", {"a": _masked(mask)}, {"a": gym.Discrete(9)})
    assert world.agents[0].action_mask
    assert world_from_pettingzoo("board", *to_pettingzoo(world)) == world


@pytest.mark.parametrize(
    ("mask", "action"),
    [
        (gym.Box(0, 1, (8,), np.int8), gym.Discrete(9)),
        (gym.Box(0, 2, (9,), np.int8), gym.Discrete(9)),
        (gym.Box(0, 1, (9,), np.float32), gym.Discrete(9)),
        (gym.MultiBinary(2), gym.Box(-1, 1, (2,))),
    ],
)
def test_what_cannot_be_a_mask_of_the_action_stays_an_observation(mask: Any, action: Any) -> None:
    world = world_from_pettingzoo("board", {"a": _masked(mask)}, {"a": action})
    assert not world.agents[0].action_mask
    assert [leaf.name for leaf in world.places[0].leaves][:2] == ["observation.action_mask", "observation.observation"]


def test_masks_of_several_choices_and_other_keys_are_known_too() -> None:
    action = gym.Dict(move=gym.Discrete(4), say=gym.MultiDiscrete([2, 3]), push=gym.Box(0, 1, (1,)))
    masks = gym.Dict({"move": gym.Box(0, 1, (4,), np.int8), "say": gym.Box(0, 1, (5,), np.int8)})
    world = world_from_pettingzoo("w", {"a": _masked(masks)}, {"a": action})
    names = [leaf.name for leaf in world.places[0].leaves if leaf.role == "action_mask"]
    assert names == ["action_mask.move", "action_mask.say"]
    assert to_pettingzoo(world) == ({"a": _masked(masks)}, {"a": action})
    both = gym.Dict(eye=BOARD, ear=gym.Discrete(2), action_mask=gym.MultiBinary(4))
    assert [leaf.name for leaf in world_from_pettingzoo("w", {"a": both}, {"a": gym.Discrete(4)}).places[0].leaves] == [
        "observation.ear",
        "observation.eye",
        "action_mask",
        "action",
    ]


@given(worlds())
@SLOW
def test_any_tree_can_be_offered_as_pettingzoo_and_its_slots_are_agents_I5(world: World) -> None:
    observations, actions = to_pettingzoo(world)
    slots = [slot for place in world.places for slot in place.slots]
    assert list(observations) == list(actions) == slots


def test_common_observations_come_beside_an_agents_own_in_pettingzoo() -> None:
    member = Agent(name="m", observation=Box(shape=(2,)), action=Discrete(n=2), action_mask=True)
    herd = ArrayPopulation(name="herd", template=member, capacity=2, common=Discrete(n=3))
    map_ = Observation(components={"map": Component(space=Box(shape=(4,)))})
    world = World(id="w", population=DictPopulation(agents=(herd,), common=map_))
    observations, _ = to_pettingzoo(world)
    assert list(observations) == ["herd.m.0", "herd.m.1"]
    assert set(observations["herd.m.0"]) == {"observation", "action_mask", "common", "common.herd"}  # type: ignore[call-overload]


def test_pettingzoo_spaces_that_do_not_fit_are_refused_by_name() -> None:
    with raises(ConfigurationError, "agent_spaces_incomplete", environment="w", agents=["b"]):
        world_from_pettingzoo("w", {"a": BOARD, "b": BOARD}, {"a": gym.Discrete(2)})
    with raises(ConfigurationError, "spaces_cannot_be_taken", where="w, agent a/b") as refusal:
        world_from_pettingzoo("w", {"a/b": BOARD}, {"a/b": gym.Discrete(2)})
    assert isinstance(refusal.value, ConfigurationError)
    assert (refusal.value.reason.kind, refusal.value.reason.key) == ("value_invalid", "name")
    with raises(ConfigurationError, "space_without_fixed_size", where="w, agent a", value="Sequence"):
        world_from_pettingzoo("w", {"a": gym.Sequence(BOARD)}, {"a": gym.Discrete(2)})


def test_spaces_load_without_gymnasium() -> None:
    code = "import protocol.spaces.pettingzoo, sys; print(*[m for m in sys.modules if m.split('.')[0] == 'gymnasium'])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=200, check=True
    )
    assert result.stdout.split() == []
