"""What a policy is shown and does, for every kind of space (I1, I2)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import ConfigurationError
from protocol.spaces import (
    Agent,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Observation,
    Text,
    World,
)
from tests.faults import raises
from workers.policies.interface import Interface

LOOK = Box(shape=(2,))


def interface(observation: Any = LOOK, action: Any = None, **more: Any) -> Interface:
    """Of an agent of these spaces."""
    return Interface.of(Agent(name="a", observation=observation, action=action or Discrete(n=2), **more))


def shown(one: Interface, columns: dict[str, Any]) -> NDArray:
    """What it is shown of one row of `columns`."""
    rows = {name: np.asarray(value)[None] for name, value in columns.items()}
    return np.asarray(one.observation_encoding.encode(rows.__getitem__, (1,))[0])


def test_a_box_alone_is_shown_as_it_is():
    one = interface(Box(shape=(2, 2), dtype="uint8"))
    assert (one.observation_encoding.is_identity, one.observation_encoding.shape) == (True, (2, 2))
    assert one.observation_encoding.dtype == np.uint8


def test_every_leaf_has_its_numbers_and_choices_are_one_hot():
    seen = Dict(
        spaces={
            "a": Box(shape=(1, 2), dtype="int16"),
            "b": Discrete(n=3, start=-1),
            "c": MultiDiscrete(nvec=(2, 3), start=(0, 5)),
            "d": MultiBinary(shape=(2,)),
            "e": Text(max_length=2, charset="xyz"),
        }
    )
    one = interface(seen)
    row = {
        "observation.a": [[4, -5]],
        "observation.b": 0,
        "observation.c": [1, 5],
        "observation.d": [0, 1],
        "observation.e": [3, 0],
    }
    assert shown(one, row).tolist() == [4, -5, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert one.observation_encoding.shape == (18,)
    row["observation.b"] = 7
    assert shown(one, row)[2:5].tolist() == [0, 0, 0], "no choice that there is: garbage beyond the valid rows"


def test_evaluation_only_components_are_never_shown_I2():
    seen = Observation(components={"eye": Component(space=LOOK), "truth": Component(space=LOOK, evaluation_only=True)})
    one = interface(seen)
    assert [part.column for part in one.observation_encoding.parts] == ["observation.eye"]
    with raises(ConfigurationError, "shown_width_out_of_range", agent="a", role="policy", value=0):
        interface(Box(shape=(0,)))


def test_what_all_see_in_common_comes_last():
    agent = Agent(name="a", observation=Discrete(n=2), action=Discrete(n=2))
    world = World(id="w", population=DictPopulation(agents=(agent,), common=Box(shape=(2,), dtype="int32")))
    one = Interface.at(world, world.places[0])
    assert shown(one, {"observation": 1, "common": [7, 8]}).tolist() == [0, 1, 7, 8]


def test_choices_count_from_their_start_on_every_way():
    one = interface(action=MultiDiscrete(nvec=(2, 3), start=(5, -1)))
    columns, world = one.action_encoding.decode(np.array([[1, 0], [0, 2]]), None)
    assert columns["action"].tolist() == world.tolist() == [[6, -1], [5, 1]]
    assert one.action_encoding.encode_choices(columns.__getitem__, (2,)).tolist() == [[1, 0], [0, 2]]
    alone = interface(action=Discrete(n=3, start=2))
    columns, world = alone.action_encoding.decode(np.array([0, 2]), None)
    assert world.tolist() == [2, 4]
    assert alone.action_encoding.encode_choices(columns.__getitem__, (2,)).tolist() == [0, 2]
    assert interface(action=Discrete(n=3)).action_encoding.plain
    assert not alone.action_encoding.plain


def test_whole_numbers_in_a_box_and_bits_are_choices():
    one = interface(
        action=Dict(spaces={"w": Box(shape=(2,), dtype="int8", low=(0, -1), high=1), "z": MultiBinary(shape=(1,))})
    )
    assert one.action_encoding.head_sizes == (2, 3, 2)
    _, world = one.action_encoding.decode(np.array([[1, 0, 1]]), None)
    assert world["w"].tolist() == [[1, -1]]
    assert world["z"].tolist() == [[1]]


def test_amounts_are_in_halves_of_a_box_kept_as_drawn_and_cut_for_the_world():
    one = interface(action=Box(shape=(3,), low=(-2.0, 0.0, None), high=(2.0, 1.0, None)))
    assert (one.action_encoding.head_sizes, one.action_encoding.continuous) == ((), 3)
    amounts = np.array([[0.5, -3.0, 9.0]], np.float32)
    columns, world = one.action_encoding.decode(np.empty((1, 0), np.int64), amounts)
    np.testing.assert_allclose(columns["action"], [[1.0, -1.0, 9.0]])
    np.testing.assert_allclose(world, [[1.0, 0.0, 9.0]])
    np.testing.assert_allclose(one.action_encoding.amount(columns.__getitem__, (1,)), amounts)


def test_masks_of_all_heads_lie_side_by_side_and_what_has_none_is_legal():
    hands = Dict(spaces={"a": Discrete(n=2), "b": MultiBinary(shape=(1,)), "c": MultiDiscrete(nvec=(2, 2))})
    one = interface(action=hands, action_mask=True)
    masks = {"action_mask.a": np.array([[True, False]]), "action_mask.c": np.array([[False, True, True, False]])}
    legal = one.action_encoding.legal(masks.__getitem__, (1,))
    assert legal.tolist() == [[True, False, True, True, False, True, True, False]]


def test_an_action_without_elements_is_refused_by_name():
    with raises(ConfigurationError, "action_leaf_without_elements", agent="a", field="action", space="box"):
        interface(action=Box(shape=(0,)))


@pytest.mark.parametrize("space", [Text(max_length=3), Discrete(n=2**20), Box(shape=(1,), dtype="int64")])
def test_actions_that_no_policy_can_choose_are_refused_by_name(space: Any):
    with raises(ConfigurationError, "action_space_not_learnable", agent="a", field="action"):
        interface(action=space)
