"""Observations outside the boxes that a world declares are found with the value, the agent and the step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from protocol.spaces import Agent, Box, Dict, DictPopulation, Discrete, World
from workers.environments.base import AgentTimeStep, Turn
from workers.environments.checks.bounds_check import BoundsCheck
from workers.metrics.diagnostics import OUTSIDE, counter, findings_of, outside_counters

UNIT = Box(shape=(2,), low=-1.0, high=1.0)
EACH = Box(shape=(2,), low=(0.0, None), high=(None, 5.0))
BITS = Box(shape=(2,), dtype="uint8", low=0, high=1)
BYTES = Box(shape=(2,), dtype="uint8", low=0, high=255)
OPEN = Box(shape=(2,))
PI = Box(shape=(2,), low=-3.141592653589793, high=3.141592653589793)


def check(**spaces: Any) -> BoundsCheck:
    agents = tuple(Agent(name=name, observation=space, action=Discrete(n=2)) for name, space in spaces.items())
    return BoundsCheck(World(id="bounded", population=DictPopulation(agents=agents)))


def turn(*rows: Any) -> Turn:
    none, ends = np.zeros(1, np.float32), np.zeros(1, np.bool_)
    return Turn(tuple(AgentTimeStep(i, one, none, ends, ends) for i, one in enumerate(rows)))


@pytest.mark.parametrize(
    ("space", "row", "told"),
    [
        (UNIT, [300.0, 0.0], ("", 300.0, -1.0, 1.0)),
        (UNIT, [0.0, -1.5], ("", -1.5, -1.0, 1.0)),
        (EACH, [-0.5, 99.0], ("", -0.5, 0.0, np.inf)),
        (EACH, [99.0, 5.5], ("", 5.5, -np.inf, 5.0)),
        (BITS, [0, 2], ("", 2.0, 0.0, 1.0)),
        (Dict(spaces={"far": UNIT, "near": OPEN}), ([0.0, 1.5], [9.0, 9.0]), ("far", 1.5, -1.0, 1.0)),
    ],
)
def test_a_number_outside_is_found_once_with_its_place(space: Any, row: Any, told: tuple[Any, ...]) -> None:
    looked = check(one=space, other=OPEN)
    kind = looked._places[0].observed.dtype
    inside, outside = np.zeros((1, 2) if kind.names is None else 1, kind), np.array([row], kind)
    other = np.full((1, 2), 1e6, np.float32)
    assert looked.agents == [0]
    assert looked.look(turn(inside, other)) == []
    (found,) = looked.look(turn(outside, other))
    assert (found.name, found.step) == ("one", 1)
    assert (found.field, found.value, found.low, found.high) == told
    assert looked.look(turn(outside, other)) == []


@pytest.mark.parametrize(
    ("space", "row"), [(UNIT, [-1, 1]), (PI, [np.pi, -np.pi]), (BYTES, [0, 255]), (OPEN, [9, -9]), (EACH, [0, 5])]
)
def test_what_lies_on_a_bound_or_has_none_is_well(space: Box, row: Any) -> None:
    assert check(one=space).look(turn(np.array([row], space.dtype))) == []


def test_most_turns_are_not_looked_at_and_a_later_excess_is_found_all_the_same() -> None:
    looked = check(one=UNIT)
    well, wrong = turn(np.zeros((1, 2), np.float32)), turn(np.full((1, 2), 2, np.float32))
    for _ in range(200):
        assert looked.look(well) == []
    found = [one.step for _ in range(2_000) for one in looked.look(wrong)]
    assert len(found) == 1
    assert 200 <= found[0] <= 1_300


def test_the_finding_says_the_value_the_agent_and_the_step() -> None:
    value, step = outside_counters("all", "red.3")
    page = {counter(OUTSIDE, "all"): 1, value: 300.0, step: 18.0}
    (found,) = findings_of(["all"], {}, {("actor-0", 1): page})
    assert (found["finding"], found["level"], found["layer"]) == (OUTSIDE, "note", "data")
    assert (found["agent"], found["value"], found["step"]) == ("red.3", 300.0, 17)
    assert "300 (agent red.3, step 17)" in found["says"]
    assert findings_of(["all"], {}, {("actor-0", 1): {counter(OUTSIDE, "all"): 0, value: 0.0, step: 0.0}}) == []
