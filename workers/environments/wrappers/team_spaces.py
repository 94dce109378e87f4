"""A world in which teams stand for their members: each is one agent that sees and does what all of them see and do.

In flow: the world of the members. Out flows: the world of the teams and of all who are in none, and which column of a
team is which column of a member.

Parts of a team's observations, actions and masks are called as their members; a dot in a name becomes a dash. What only
learners see of members is one part more, `evaluation_only`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from protocol.config.environment import Mates
from protocol.errors import ConfigurationError
from protocol.spaces import (
    Agent,
    ArrayPopulation,
    Component,
    Dict,
    DictPopulation,
    Leaf,
    Observation,
    Place,
    Population,
    Space,
    World,
    space_of,
)
from protocol.spaces.tree import deployed

HIDDEN = "evaluation_only"


@dataclass(frozen=True, slots=True)
class Team:
    """`agent`: its place in the world of teams; `members`: their places in the world of members, in the order of
    their names."""

    name: str
    agent: int
    members: tuple[int, ...]


def part_of(leaf: Leaf, member: str) -> str:
    """What a leaf of `member` is called in its team's record."""
    inner = leaf.name.partition(".")[2]
    return ".".join(part for part in (HIDDEN if leaf.evaluation_only else "", _key(member), inner) if part)


def team_world(world: World, teams: Mapping[str, Mates]) -> tuple[World, tuple[Team, ...]]:
    """Teams first, then all who are in none, as they stood; ConfigurationError, in one sentence, for teams that there
    cannot be."""
    mates = {team: _mates(world, team, given) for team, given in teams.items()}
    taken: dict[str, str] = {}
    for team, places in mates.items():
        for place in places:
            if place.name in taken:
                raise ConfigurationError(
                    "agent_in_two_teams", agent=place.name, team=taken[place.name], other=team, key="environment.teams"
                )
            taken[place.name] = team
    rest = _without(world.population, "", set(taken))
    beside = () if rest is None else (rest,) if isinstance(rest, ArrayPopulation) else rest.agents
    names = [child.name for child in beside]
    for team in mates:
        if team in names:
            raise ConfigurationError(
                "team_named_like_agent", environment=world.id, team=team, key=f"environment.teams.{team}"
            )
    population = DictPopulation(
        name=world.population.name,
        agents=(*(_agent(team, places) for team, places in mates.items()), *beside),
        common=world.population.common,
    )
    changed = World(
        id=world.id, population=population, episode_steps=world.episode_steps, action_period=world.action_period
    )
    return changed, tuple(
        Team(team, agent, tuple(world.places.index(place) for place in places))
        for agent, (team, places) in enumerate(mates.items())
    )


def _mates(world: World, team: str, given: Mates) -> list[Place]:
    """The members in the order of their names."""
    names = [place.name for place in world.places]
    wanted = names if given == "all" else list(dict.fromkeys(given))
    for name in wanted:
        if name not in names:
            raise ConfigurationError(
                "team_names_unknown_agent",
                team=team,
                agent=name,
                environment=world.id,
                choices=list(names),
                key=f"environment.teams.{team}",
            )
    places = sorted((world.place(name) for name in wanted), key=lambda place: _key(place.name))
    for place in places:
        if place.capacity is not None:
            raise ConfigurationError(
                "team_member_varies_in_number", agent=place.name, team=team, key=f"environment.teams.{team}"
            )
    if len(places) < 2:
        raise ConfigurationError("team_of_one_member", team=team, key=f"environment.teams.{team}")
    shared = [pair for pair in places[0].populations if all(pair in place.populations for place in places)]
    if shared[-1][1].payoff == "zero_sum":
        raise ConfigurationError(
            "team_members_are_opponents", team=team, environment=world.id, key=f"environment.teams.{team}"
        )
    return places


def _agent(team: str, places: list[Place]) -> Agent:
    """The one that stands for the agents at `places`."""
    seen = {_key(place.name): deployed(place.agent.observation) for place in places}
    components = {name: Component(space=space) for name, space in seen.items()}
    hidden: dict[str, Space] = {_key(p.name): _hidden(p.agent) for p in places if _hidden(p.agent).spaces}
    if hidden:
        components[HIDDEN] = Component(space=Dict(spaces=hidden), evaluation_only=True)
    return Agent(
        name=team,
        observation=Observation(components=components),
        action=Dict(spaces={_key(place.name): space_of(place.agent.action) for place in places}),
        action_mask=any(place.agent.action_mask for place in places),
    )


def _hidden(agent: Agent) -> Dict:
    """What only learners see of an agent."""
    parts = agent.observation.components if isinstance(agent.observation, Observation) else {}
    return Dict(spaces={name: part.space for name, part in parts.items() if part.evaluation_only})


def _without(node: Population, path: str, gone: set[str]) -> Population | None:
    """The population at `path` without the agents named; payoffs hold no longer where some are missing."""
    if isinstance(node, ArrayPopulation):
        return node
    dotted = f"{path}." if path else ""
    kept: list[Agent | Population] = []
    for child in node.agents:
        left = child if isinstance(child, Agent) else _without(child, dotted + child.name, gone)
        if left is not None and dotted + child.name not in gone:
            kept.append(left)
    if tuple(kept) == node.agents:
        return node
    return node.model_copy(update={"agents": tuple(kept), "payoff": "general"}) if kept else None


def _key(name: str) -> str:
    return name.replace(".", "-")
