"""To and from Gymnasium: its spaces of fixed size are ours, and its environment is a world with one agent.

In flow: Gymnasium's spaces. Out flow: ours, and back; Gymnasium itself is imported only by those who convert.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import ValidationError

from protocol.errors import ConfigurationError
from protocol.errors.origin import shortened
from protocol.spaces.arrays import limits
from protocol.spaces.composite import Dict, Space, Tuple
from protocol.spaces.model import fault_of
from protocol.spaces.primitive import Box, Discrete, MultiBinary, MultiDiscrete, Text, dtype_of
from protocol.spaces.tree import Agent, space_of
from protocol.spaces.world import World

if TYPE_CHECKING:
    import gymnasium


def from_gymnasium(space: Any, where: str, part: str = "") -> Space:
    """Our space; ConfigurationError (it begins with `where`, the environment and agent) for one without a fixed size,
    or with names or numbers that ours cannot hold. `part`: its path in the space that it is a part of."""
    below = f"{part}." if part else ""
    from gymnasium import spaces

    try:
        match space:
            case spaces.Box():
                return _box(space)
            case spaces.Discrete():
                return Discrete.model_validate(
                    {"n": int(space.n), "start": int(space.start), "dtype": space.dtype.name}
                )
            case spaces.MultiDiscrete():
                nvec, start = tuple(space.nvec.ravel().tolist()), tuple(space.start.ravel().tolist())
                return MultiDiscrete.model_validate(
                    {"nvec": nvec, "shape": space.nvec.shape, "start": start, "dtype": space.dtype.name}
                )
            case spaces.MultiBinary():
                return MultiBinary(shape=space.shape)
            case spaces.Text():
                charset = "".join(sorted(space.character_set))
                return Text(max_length=space.max_length, min_length=space.min_length, charset=charset)
            case spaces.Dict():
                return Dict(
                    spaces={key: from_gymnasium(inner, where, f"{below}{key}") for key, inner in space.spaces.items()}
                )
            case spaces.Tuple():
                each = enumerate(space.spaces)
                return Tuple(spaces=tuple(from_gymnasium(inner, where, f"{below}{i}") for i, inner in each))
    except ValidationError as fault:
        of = fault.errors()[0]["loc"] if isinstance(space, spaces.Dict) else ()
        raise ConfigurationError(
            "space_not_supported",
            where=where,
            space=shortened(space, 120),
            reason=fault_of(fault),
            part=f"{below}{of[1]}" if len(of) > 1 else part,
        ) from None
    raise ConfigurationError(
        "space_without_fixed_size", where=where, space=shortened(space, 120), value=type(space).__name__, part=part
    )


def to_gymnasium(space: Space) -> gymnasium.Space[Any]:
    """Gymnasium's space; from it `from_gymnasium` makes the same space again."""
    from gymnasium import spaces

    match space:
        case Box():
            low, high = _filled(space, space.low, "low"), _filled(space, space.high, "high")
            return spaces.Box(low, high, space.shape, dtype_of(space).type)
        case Discrete():
            return spaces.Discrete(space.n, start=space.start, dtype=dtype_of(space).type)
        case MultiDiscrete():
            nvec = np.array(space.nvec, space.dtype).reshape(space.shape)
            return spaces.MultiDiscrete(nvec, dtype_of(space).type, start=space.span[0])
        case MultiBinary():
            return spaces.MultiBinary(space.shape[0] if len(space.shape) == 1 else space.shape)
        case Text():
            return spaces.Text(space.max_length, min_length=space.min_length, charset=space.charset)
        case Dict():
            return spaces.Dict({key: to_gymnasium(part) for key, part in space.spaces.items()})
        case Tuple():
            return spaces.Tuple([to_gymnasium(part) for part in space.spaces])


def agent_from_gymnasium(name: str, observation: Any, action: Any, where: str, action_mask: bool = False) -> Agent:
    """An agent of two of Gymnasium's spaces; ConfigurationError (it begins with `where`) if one cannot be taken."""
    try:
        seen = from_gymnasium(observation, where)
    except ConfigurationError as fault:
        if not fault.facts.get("part"):
            raise
        raise ConfigurationError(
            "observation_part_not_supported", **{**fault.facts, "reason": _why(fault)}, key="environment.observe"
        ) from None
    try:
        return Agent(name=name, observation=seen, action=from_gymnasium(action, where), action_mask=action_mask)
    except ValidationError as fault:
        raise ConfigurationError("spaces_cannot_be_taken", where=where, reason=fault_of(fault)) from None


def world_from_gymnasium(id: str, observation: Any, action: Any, episode_steps: int | None = None) -> World:
    """The world of an environment with these spaces: one agent, called `agent`. ConfigurationError if one cannot be
    taken; `id` names the environment in it."""
    agent = agent_from_gymnasium("agent", observation, action, id)
    return world_of(id, (agent,), episode_steps)


def world_of(id: str, agents: tuple[Agent, ...], episode_steps: int | None) -> World:
    """A world without further structure; ConfigurationError if there can be none of these agents."""
    try:
        return World(id=id, agents=agents, episode_steps=episode_steps)
    except ValidationError as fault:
        raise ConfigurationError("spaces_cannot_be_taken", where=id, reason=fault_of(fault)) from None


def spaces_of(agent: Agent) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """(observation, action) of an agent as Gymnasium's spaces; tags and the mask are not among them."""
    return to_gymnasium(space_of(agent.observation)), to_gymnasium(space_of(agent.action))


def _box(space: Any) -> Box:
    low, high = _bound(space.low, space.bounded_below), _bound(space.high, space.bounded_above)
    return Box.model_validate({"shape": space.shape, "dtype": space.dtype.name, "low": low, "high": high})


def _bound(bound: Any, finite: Any) -> Any:
    """One bound for all elements where they have the same, as most have, or one for each; None where it is infinite."""
    if bound.size and (bound == bound.flat[0]).all() and (finite == finite.flat[0]).all():
        return bound.flat[0].item() if finite.flat[0] else None
    each = zip(bound.ravel().tolist(), finite.ravel().tolist(), strict=True)
    return tuple(value if is_finite else None for value, is_finite in each)


def _filled(space: Box, bound: Any, name: Literal["low", "high"]) -> Any:
    """[*shape] of the dtype; infinite where there is no bound, or only that of a signed dtype, as Gymnasium has it."""
    infinite = -np.inf if name == "low" else np.inf
    if space.dtype.startswith("int") and bound == limits(space.dtype)[name == "high"]:
        return infinite
    each = [infinite if one is None else one for one in (bound if isinstance(bound, tuple) else (bound,))]
    return np.broadcast_to(np.array(each, space.dtype), space.size).reshape(space.shape).copy()


def _why(fault: ConfigurationError) -> str:
    return str(fault.facts.get("reason") or f"a {fault.value} has no fixed size")
