"""What learners see of a world besides what each agent does: a part of every observation that is evaluation-only.

In flow: a world whose agents each observe something. Out flow: the same world with a component `central` in every
agent's observation, which no acting policy is shown; a plain observation is its component `own` from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Component, Dict, Observation, Place, World
from protocol.spaces.model import fault_of
from protocol.spaces.tree import Population

CENTRAL, OWN = "central", "own"


def with_central(world: World, spaces: Mapping[str, Any]) -> World:
    """`world`, in which the agent at each place sees a space besides; ConfigurationError where that cannot be."""

    def widened(agent: Agent, name: str) -> Agent:
        parts = components(agent.observation)
        if CENTRAL in parts:
            raise refuse_second(world.id, name)
        parts[CENTRAL] = Component(space=spaces[name], evaluation_only=True)
        return Agent(
            name=agent.name,
            observation=Observation(components=parts),
            action=agent.action,
            action_mask=agent.action_mask,
        )

    try:
        return _with(world, widened)
    except ValidationError as fault:
        raise ConfigurationError(
            "central_state_world_invalid", environment=world.id, reason=fault_of(fault), key="environment.central_state"
        ) from None


def tagged(world: World) -> World:
    """`world`, in which a part `central` that all observations have is evaluation-only from now on."""

    def widened(agent: Agent, name: str) -> Agent:
        parts = components(agent.observation)
        parts[CENTRAL] = Component(space=parts[CENTRAL].space, evaluation_only=True)
        return agent.model_copy(update={"observation": Observation(components=parts)})

    return _with(world, widened)


def refuse_second(id: str, agent: str) -> ConfigurationError:
    """An observation has a part of that name already."""
    return ConfigurationError(
        "central_observation_name_taken", entry=CENTRAL, agent=agent, environment=id, key="environment.central_state"
    )


def components(observation: Any) -> dict[str, Component]:
    """The parts of an observation; one that has none by name is the part `own`."""
    if isinstance(observation, Observation):
        return dict(observation.components)
    if isinstance(observation, Dict):
        return {name: Component(space=space) for name, space in observation.spaces.items()}
    return {OWN: Component(space=observation)}


def field_name(place: Place, field: str) -> str:
    """What `field` of the rows of an agent is called where its observation has a component `central` besides."""
    named = isinstance(place.agent.observation, Observation | Dict)
    return field if named else ".".join(part for part in (OWN, field) if part)


def _with(world: World, change: Callable[[Agent, str], Agent]) -> World:
    population = _changed(world.population, "", change)
    steps, period = world.episode_steps, world.action_period
    return World(id=world.id, population=population, episode_steps=steps, action_period=period)


def _changed(node: Population, path: str, change: Callable[[Agent, str], Agent]) -> Population:
    dotted = f"{path}." if path else ""
    if isinstance(node, ArrayPopulation):
        return node.model_copy(update={"template": change(node.template, dotted + node.template.name)})
    children = tuple(
        change(child, dotted + child.name) if isinstance(child, Agent) else _changed(child, dotted + child.name, change)
        for child in node.agents
    )
    return node.model_copy(update={"agents": children})
