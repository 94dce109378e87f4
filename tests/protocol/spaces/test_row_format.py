"""Rows of what agents see, do and may do: plain arrays for one leaf, structured ones for nested spaces (I1)."""

import numpy as np

from protocol.spaces import Action, Agent, ArrayPopulation, Box, Dict, DictPopulation, Discrete, World

EYES = Dict(spaces={"camera": Box(shape=(2, 2), dtype="uint8"), "arm": Dict(spaces={"joints": Box(shape=(3,))})})
HANDS = Dict(spaces={"move": Discrete(n=3), "force": Box(shape=(2,), low=-1, high=1)})


def test_the_rows_of_a_leaf_are_a_plain_array():
    world = World(id="w", agents=(Agent(name="a", observation=Box(shape=(4,)), action=Discrete(n=2)),))
    place = world.places[0]
    assert (place.observed.shape, place.observed.dtype) == ((4,), np.dtype(np.float32))
    assert (place.acted.shape, place.acted.dtype) == ((), np.dtype(np.int64))
    assert place.masked is None
    assert place.observed.zeros(5).shape == (5, 4)


def test_the_rows_of_a_nested_space_have_a_field_for_each_leaf():
    agent = Agent(name="a", observation=EYES, action=Action(space=HANDS, atomic=False), action_mask=True)
    place = World(id="w", agents=(agent,)).places[0]
    rows = place.observed.zeros(6)
    assert rows.shape == (6,)
    assert {leaf.name: part.shape for leaf, part in place.observed.parts(rows)} == {
        "observation.arm.joints": (6, 3),
        "observation.camera": (6, 2, 2),
    }
    next(part for leaf, part in place.observed.parts(rows) if "arm" in leaf.name)[:] = 7
    assert (rows["arm.joints"] == 7).all(), "parts are views"
    assert place.acted.dtype.names == ("force", "move")
    assert place.masked is not None
    assert place.masked.dtype.fields is not None
    assert place.masked.dtype["move"].shape == (3,)


def test_a_dict_with_one_element_is_nested_all_the_same():
    """Its column is called `observation.x`, as the tree says."""
    agent = Agent(name="a", observation=Dict(spaces={"x": Box(shape=(2,))}), action=Discrete(n=2))
    record = World(id="w", agents=(agent,)).places[0].observed
    assert (record.nested, record.dtype.names, record.shape) == (True, ("x",), ())


def test_a_template_stands_for_as_many_as_its_capacity():
    agent = Agent(name="a", observation=Box(shape=(1,)), action=Discrete(n=2))
    herd = ArrayPopulation(name="herd", template=agent, capacity=7)
    world = World(id="w", population=DictPopulation(agents=(herd, agent)))
    assert [place.many for place in world.places] == [7, 1]
