"""To and from PettingZoo: its dictionaries of spaces, parallel or in turns, are a population of named agents.

In flow: agent -> space, as `env.observation_space(agent)` gives them. Out flow: a `World`, and back. PettingZoo's
convention for legal actions, a Dict observation with `observation` and `action_mask`, is an agent with an action mask.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from protocol.errors import ConfigurationError
from protocol.spaces.agent_slots import Place
from protocol.spaces.composite import elements
from protocol.spaces.gymnasium import agent_from_gymnasium, to_gymnasium, world_of
from protocol.spaces.tree import Agent, space_of
from protocol.spaces.world import World

if TYPE_CHECKING:
    import gymnasium

_MASK, _REST = "action_mask", "observation"


def world_from_pettingzoo(
    id: str, observations: Mapping[str, Any], actions: Mapping[str, Any], episode_steps: int | None = None
) -> World:
    """The world of an environment whose possible agents have these spaces, in the order of `observations`.

    PettingZoo says nothing of teams and payoffs: build the population from the agents where they are known.
    ConfigurationError, beginning with `id` and the agent, if a space or name cannot be taken.
    """
    if observations.keys() != actions.keys():
        odd = sorted(observations.keys() ^ actions.keys())
        raise ConfigurationError("agent_spaces_incomplete", environment=id, agents=list(odd))
    agents = tuple(_agent(id, name, observations[name], actions[name]) for name in observations)
    return world_of(id, agents, episode_steps)


def to_pettingzoo(world: World) -> tuple[dict[str, gymnasium.Space[Any]], dict[str, gymnasium.Space[Any]]]:
    """(observation spaces, action spaces) by agent; each slot of a template is an agent.

    Where there is a mask or a common observation, an agent observes a Dict of `observation`, `action_mask` (of several
    choices, a Dict of masks by the choices' dotted names), `common` and, of inner populations, `common.PATH`.
    """
    observations, actions = {}, {}
    for place in world.places:
        observation, action = _observation(place), to_gymnasium(space_of(place.agent.action))
        for slot in place.slots:
            observations[slot], actions[slot] = observation, action
    return observations, actions


def _agent(id: str, name: str, observation: Any, action: Any) -> Agent:
    from gymnasium import spaces

    where = f"{id}, agent {name}"
    agent = agent_from_gymnasium(name, spaces.Discrete(1), action, where)
    if not isinstance(observation, spaces.Dict) or not _is_mask(observation.spaces.get(_MASK), agent):
        return agent_from_gymnasium(name, observation, action, where)
    rest = {key: part for key, part in observation.spaces.items() if key != _MASK}
    return agent_from_gymnasium(
        name, rest[_REST] if rest.keys() == {_REST} else spaces.Dict(rest), action, where, action_mask=True
    )


def _observation(place: Place) -> gymnasium.Space[Any]:
    from gymnasium import spaces

    parts = {}
    for path, population in place.populations:
        if population.common is not None:
            parts[f"common.{path}" if path else "common"] = to_gymnasium(space_of(population.common))
    if place.agent.action_mask:
        parts[_MASK] = _mask(place.agent)
    own = to_gymnasium(space_of(place.agent.observation))
    return spaces.Dict({_REST: own, **parts}) if parts else own


def _choices(agent: Agent) -> dict[str, int]:
    """Dotted name below the action ("" for the action itself) -> entries of its mask."""
    parts = elements(space_of(agent.action), "")
    return {part.name.removeprefix("."): part.space.choices for part in parts if hasattr(part.space, "choices")}


def _mask(agent: Agent) -> gymnasium.Space[Any]:
    from gymnasium import spaces

    masks: dict[str, gymnasium.Space[Any]] = {
        name: spaces.Box(0, 1, (n,), np.int8) for name, n in _choices(agent).items()
    }
    return masks[""] if "" in masks else spaces.Dict(masks)


def _is_mask(space: Any, agent: Agent) -> bool:
    """Is it an array of 0 and 1 of whatever whole type, one for each choice?"""
    from gymnasium import spaces

    choices = _choices(agent)
    if "" not in choices:
        return bool(choices) and space == _mask(agent)
    if isinstance(space, spaces.MultiBinary):
        return space.shape == (choices[""],)
    if not isinstance(space, spaces.Box) or space.shape != (choices[""],) or space.dtype.kind not in "iub":
        return False
    return bool((space.low == 0).all() and (space.high == 1).all())
