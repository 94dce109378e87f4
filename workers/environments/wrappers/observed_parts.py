"""Which parts of the observations of a foreign environment are taken: `environment.observe`.

In flows: Gymnasium's spaces, and observations as they nest them. Out flows: the same without the parts that are left
out. A tuple that loses some becomes a dictionary by position, so that all parts that stay keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from protocol.config.environment import ObservedParts
from protocol.errors import ConfigurationError

Plan = dict[str | int, Any]
"""Key or position of a part that is taken -> the Plan of its own parts, or None for all of it."""
_BESIDE = ("action_mask", "central")
"""What lies beside an observation rather than in it."""


def pick_spaces(
    id: str, observations: Mapping[str, Any], observe: ObservedParts | None
) -> tuple[dict[str, Any], dict[str, Plan | None]]:
    """By agent: the space of what is taken, and how it is picked out (None: all of it); ConfigurationError for a path
    that no agent has."""
    if observe is None:
        return dict(observations), dict.fromkeys(observations)
    known = list(dict.fromkeys(path for space in observations.values() for path, _, _ in _paths(space, "")))
    for path in (*observe.drop, *observe.keep):
        if path not in known:
            facts = {"environment": id, "value": path, "choices": known or "none"}
            raise ConfigurationError("observed_part_unknown", **facts, key="environment.observe")
    picked = {agent: _pick_space(space, "", observe) for agent, space in observations.items()}
    return {agent: space for agent, (space, _) in picked.items()}, {agent: plan for agent, (_, plan) in picked.items()}


def pick(plan: Plan | None, value: Any) -> Any:
    """What is taken of an observation; a part that it should have and lacks is missed by who encodes the others."""
    if plan is None or not isinstance(value, Mapping | tuple | list):
        return value
    there = value if isinstance(value, Mapping) else dict(enumerate(value))
    return {str(key): pick(inner, there[key]) for key, inner in plan.items() if key in there}


def _pick_space(space: Any, path: str, observe: ObservedParts) -> tuple[Any, Plan | None]:
    """(what is taken of `space`, which is the part at `path`, how), or (None, None) where that is nothing."""
    from gymnasium import spaces

    parts = _inner(space, path)
    if not parts:
        return (space, None) if observe.drop or not path else (None, None)
    found: dict[str, Any] = {}
    plan: Plan = {}
    for inner_path, key, inner in parts:
        if inner_path in observe.drop:
            continue
        kept = inner_path in observe.keep or (observe.keep and inner_path in _BESIDE)
        taken, how = (inner, None) if kept else _pick_space(inner, inner_path, observe)
        if taken is not None:
            found[str(key)], plan[key] = taken, how
    if len(found) == len(parts) and all(how is None for how in plan.values()):
        return space, None
    return (spaces.Dict(found), plan) if found or not path else (None, None)


def _paths(space: Any, path: str) -> Iterator[tuple[str, str | int, Any]]:
    """All parts, at all depths."""
    for part in _inner(space, path):
        yield part
        yield from _paths(part[2], part[0])


def _inner(space: Any, path: str) -> list[tuple[str, str | int, Any]]:
    """(path, key or position, space) of the parts right below."""
    parts = getattr(space, "spaces", ())
    each = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
    return [(f"{path}.{key}" if path else str(key), key, inner) for key, inner in each]
