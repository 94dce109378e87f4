"""Teams, symmetry and who may share a policy follow from the tree alone."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from pydantic import ValidationError

from protocol.errors import ConfigurationError
from protocol.spaces import (
    Action,
    Agent,
    ArrayPopulation,
    Box,
    Component,
    Dict,
    DictPopulation,
    Discrete,
    Observation,
    World,
    policy_map,
    symmetries,
)
from tests.faults import raises
from tests.protocol.spaces.spaces_strategies import SLOW, worlds


def _agent(name: str, n: int = 2, **more: Any) -> Agent:
    return Agent(name=name, observation=Discrete(n=n), action=Discrete(n=2), **more)


def _team(name: str, **more: Any) -> DictPopulation:
    return DictPopulation(name=name, agents=(_agent("keeper"), _agent("striker", 3)), **more)


def _match(**more: Any) -> World:
    teams = (_team("red", payoff="cooperative"), _team("blue", payoff="cooperative"))
    return World(id="match", population=DictPopulation(agents=teams, payoff="zero_sum", **more))


HERD = World(
    id="herd",
    population=DictPopulation(
        agents=(_agent("dog"), ArrayPopulation(name="herd", template=_agent("sheep"), capacity=3))
    ),
)


def test_each_agent_has_a_policy_of_its_own_by_default() -> None:
    world = World(id="w", agents=(_agent("b"), _agent("a")))
    assert policy_map(world) == {"b": "b", "a": "a"}
    assert policy_map(_match(symmetric=True))["blue.keeper"] == "blue.keeper"


def test_teams_are_the_outermost_cooperative_populations_I11() -> None:
    assert _match().teams == {"red": ("red.keeper", "red.striker"), "blue": ("blue.keeper", "blue.striker")}
    assert HERD.teams == {"dog": ("dog",), "herd.sheep": ("herd.sheep",)}
    inner = _team("pair", payoff="cooperative")
    both = World(id="w", population=DictPopulation(payoff="cooperative", agents=(inner, _agent("a"))))
    assert both.teams == {"": ("pair.keeper", "pair.striker", "a")}


def test_agents_that_differ_only_in_a_symmetric_place_are_interchangeable_I11() -> None:
    assert symmetries(_match(symmetric=True)) == (("red.keeper", "blue.keeper"), ("red.striker", "blue.striker"))
    assert symmetries(_match()) == (("red.keeper",), ("red.striker",), ("blue.keeper",), ("blue.striker",))
    alike = World(id="w", population=DictPopulation(agents=(_agent("a"), _agent("b")), symmetric=True))
    assert symmetries(alike) == (("a", "b"),)


def test_symmetric_agents_may_share_a_policy_I11() -> None:
    assert policy_map(_match(symmetric=True), symmetric=True) == {
        "red.keeper": "red.keeper",
        "red.striker": "red.striker",
        "blue.keeper": "red.keeper",
        "blue.striker": "red.striker",
    }
    assert policy_map(_match(), symmetric=True) == policy_map(_match())
    given_one = policy_map(_match(symmetric=True), {"blue.keeper": "frozen"}, symmetric=True)
    assert (given_one["red.keeper"], given_one["blue.keeper"]) == ("red.keeper", "frozen")


def test_members_that_differ_cannot_be_declared_symmetric_I11() -> None:
    with raises(ValidationError, "symmetric_members_differ", population="all", agent="a", other="b"):
        DictPopulation(agents=(_agent("a"), _agent("b", 3)), symmetric=True)
    with raises(ValidationError, "symmetric_members_differ", population="all", agent="red", other="blue"):
        DictPopulation(agents=(_team("red"), _team("blue", payoff="cooperative")), symmetric=True)


def test_those_in_a_templates_slots_share_a_policy_or_have_one_each_I5_J2() -> None:
    assert policy_map(HERD) == {"dog": "dog", "herd.sheep": "herd.sheep"}
    apart = policy_map(HERD, templates=False)
    assert apart == {name: name for name in ("dog", "herd.sheep.0", "herd.sheep.1", "herd.sheep.2")}
    mixed = policy_map(HERD, {"herd.sheep": "flock", "herd.sheep.1": "black"}, templates=False)
    assert mixed == {"dog": "dog", "herd.sheep.0": "flock", "herd.sheep.1": "black", "herd.sheep.2": "flock"}
    assert policy_map(HERD, {"herd.sheep": "dog"}) == {"dog": "dog", "herd.sheep": "dog"}


def test_an_agent_that_there_is_not_is_refused() -> None:
    with raises(
        ConfigurationError, "agents_key_unknown", agent="cat", environment="herd", choices=["dog", "herd.sheep"]
    ):
        policy_map(HERD, {"cat": "x"})
    with raises(ConfigurationError, "agents_key_unknown", agent="herd.sheep.3"):
        policy_map(HERD, {"herd.sheep.3": "x"}, templates=False)
    with raises(ConfigurationError, "agents_key_unknown", agent="herd.sheep.0"):
        policy_map(HERD, {"herd.sheep.0": "x"})


SEEN = {"eye": Component(space=Discrete(n=2)), "truth": Component(space=Discrete(n=2), evaluation_only=True)}
BODY = Dict(spaces={"move": Discrete(n=2)})


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        (_agent("a"), _agent("b", 3), "observation"),
        (_agent("a"), _agent("b", action_mask=True), "action_mask"),
        (_agent("a"), Agent(name="b", observation=Discrete(n=2), action=Box(shape=(2,))), "action"),
        (
            Agent(name="a", observation=Observation(components=SEEN), action=Discrete(n=2)),
            Agent(name="b", observation=Dict(spaces={k: c.space for k, c in SEEN.items()}), action=Discrete(n=2)),
            "observation.truth",
        ),
        (
            Agent(name="a", observation=Discrete(n=2), action=BODY),
            Agent(name="b", observation=Discrete(n=2), action=Action(space=BODY, atomic=False)),
            "action",
        ),
    ],
)
def test_agents_whose_spaces_differ_cannot_share_and_both_are_named(one: Agent, other: Agent, difference: str) -> None:
    world = World(id="w", agents=(one, other))
    facts = {"policy": "x", "agent": "a", "other": "b", "environment": "w", "field": difference}
    with raises(ConfigurationError, "shared_policy_spaces_differ", **facts):
        policy_map(world, {"a": "x", "b": "x"})


def test_agents_that_see_other_common_observations_cannot_share() -> None:
    told = DictPopulation(name="told", agents=(_agent("a"),), common=Discrete(n=9))
    world = World(id="w", population=DictPopulation(agents=(told, _agent("b"))))
    with raises(ConfigurationError, "shared_policy_spaces_differ", agent="told.a", other="b", field="common"):
        policy_map(world, {"told.a": "x", "b": "x"})
    alike = DictPopulation(agents=(told, told.model_copy(update={"name": "also"})), symmetric=True)
    shared = policy_map(World(id="w", population=alike), symmetric=True)
    assert shared == {"told.a": "told.a", "also.a": "told.a"}


@given(worlds())
@SLOW
def test_interchangeable_agents_can_always_share_and_every_agent_is_in_one_group_I11(world: World) -> None:
    names = [place.name for place in world.places]
    assert sorted(name for group in symmetries(world) for name in group) == sorted(names)
    mapping = policy_map(world, symmetric=True)
    assert list(mapping) == names
    assert len(set(mapping.values())) == len(symmetries(world))
    assert sorted(name for team in world.teams.values() for name in team) == sorted(names)
