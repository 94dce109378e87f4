"""Which policy plays which agent, and which agents could share one.

In flow: a world, and what its user wants shared. Out flow: agent -> policy.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocol.errors import ConfigurationError
from protocol.spaces.agent_slots import Place
from protocol.spaces.row_format import Leaf
from protocol.spaces.tree import DictPopulation
from protocol.spaces.world import World


def symmetries(world: World) -> tuple[tuple[str, ...], ...]:
    """Groups of agents that are interchangeable, in the world's order; an agent like no other is alone in its group.

    Two agents are if their paths differ only in which member of a symmetric population they are (or are below of).
    """
    groups: dict[str, list[str]] = {}
    for place in world.places:
        groups.setdefault(_part(place), []).append(place.name)
    return tuple(tuple(names) for names in groups.values())


def policy_map(
    world: World, given: Mapping[str, str] | None = None, *, symmetric: bool = False, templates: bool = True
) -> dict[str, str]:
    """agent -> policy for all agents of `world`, in its order; by default each has one of its own, called like it.

    `symmetric`: interchangeable agents share one, called like the first of them. `templates`: all that stand in a
    template's slots share one; otherwise each slot is an agent of its own, named `template.number`. `given` overrides;
    the name of a template means all its slots. Raises ConfigurationError for an agent that there is not, and where
    agents would share a policy whose spaces differ.
    """
    given = given or {}
    leaders = {name: group[0] if symmetric else name for group in symmetries(world) for name in group}
    mapping: dict[str, str] = {}
    players: dict[str, Place] = {}
    known = set(leaders)
    for place in world.places:
        slots = (place.name,) if templates else place.slots
        known.update(slots)
        for slot in slots:
            own = leaders[place.name] + slot.removeprefix(place.name)
            policy = mapping[slot] = given.get(slot, given.get(place.name, own))
            first = players.setdefault(policy, place)
            if first is not place:
                check_alike(world, policy, first, place)
    for name in given:
        if name not in known:
            raise ConfigurationError(
                "agents_key_unknown", agent=name, environment=world.id, choices=list(mapping), key="agents"
            )
    return mapping


def _part(place: Place) -> str:
    """The path of a place with every choice among symmetric members left open."""
    names: list[str] = []
    above = [population for _, population in place.populations]
    members = [*(population.name for population in above[1:]), place.agent.name]
    for population, member in zip(above, members, strict=True):
        names.append("*" if isinstance(population, DictPopulation) and population.symmetric else f"={member}")
    return "/".join(names)


def check_alike(world: World, policy: str, one: Place, other: Place) -> None:
    """ConfigurationError unless agents at the two places can have one policy."""
    ours, theirs = _signature(one), _signature(other)
    if ours == theirs and one.agent.action == other.agent.action:
        return
    differing = next((name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)), "action")
    raise ConfigurationError(
        "shared_policy_spaces_differ",
        policy=policy,
        agent=one.name,
        other=other.name,
        environment=world.id,
        field=differing,
        key="agents",
    )


def _signature(place: Place) -> dict[str, Leaf]:
    """leaf name -> the leaf, whoever owns it."""
    return {leaf.name: _ownerless(leaf) for leaf in place.leaves}


def _ownerless(leaf: Leaf) -> Leaf:
    return Leaf(leaf.name, leaf.role, leaf.path, leaf.space, leaf.evaluation_only, "")
