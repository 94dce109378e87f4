"""Spaces are plain data, and names are safe to put into paths and topics."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from protocol.spaces import Agent, Box, Discrete, World


def _agent(name: str) -> Agent:
    return Agent(name=name, observation=Box(shape=(2, 3), dtype="uint8", low=0, high=255), action=Discrete(n=4))


def test_a_world_round_trips_through_json() -> None:
    world = World(id="w", agents=(_agent("a"), _agent("b.1")), episode_steps=100)
    assert World.model_validate_json(world.model_dump_json()) == world
    assert world.agent("b.1").observation.size == 6
    with pytest.raises(KeyError):
        world.agent("c")


@pytest.mark.parametrize("name", ["", "a/b", "..", ".", ".hidden", "-x", "a b", "ä", "a\n", "a\0", "x" * 65])
def test_a_name_that_could_leave_a_folder_or_a_topic_is_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        _agent(name)


def test_a_world_without_agents_or_with_unknown_facts_is_refused() -> None:
    with pytest.raises(ValidationError):
        World(id="w", agents=())
    with pytest.raises(ValidationError):
        World.model_validate({"id": "w", "agents": [_agent("a").model_dump()], "teams": 2})
