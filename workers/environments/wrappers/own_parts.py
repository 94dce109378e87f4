"""What an agent sees, as one part among others: worlds whose agents are shown more than before, and rows of them.

In flow: a world, and rows of its observations. Out flow: the world whose observations have more parts, and such rows;
a plain observation is its part `own` from then on. What learners see besides what each agent does is a part `central`,
evaluation-only, which no acting policy is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.errors import ConfigurationError
from protocol.spaces import Agent, ArrayPopulation, Component, Dict, Observation, Place, World
from protocol.spaces.model import fault_of
from protocol.spaces.row_format import field_of
from protocol.spaces.tree import Population
from workers.environments.base import AgentOutcome, AgentTimeStep

OWN = "own"
Rows = slice | NDArray[np.int64]


class OwnParts:
    """The fields of one agent's rows in the `inner` world, and what they are called in the rows of the `outer` one."""

    def __init__(self, inner: Place, outer: Place) -> None:
        self._format = inner.observed
        self.fields = [(field_name(inner, field), field) for field in fields_of(inner)]
        assert {to for to, _ in self.fields} <= {*(outer.observed.dtype.names or ())}

    def write(self, rows: NDArray, own: NDArray) -> None:
        """Puts `own` [n, *shape] into `rows` [n]."""
        for to, field in self.fields:
            rows[to] = own[field] if field else own

    def read(self, rows: NDArray) -> NDArray:
        """[n, *shape]: rows as they are in the inner world."""
        found = self._format.zeros(len(rows))
        for field, to in self.fields:
            if to:
                found[to] = rows[field]
            else:
                found[...] = rows[field]
        return found


def fields_of(place: Place) -> list[str]:
    """The fields of an agent's rows; one called "" where they are plain."""
    return [field_of(leaf) for leaf in place.observed.leaves]


def rows_of(told: AgentTimeStep | AgentOutcome, which: NDArray | None = None) -> Rows:
    """The copies that are told of; `which` of them (a mask [n], or positions)."""
    if which is None:
        return slice(None) if told.copies is None else told.copies
    if told.copies is None:
        return np.flatnonzero(which) if which.dtype == np.bool_ else which
    return told.copies[which]


def components(observation: Any) -> dict[str, Component]:
    """The parts of an observation; one that has none by name is the part `own`."""
    if isinstance(observation, Observation):
        return dict(observation.components)
    if isinstance(observation, Dict):
        return {name: Component(space=space) for name, space in observation.spaces.items()}
    return {OWN: Component(space=observation)}


def field_name(place: Place, field: str) -> str:
    """What `field` of the rows of an agent is called where its observation has other parts besides."""
    named = isinstance(place.agent.observation, Observation | Dict)
    return field if named else ".".join(part for part in (OWN, field) if part)


def with_parts(agent: Agent, parts: Mapping[str, Component]) -> Agent:
    """`agent`, whose observation is these `parts`."""
    observation, mask = Observation(components=dict(parts)), agent.action_mask
    return Agent(name=agent.name, observation=observation, action=agent.action, action_mask=mask)


def with_agents(world: World, change: Callable[[Agent, str], Agent]) -> World:
    """`world`, in which the agent at each place is what `change` makes of it and its name."""
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
