"""What a tree must keep to beyond the fields of its nodes: it may have come from anybody.

In flow: a tree, its nodes valid by themselves. Out flow: nothing, or a ValueError with one sentence.
"""

from __future__ import annotations

from collections.abc import Iterable

from protocol.errors import ConfigurationError
from protocol.spaces.agent_slots import Place
from protocol.spaces.model import DEPTH, LEAF_NAME, LEAVES, NODES, Node


def check_size(root: Node) -> None:
    """Raises ValueError for a tree too deep or too large to be meant."""
    count, level = 0, [root]
    for _ in range(DEPTH):
        count += len(level)
        if count > NODES:
            raise ConfigurationError("world_tree_too_large", limit=NODES)
        level = [child for node in level for child in _children(node)]
        if not level:
            return
    raise ConfigurationError("world_tree_too_deep", limit=DEPTH)


def check_places(places: Iterable[Place]) -> None:
    """Raises ValueError unless all agents have names and leaves of their own, and can act once deployed."""
    taken: dict[str, object] = {}
    capacities: dict[str, int] = {}
    leaves = 0
    for place in places:
        for name, node in (*place.populations[1:], (place.name, place)):
            if taken.setdefault(name, node) is not node:
                raise ConfigurationError("world_path_taken_twice", value=name)
        if place.capacity is not None:
            capacities[place.name] = place.capacity
        leaves += len(place.leaves)
        if leaves > LEAVES:
            raise ConfigurationError("world_leaves_too_many", limit=LEAVES)
        _check_names(place)
        _check_sight(place)
    for name in taken:
        template, _, slot = name.rpartition(".")
        if template in capacities and slot.isdecimal():
            raise ConfigurationError("agent_named_like_slot", value=name, agent=template)


def _children(node: Node) -> list[Node]:
    """The nodes right below one, in whichever of its fields they are."""
    found: list[Node] = []
    for value in dict(node).values():
        if isinstance(value, Node):
            found.append(value)
        elif isinstance(value, dict):
            found.extend(value.values())
        elif isinstance(value, tuple):
            found.extend(part for part in value if isinstance(part, Node))
    return found


def _check_names(place: Place) -> None:
    longest = place.name if place.capacity is None else f"{place.name}.{place.capacity - 1}"
    if len(longest) > 64:
        raise ConfigurationError("agent_name_too_long", agent=longest)
    names: set[str] = set()
    for leaf in place.leaves:
        if len(leaf.name) > LEAF_NAME:
            raise ConfigurationError("leaf_name_too_long", agent=place.name, field=leaf.name, limit=LEAF_NAME)
        if leaf.name in names:
            raise ConfigurationError("leaf_name_ambiguous", agent=place.name, field=leaf.name)
        names.add(leaf.name)


def _check_sight(place: Place) -> None:
    if not any(leaf.role in ("observation", "common") and not leaf.evaluation_only for leaf in place.leaves):
        raise ConfigurationError("agent_sees_nothing", agent=place.name)
    if not any(leaf.role == "action" for leaf in place.leaves):
        raise ConfigurationError("agent_action_empty", agent=place.name)
