"""What the adapters of foreign environments share: translated spaces, checked copying of observations, seeds.

In flows: a Gymnasium space and what an environment returns. Out flows: our spaces and filled arrays.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from protocol.errors import ConfigurationError, EnvironmentFault
from protocol.spaces import Agent, Box, Discrete

__all__ = [
    "agent_of",
    "box",
    "check_same",
    "copy_in",
    "copy_seeds",
    "discrete",
    "most_steps",
    "possible_agents",
    "refuse_early_step",
]

_WIDER = {"float64": "float32", "float16": "float32", "uint16": "int32", "uint32": "int64"}
"""Dtypes held as another one; float64 loses digits that no network uses."""
_KNOWN = frozenset(get_args(Box.model_fields["dtype"].annotation))


def box(space: Any, where: str) -> Box:
    """Our `Box` of a Gymnasium observation space; ConfigurationError for a space that is no Box of numbers.

    `where` names the environment (and agent) in the error.
    """
    from gymnasium import spaces

    if isinstance(space, spaces.Dict) and "action_mask" in space.spaces:
        raise ConfigurationError(
            f"{where} observes an action_mask, and this release plays no games with illegal actions; return its "
            "'observation' alone and play a legal action for an illegal one in a function of your own, with the id "
            "module:function"
        )
    if not isinstance(space, spaces.Box):
        raise ConfigurationError(
            f"{where} observes {space}, and this release takes Box observations only; "
            "flatten it (gymnasium.wrappers.FlattenObservation) in a function of your own, with the id module:function"
        )
    dtype = _WIDER.get(space.dtype.name, space.dtype.name)
    if dtype not in _KNOWN:
        raise ConfigurationError(
            f"{where} observes {space}, and this release has no {dtype} observations; "
            "convert them in a function of your own, with the id module:function"
        )
    low, high = (float(space.low.min()), float(space.high.max())) if space.low.size else (np.inf, np.inf)
    return Box.model_validate(
        {
            "shape": space.shape,
            "dtype": dtype,
            "low": low if np.isfinite(low) else None,
            "high": high if np.isfinite(high) else None,
        }
    )


def discrete(space: Any, where: str) -> tuple[Discrete, int]:
    """Our `Discrete` of a Gymnasium action space and the number of its first action; ConfigurationError for others."""
    from gymnasium import spaces

    if not isinstance(space, spaces.Discrete):
        raise ConfigurationError(
            f"{where} acts in {space}, and this release takes Discrete actions only; "
            "map a list of choices onto it in a function of your own, with the id module:function"
        )
    return Discrete(n=int(space.n)), int(space.start)


def agent_of(name: str, observation: Any, action: Any, where: str) -> tuple[Agent, int]:
    """An agent of two of Gymnasium's spaces, and the number of its first action; ConfigurationError for others."""
    seen = box(observation, where)
    done, start = discrete(action, where)
    try:
        return Agent(name=name, observation=seen, action=done), start
    except ValidationError:
        raise ConfigurationError(
            f"{where} is an agent called {name!r}; rename it with letters, digits, '_', '.' and '-' only"
        ) from None


def possible_agents(id: str, env: Any) -> tuple[tuple[Agent, ...], list[int]]:
    """All agents that a PettingZoo environment can have, and the number of each one's first action."""
    told = [
        agent_of(name, env.observation_space(name), env.action_space(name), f"{id}, agent {name},")
        for name in getattr(env, "possible_agents", ())
    ]
    if not told:
        raise ConfigurationError(f"{id} has no agents in possible_agents; list them there")
    return tuple(agent for agent, _ in told), [start for _, start in told]


def check_same(expected: Any, got: Any, where: str, field: str) -> None:
    """EnvironmentFault if a space is not the one that was declared at first."""
    if got is not expected and got != expected:
        raise EnvironmentFault(
            f"{where} {field} should be {expected} but is {got}; keep the spaces of all copies and episodes the same"
        )


def copy_in(target: NDArray[Any], row: int, value: Any, where: str) -> None:
    """`target[row] = value`; EnvironmentFault where numpy would have to broadcast or to change the kind of number."""
    array = np.asarray(value)
    if array.shape != target.shape[1:] or (
        array.dtype != target.dtype and not np.can_cast(array.dtype, target.dtype, "same_kind")
    ):
        raise EnvironmentFault(
            f"{where} observation should be {target.dtype}{list(target.shape[1:])} but is "
            f"{array.dtype}{list(array.shape)}; let the environment return what its observation space declares"
        )
    target[row] = array


def most_steps(value: Any) -> int | None:
    """A limit of steps as an environment declares it; None where that is no such number."""
    return int(value) if isinstance(value, int | np.integer) and value > 0 else None


def refuse_early_step(where: str) -> EnvironmentFault:
    """What to raise when actions come for an environment that has no episode yet."""
    return EnvironmentFault(f"{where} step came before reset; call reset first")


def copy_seeds(seed: int, copies: int) -> list[int]:
    """[E] distinct seeds below 2**31 (some environments take no larger ones), one for each copy, drawn from `seed`."""
    start = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    # An odd stride visits every number once before it repeats one, and keeps neighbours apart.
    every = start + np.arange(copies, dtype=np.uint64) * np.uint64(0x9E3779B1)
    return [int(one) for one in every % np.uint64(2**31)]
