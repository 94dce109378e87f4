"""Members that one set of policies cannot play are refused, with both IDs, the agent and the field."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Box, DictPopulation, Discrete, World
from workers.environments.collections.agreement import world_of


def agent(name: str, seen: int = 3, actions: int = 2, mask: bool = False) -> Agent:
    return Agent(name=name, observation=Box(shape=(seen,)), action=Discrete(n=actions), action_mask=mask)


def world(*agents: Agent, common: Any = None, payoff: Any = "general", **lengths: Any) -> World:
    return World(id="w", population=DictPopulation(agents=agents, common=common, payoff=payoff), **lengths)


BASE = world(agent("a"), agent("b"))
MAP = Box(shape=(7, 7))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (world(agent("a")), "'one' has the agent 'b' and 'two' has not; give all members the same agents"),
        (world(agent("a"), agent("b"), agent("c")), "'two' has the agent 'c' and 'one' has not; give all"),
        (world(agent("a"), agent("b", seen=4)), "'one' and 'two' differ in the observation of agent 'b', .*; make"),
        (
            world(agent("a", actions=5), agent("b")),
            "'one' and 'two' differ in the action of agent 'a', .*n=2.* and .*n=5",
        ),
        (world(agent("a"), agent("b", mask=True)), "differ in the action_mask of agent 'b', False and True; make them"),
        (world(agent("a"), agent("b"), common=MAP), r"differ in the common observation of agent 'a', \[\] and \[Box"),
        (
            world(agent("a"), agent("b"), payoff="zero_sum"),
            "differ in the payoff of agent 'a', .*general.*zero_sum.*; make",
        ),
        (world(agent("b"), agent("a")), "differ in the order or structure of their populations; make them the same"),
    ],
)
def test_what_differs_is_named_I9_I11(other: World, said: str) -> None:
    """Teams and payoffs are the worlds', never a trainer's."""
    with pytest.raises(ConfigurationError, match=said) as caught:
        world_of({"one": BASE, "same": BASE, "two": other})
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("environment.members: ")


def test_templates_have_the_same_capacity() -> None:
    herds = [World(id="w", population=ArrayPopulation(template=agent("sheep"), capacity=n)) for n in (2, 3)]
    with pytest.raises(
        ConfigurationError, match="differ in the capacity of agent 'sheep', 2 and 3; make them the same"
    ):
        world_of({"one": herds[0], "two": herds[1]})


def test_the_world_of_all_says_how_long_things_last_where_all_agree() -> None:
    """What is not known costs memory; what is said wrongly would lose final observations."""
    one, two = (world(agent("a"), episode_steps=steps, action_period=2) for steps in (20, 100))
    assert world_of({"one": one, "two": two}) == World(
        id="collection", population=one.population, episode_steps=None, action_period=2
    )
    assert world_of({"one": one, "same": one}).episode_steps == 20
