"""The guard, leaf by leaf: nested observations, masks, rows of templates, and the actions that a player hands over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from protocol.errors import EnvironmentFault
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Place,
    Text,
    Tuple,
    World,
)
from tests.faults import raises
from workers.environments.base import AgentTimeStep, Environment, Turn
from workers.environments.checks.checked_environment import CheckedEnvironment

E = 3
NESTED = Agent(
    name="bird",
    observation=Dict(
        spaces={"eye": Box(shape=(2,)), "leg": Tuple(spaces=(Discrete(n=4), Box(dtype="float64", shape=())))}
    ),
    action=Dict(
        spaces={
            "call": Text(max_length=3, min_length=1, charset="abc"),
            "choose": MultiDiscrete(nvec=(2, 3), start=(0, 5)),
            "claw": MultiBinary(shape=(2,)),
            "fly": Box(shape=(2,), low=(-1, None), high=(1, 0.1)),
            "go": Discrete(n=3, start=-1),
            "hum": Box(shape=()),
        }
    ),
    action_mask=True,
)


class Scene(Environment):
    """One agent in E copies, whose rows are good until `spoil` has seen them."""

    def __init__(
        self, agent: Agent, spoil: Callable[[AgentTimeStep], None] = lambda told: None, capacity: int = 0
    ) -> None:
        herd = {"population": ArrayPopulation(template=agent, capacity=capacity or 1)}
        self.world = World(id="scene", **(herd if capacity else {"agents": (agent,)}))
        self.copies, self.spoil = E, spoil

    def reset(self, seed: int) -> Turn:
        place = self.world.places[0]
        n = E * place.many
        mask = None if place.masked is None else place.masked.zeros(n)
        if mask is not None:
            for name in mask.dtype.names or [...]:
                mask[name] = True
        none = np.zeros(n, np.bool_)
        present = AgentTimeStep(
            0, place.observed.zeros(n), np.zeros(n, np.float32), none, none.copy(), action_mask=mask
        )
        self.spoil(present)
        return Turn((present,), E)

    def step(self, actions: Sequence[NDArray[Any]]) -> Turn:
        return self.reset(0)


def good(place: Place) -> NDArray[Any]:
    """An action in every space: all of them zeros, but for the choices."""
    rows = place.acted.zeros(E * place.many)
    if place.acted.nested:
        rows["choose"], rows["call"] = (0, 5), (1, 0, 0)
    return rows


def replaced(array: NDArray[Any], **kinds: Any) -> NDArray[Any]:
    """The same fields with other forms."""
    names = [name for name in array.dtype.names or () if kinds.get(name, "") is not None]
    return np.zeros(len(array), [(name, *kinds.get(name, (array.dtype[name],))) for name in names])


def poke(field: str, leaf: str, index: Any, value: Any) -> Callable[[AgentTimeStep], None]:
    def spoil(told: AgentTimeStep) -> None:
        rows = getattr(told, field)
        (rows[leaf] if leaf else rows)[index] = value

    return spoil


def reform(field: str, **kinds: Any) -> Callable[[AgentTimeStep], None]:
    return lambda told: setattr(told, field, replaced(getattr(told, field), **kinds))


def give(field: str, value: Any) -> Callable[[AgentTimeStep], None]:
    return lambda told: setattr(told, field, value)


def ended(told: AgentTimeStep) -> None:
    told.truncated[1] = True
    told.final_index = np.array([1])
    told.final_observation = told.observation[:1].copy()
    told.final_observation["leg.1"] = np.nan


LEAVES, MASKED = "eye, leg.0, leg.1", "choose, go"
ONE_EACH = "True for a choice of each element in every row"


@pytest.mark.parametrize(
    ("spoil", "field", "expected", "value"),
    [
        (poke("observation", "eye", (1, 0), np.nan), "observation.eye", "finite numbers", "nan at [1, 0]"),
        (poke("observation", "leg.1", 2, np.inf), "observation.leg.1", "finite numbers", "inf at [2]"),
        (reform("observation", eye=("f8", 2)), "observation.eye", "float32[2] in each row", "float64[2]"),
        (reform("observation", eye=("f4", 3)), "observation.eye", "float32[2] in each row", "float32[3]"),
        (reform("observation", eye=None), "observation.eye", "float32[2] in each row", "missing"),
        (
            give("observation", np.zeros((E, 2), np.float32)),
            "observation",
            f"rows of {LEAVES}, without gaps",
            "float32[3, 2]",
        ),
        (give("observation", None), "observation", f"an array rows of {LEAVES}[3]", "NoneType"),
        (ended, "final_observation.leg.1", "finite numbers", "nan at [0]"),
        (give("action_mask", None), "action_mask", f"an array rows of {MASKED}[3]", "NoneType"),
        (reform("action_mask", go=("i1", 3)), "action_mask.go", "bool[3] in each row", "int8[3]"),
        (poke("action_mask", "go", 2, False), "action_mask.go", ONE_EACH, "True for none in row 2"),
        (
            poke("action_mask", "choose", (1, slice(2, 5)), False),
            "action_mask.choose",
            ONE_EACH,
            "True for none in row 1",
        ),
    ],
)
def test_a_wrong_leaf_is_told_by_its_name_with_expected_and_got_I3_J9(
    spoil: Any, field: str, expected: str, value: str
) -> None:
    facts = {"field": field, "expected": expected, "value": value}
    with raises(EnvironmentFault, "agent_data_invalid", environment="scene", agent="bird", **facts):
        CheckedEnvironment(Scene(NESTED, spoil)).reset(0)


def test_who_has_no_mask_is_shown_none() -> None:
    plain = NESTED.model_copy(update={"action_mask": False})
    with raises(
        EnvironmentFault,
        "agent_data_invalid",
        agent="bird",
        field="action_mask",
        expected="None, as the agent has none",
        value="bool[3, 3]",
    ):
        CheckedEnvironment(Scene(plain, give("action_mask", np.ones((E, 3), np.bool_)))).reset(0)


@pytest.mark.parametrize(
    ("spoil", "field", "expected", "value"),
    [
        (lambda a: a["go"].__setitem__(1, 2), "action.go", "-1 to 1", "2 at [1]"),
        (lambda a: a["go"].__setitem__(0, -2), "action.go", "-1 to 1", "-2 at [0]"),
        (lambda a: a["choose"].__setitem__((2, 1), 4), "action.choose", "5 to 7", "4 at [2, 1]"),
        (lambda a: a["claw"].__setitem__((0, 1), 2), "action.claw", "0 to 1", "2 at [0, 1]"),
        (lambda a: a["fly"].__setitem__((0, 0), -1.5), "action.fly", "-1.0 to 1.0", "-1.5 at [0, 0]"),
        (lambda a: a["fly"].__setitem__((0, 0), np.nan), "action.fly", "finite numbers", "nan at [0, 0]"),
        (lambda a: a["hum"].__setitem__(1, np.inf), "action.hum", "finite numbers", "inf at [1]"),
        (lambda a: a["call"].__setitem__(1, 0), "action.call", "text of its least length", "[0, 0, 0] in row 1"),
        (lambda a: a["call"].__setitem__(1, (1, 0, 1)), "action.call", "text without gaps", "[1, 0, 1] in row 1"),
        (lambda a: a["call"].__setitem__(1, 4), "action.call", "0 to 3", "4 at [1, 0]"),
    ],
)
def test_an_action_outside_its_space_never_reaches_the_environment(
    spoil: Any, field: str, expected: str, value: str
) -> None:
    checked = CheckedEnvironment(Scene(NESTED))
    checked.reset(0)
    actions = good(checked.world.places[0])
    actions["fly"] = (1, 0.1)  # bounds are inside
    checked.step([actions])
    spoil(actions)
    facts = {"field": field, "expected": expected, "value": value}
    with raises(EnvironmentFault, "action_invalid", environment="scene", agent="bird", **facts):
        checked.step([actions])


def test_an_illegal_choice_never_reaches_the_environment() -> None:
    def forbid(told: AgentTimeStep) -> None:
        assert told.action_mask is not None
        told.action_mask["go"][1] = (True, False, True)
        told.action_mask["choose"][2, 4] = False

    checked = CheckedEnvironment(Scene(NESTED, forbid))
    checked.reset(0)
    actions = good(checked.world.places[0])
    with raises(
        EnvironmentFault,
        "action_invalid",
        agent="bird",
        field="action.go",
        expected="a choice that action_mask allows",
        value="0 at [1]",
    ):
        checked.step([actions])
    actions["go"][1] = 1
    checked.step([actions])
    actions["choose"][2, 1] = 7
    with raises(
        EnvironmentFault,
        "action_invalid",
        agent="bird",
        field="action.choose",
        expected="a choice that action_mask allows",
        value="7 at [2, 1]",
    ):
        checked.step([actions])


@pytest.mark.parametrize(
    ("actions", "kind", "facts"),
    [
        ([], "actions_count_mismatch", {"expected": 1, "value": 0}),
        ([np.zeros(E, np.int32)], "action_invalid", {"expected": "int64[3]", "value": "int32[3]"}),
        ([np.zeros(E + 1, np.int64)], "action_invalid", {"expected": "int64[3]", "value": "int64[4]"}),
        ([[0] * E], "action_invalid", {"expected": "an array int64[3]", "value": "list"}),
    ],
)
def test_actions_of_another_form_are_a_fault(actions: Any, kind: str, facts: dict[str, Any]) -> None:
    checked = CheckedEnvironment(Scene(Agent(name="one", observation=Box(shape=(1,)), action=Discrete(n=2))))
    with raises(EnvironmentFault, "step_before_reset", environment="scene"):
        checked.step(actions)
    checked.reset(0)
    with raises(EnvironmentFault, kind, environment="scene", agent="one" if actions else None, **facts):
        checked.step(actions)


def test_a_template_has_a_row_for_each_place_in_each_copy() -> None:
    one = Agent(name="one", observation=Box(shape=(1,)), action=Discrete(n=2))
    checked = CheckedEnvironment(Scene(one, capacity=4))
    assert len(checked.reset(0).present[0].observation) == 4 * E
    checked.step([np.ones(4 * E, np.int64)])
    with raises(
        EnvironmentFault,
        "action_invalid",
        agent="one",
        field="action",
        expected="int64[12]",
        value="int64[3]",
    ):
        checked.step([np.ones(E, np.int64)])

    def few(told: AgentTimeStep) -> None:
        told.copies = np.array([0, 4 * E - 1])
        told.observation, told.reward = told.observation[:2], told.reward[:2]
        told.terminated, told.truncated = told.terminated[:2], told.truncated[:2]

    checked = CheckedEnvironment(Scene(one, few, capacity=4))
    assert checked.reset(0).present[0].copies is not None
    checked.step([np.ones(2, np.int64)])
    with raises(
        EnvironmentFault,
        "agent_data_invalid",
        agent="one",
        field="copies",
        expected="increasing numbers in 0..2",
        value="[ 0 11]",
    ):
        CheckedEnvironment(Scene(one, few)).reset(0)
