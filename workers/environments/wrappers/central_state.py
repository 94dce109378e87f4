"""What learners see of a world besides what each agent does: a part of every observation that is evaluation-only.

In flow: a world whose agents each observe something. Out flow: the same world with a component `central` in every
agent's observation, which no acting policy is shown; a plain observation is its component `own` from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, Component, World
from protocol.spaces.model import fault_of
from workers.environments.wrappers.own_parts import components, with_agents, with_parts

CENTRAL = "central"


def with_central(world: World, spaces: Mapping[str, Any]) -> World:
    """`world`, in which the agent at each place sees a space besides; ConfigurationError where that cannot be."""

    def widened(agent: Agent, name: str) -> Agent:
        parts = components(agent.observation)
        if CENTRAL in parts:
            raise refuse_second(world.id, name)
        parts[CENTRAL] = Component(space=spaces[name], evaluation_only=True)
        return with_parts(agent, parts)

    try:
        return with_agents(world, widened)
    except ValidationError as fault:
        raise ConfigurationError(
            "central_state_world_invalid", environment=world.id, reason=fault_of(fault), key="environment.central_state"
        ) from None


def tagged(world: World) -> World:
    """`world`, in which a part `central` that all observations have is evaluation-only from now on."""

    def widened(agent: Agent, name: str) -> Agent:
        parts = components(agent.observation)
        parts[CENTRAL] = Component(space=parts[CENTRAL].space, evaluation_only=True)
        return with_parts(agent, parts)

    return with_agents(world, widened)


def refuse_second(id: str, agent: str) -> ConfigurationError:
    """An observation has a part of that name already."""
    return ConfigurationError(
        "observation_part_taken", entry=CENTRAL, agent=agent, environment=id, key="environment.central_state"
    )
