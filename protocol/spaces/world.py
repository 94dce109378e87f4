"""A world: the tree of one environment, and the places that its agents have in it.

In flow: the tree, from an environment or, as JSON, from the wire. Out flow: `World.places`, agents in a fixed order
with dotted names, the populations above them and the leaves that they see and do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from protocol.errors import ConfigurationError, WireError
from protocol.spaces.agent_slots import Place, places_of
from protocol.spaces.composite import elements
from protocol.spaces.model import Node, fault_of
from protocol.spaces.row_format import Leaf
from protocol.spaces.tree import Agent, ArrayPopulation, Population, deployed, space_of
from protocol.spaces.validation import check_places, check_size

_SAID = 80
"""Characters of what was given that a sentence repeats."""


class World(Node):
    """The tree of one environment. `episode_steps`: the most steps an agent takes in an episode, if known.
    `action_period`: the most turns from an action of an agent in a copy to its next one there, if known.

    `agents` in: the members of a population without further structure, as a list or by their names, instead of
    `population`. Out: all agents of the tree in a fixed order (depth first) with their dotted names, as in `places`; it
    is not part of the JSON.
    """

    id: str = Field(min_length=1, max_length=1024)
    population: Population = Field(default=..., discriminator="kind")
    episode_steps: int | None = Field(default=None, ge=1)
    action_period: int | None = Field(default=None, ge=1)
    agents: tuple[Agent, ...] = Field(default=(), exclude=True, repr=False)

    @model_validator(mode="before")
    @classmethod
    def _grow(cls, data: Any) -> Any:
        if isinstance(data, World):
            return data
        if not isinstance(data, Mapping) or ("agents" not in data and "population" not in data):
            raise ConfigurationError("world_without_agents")
        if "agents" in data and "population" in data:
            raise ConfigurationError("world_agents_beside_population")
        if "agents" in data:
            agents = data["agents"]
            data = {key: value for key, value in data.items() if key != "agents"}
            data["population"] = {"kind": "dictionary", "agents": _named(agents)}
        return data

    @model_validator(mode="after")
    def _stand(self) -> Self:
        check_size(self.population)
        check_places(self.places)
        agents = tuple(place.agent.model_copy(update={"name": place.name}) for place in self.places)
        object.__setattr__(self, "agents", agents)
        return self

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Where the agents stand, in their order."""
        return places_of(self.population)

    def agent(self, name: str) -> Agent:
        """The agent called `name`; KeyError if there is none."""
        return {agent.name: agent for agent in self.agents}[name]

    def place(self, name: str) -> Place:
        """Where the agent called `name` stands; KeyError if there is none."""
        return {place.name: place for place in self.places}[name]

    @property
    def teams(self) -> dict[str, tuple[str, ...]]:
        """team -> its agents: the outermost cooperative populations, by path; any other agent is a team of its own."""
        teams: dict[str, list[str]] = {}
        for place in self.places:
            paths = (path for path, population in place.populations if population.payoff == "cooperative")
            teams.setdefault(next(paths, place.name), []).append(place.name)
        return {team: tuple(names) for team, names in teams.items()}

    @property
    def common(self) -> tuple[Leaf, ...]:
        """What populations observe in common: each leaf once, however many agents see it."""
        return tuple(dict.fromkeys(leaf for place in self.places for leaf in place.leaves if leaf.common))

    def deployed(self) -> World:
        """The same world without evaluation-only components: what acting policies may see."""
        return World(
            id=self.id,
            population=_deployed(self.population),
            episode_steps=self.episode_steps,
            action_period=self.action_period,
        )


def parse_world(text: str | bytes) -> World:
    """A world from its JSON; WireError with one sentence if that is none."""
    try:
        return World.model_validate_json(text)
    except ValidationError as fault:
        raise WireError("world_malformed", reason=fault_of(fault)) from None


def _named(agents: Any) -> Any:
    """Agents as members of a population, which tells by `kind` what they are: a list of them, or by their names."""
    if isinstance(agents, Mapping):
        agents = [_called(name, agent) for name, agent in agents.items()]
    if not isinstance(agents, list | tuple):
        raise ConfigurationError("world_agents_unreadable", value=repr(agents)[:_SAID])
    return tuple({"kind": "agent", **agent} if isinstance(agent, Mapping) else agent for agent in agents)


def _called(name: Any, agent: Any) -> Any:
    if not isinstance(agent, Mapping):
        return agent
    if (own := agent.get("name", name)) != name:
        raise ConfigurationError("world_agent_named_twice", agent=name, value=own)
    return {**agent, "name": name}


def _deployed(node: Population) -> Population:
    common = deployed(node.common)
    changes: dict[str, Any] = {"common": common if common and any(elements(space_of(common), "")) else None}
    if isinstance(node, ArrayPopulation):
        changes["template"] = _unseeing(node.template)
    else:
        changes["agents"] = tuple(_unseeing(c) if isinstance(c, Agent) else _deployed(c) for c in node.agents)
    return node.model_copy(update=changes)


def _unseeing(agent: Agent) -> Agent:
    return agent.model_copy(update={"observation": deployed(agent.observation)})
