"""Members that one set of policies cannot play are refused, with both IDs, the agent and the field."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Box, DictPopulation, Discrete, World
from tests.faults import raises
from workers.environments.collections.common_world import common_world


def agent(name: str, seen: int = 3, actions: int = 2, mask: bool = False) -> Agent:
    return Agent(name=name, observation=Box(shape=(seen,)), action=Discrete(n=actions), action_mask=mask)


def world(*agents: Agent, common: Any = None, payoff: Any = "general", **lengths: Any) -> World:
    return World(id="w", population=DictPopulation(agents=agents, common=common, payoff=payoff), **lengths)


BASE = world(agent("a"), agent("b"))
MAP = Box(shape=(7, 7))


@pytest.mark.parametrize(
    ("other", "field", "name", "ours", "theirs"),
    [
        (world(agent("a"), agent("b", seen=4)), "observation", "b", "shape=(3,)", "shape=(4,)"),
        (world(agent("a", actions=5), agent("b")), "action", "a", "n=2", "n=5"),
        (world(agent("a"), agent("b", mask=True)), "action_mask", "b", "False", "True"),
        (world(agent("a"), agent("b"), common=MAP), "common observation", "a", "[]", "[Box"),
        (world(agent("a"), agent("b"), payoff="zero_sum"), "payoff", "a", "general", "zero_sum"),
    ],
)
def test_what_differs_is_named_I9_I11(other: World, field: str, name: str, ours: str, theirs: str) -> None:
    """Teams and payoffs are the worlds', never a trainer's."""
    members = {"member": "one", "other": "two", "key": "environment.members"}
    with raises(ConfigurationError, "member_spaces_differ", **members, field=field, agent=name) as caught:
        common_world({"one": BASE, "same": BASE, "two": other})
    said = str(caught.value)
    assert "\n" not in said
    assert ours in said
    assert theirs in said


@pytest.mark.parametrize(
    ("other", "kind", "facts"),
    [
        (world(agent("a")), "member_agents_differ", {"member": "one", "agent": "b", "other": "two"}),
        (
            world(agent("a"), agent("b"), agent("c")),
            "member_agents_differ",
            {"member": "two", "agent": "c", "other": "one"},
        ),
        (world(agent("b"), agent("a")), "members_order_differs", {"member": "one", "other": "two"}),
    ],
)
def test_other_agents_are_named_and_so_is_another_order(other: World, kind: str, facts: dict[str, str]) -> None:
    with raises(ConfigurationError, kind, key="environment.members", **facts):
        common_world({"one": BASE, "same": BASE, "two": other})


def test_templates_have_the_same_capacity() -> None:
    herds = [World(id="w", population=ArrayPopulation(template=agent("sheep"), capacity=n)) for n in (2, 3)]
    with raises(ConfigurationError, "member_spaces_differ", field="capacity", agent="sheep", value="2", expected="3"):
        common_world({"one": herds[0], "two": herds[1]})


def test_the_world_of_all_says_how_long_things_last_where_all_agree() -> None:
    """What is not known costs memory; what is said wrongly would lose final observations."""
    one, two = (world(agent("a"), episode_steps=steps, action_period=2) for steps in (20, 100))
    assert common_world({"one": one, "two": two}) == World(
        id="collection", population=one.population, episode_steps=None, action_period=2
    )
    assert common_world({"one": one, "same": one}).episode_steps == 20
