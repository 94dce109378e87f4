"""Whether the members of a collection are played by the same policies: one world for all of them.

In flow: the world of each. Out flow: theirs together, or a ConfigurationError that names two members, the agent and the
field in which they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocol.config.environment import COLLECTION
from protocol.errors import ConfigurationError
from protocol.errors.origin import shortened
from protocol.spaces import Place, World


def common_world(worlds: Mapping[str, World]) -> World:
    """The world that all of `worlds` (by member) are; how long its episodes and turns are is said where all agree."""
    (name, first), *others = worlds.items()
    for other, world in others:
        _agree(name, first, other, world)
    steps, periods = ({getattr(w, field) for w in worlds.values()} for field in ("episode_steps", "action_period"))
    return World(
        id=COLLECTION,
        population=first.population,
        episode_steps=steps.pop() if len(steps) == 1 else None,
        action_period=periods.pop() if len(periods) == 1 else None,
    )


def _agree(name: str, one: World, other_name: str, other: World) -> None:
    if one.population == other.population:
        return
    names, others = ([place.name for place in world.places] for world in (one, other))
    for has, lacks, whose, there in ((name, other_name, names, others), (other_name, name, others, names)):
        for agent in (agent for agent in whose if agent not in there):
            raise ConfigurationError(
                "member_agents_differ", member=has, agent=agent, other=lacks, key="environment.members"
            )
    for place in one.places:
        field, ours, theirs = _difference(place, other.place(place.name))
        if field:
            raise ConfigurationError(
                "member_spaces_differ",
                member=name,
                other=other_name,
                field=field,
                agent=place.name,
                value=shortened(ours, 80),
                expected=shortened(theirs, 80),
                key="environment.members",
            )
    raise ConfigurationError("members_order_differs", member=name, other=other_name, key="environment.members")


def _difference(one: Place, other: Place) -> tuple[str, Any, Any]:
    """(field, of the one, of the other), empty if there is none."""
    for field in ("observation", "action", "action_mask"):
        ours, theirs = getattr(one.agent, field), getattr(other.agent, field)
        if ours != theirs:
            return field, ours, theirs
    ours, theirs = ([leaf for leaf in place.leaves if leaf.common] for place in (one, other))
    if ours != theirs:
        return "common observation", [leaf.space for leaf in ours], [leaf.space for leaf in theirs]
    if one.capacity != other.capacity:
        return "capacity", one.capacity, other.capacity
    ours, theirs = ([population.payoff for _, population in place.populations] for place in (one, other))
    return ("payoff", ours, theirs) if ours != theirs else ("", None, None)
