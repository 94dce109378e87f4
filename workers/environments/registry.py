"""From a configured id to an environment.

In flow: an `EnvironmentConfig`. Out flow: the environment, or a ConfigurationError that says what to write instead.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, Literal

from protocol.config.run import EnvironmentConfig
from protocol.errors import ConfigurationError, EnvironmentFault, RookeryError
from protocol.errors.origin import blame, is_users
from protocol.spaces import World, parse_world
from workers.environments.adapters import (
    gymnasium_adapter,
    gymnasium_multi_agent,
    openspiel_adapter,
    pettingzoo_parallel,
)
from workers.environments.adapters.dm_env_adapter import DmEnv, is_dm_env
from workers.environments.adapters.gymnasium_vector import GymnasiumVector
from workers.environments.adapters.mlagents_adapter import MlAgentsEnvironment, is_mlagents
from workers.environments.adapters.pettingzoo_aec import PettingZooAEC
from workers.environments.adapters.pettingzoo_parallel import PettingZooEnvironment
from workers.environments.adapters.sorrel_adapter import SorrelEnvironment, is_gridworld
from workers.environments.base import Environment
from workers.environments.collections import Collection
from workers.environments.simulators import EXTERNAL, SimulatorEndpoint, SimulatorEnvironment, settings_of, world_of
from workers.environments.vectorized.process_environment import ProcessEnvironment
from workers.environments.worlds.cleanup import Cleanup
from workers.environments.worlds.deep_sea import DeepSea
from workers.environments.worlds.foraging import Foraging
from workers.environments.worlds.matrix_game import MatrixGame
from workers.environments.worlds.memory import MemoryTask
from workers.environments.worlds.rendezvous import Rendezvous
from workers.environments.worlds.simple_spread import Spread
from workers.environments.worlds.synthetic import Synthetic
from workers.environments.worlds.tag import Tag
from workers.environments.worlds.treasure_hunt import TreasureHunt
from workers.environments.worlds.weather import Weather
from workers.environments.wrappers.joint_observation import JointObservation
from workers.environments.wrappers.team import TeamEnvironment
from workers.runtime.entry_points import import_entry_point

__all__ = ["BUILT_IN", "describe", "make"]

BUILT_IN: Mapping[str, Callable[..., Environment]] = {
    "treasure_hunt": TreasureHunt,
    "cleanup": Cleanup,
    "tag": Tag,
    "matrix_game": MatrixGame,
    "memory": MemoryTask,
    "deep_sea": DeepSea,
    "rendezvous": Rendezvous,
    "synthetic": Synthetic,
    "weather": Weather,
    "foraging": Foraging,
    "spread": Spread,
}
"""The worlds that need no package, each called with copies, turn mode and its settings."""
_FORMS = (
    f"{', '.join(BUILT_IN)}, {EXTERNAL}, gymnasium:ID, gymnasium_multi:ID, openspiel:GAME, pettingzoo:MODULE or "
    "module:function of your own"
)


def make(
    config: EnvironmentConfig, purpose: Literal["train", "evaluate"] = "train", outside: SimulatorEndpoint | None = None
) -> Environment:
    """The environment of `config`, which serves simulators at the `outside` if it is one of these.

    ConfigurationError if there is none, or its settings or turn mode do not fit; EnvironmentFault if it raises when it
    is asked for its spaces or for a first look.

    To `evaluate`, of several: the test side of a split, or all, whatever a curriculum or an adversary would play.
    """
    if purpose == "evaluate":
        config = config.evaluation()
    try:
        return _made(config, outside)
    except RookeryError:
        raise
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise EnvironmentFault("environment_creation_failed", environment=config.id, **blame(fault)) from fault


def _made(config: EnvironmentConfig, outside: SimulatorEndpoint | None) -> Environment:
    for reserved in ("copies", "turn_mode"):
        if reserved in config.settings:
            raise ConfigurationError(
                "setting_is_environment_key", field=reserved, key=f"environment.settings.{reserved}"
            )
    if config.id == EXTERNAL:
        settings = settings_of(config)
        known = parse_world(outside.world) if outside is not None and outside.world else None
        return SimulatorEnvironment(config, settings, known or world_of(settings, describe), outside)
    if config.processes:
        return ProcessEnvironment(config)
    if config.central_state == "joint":
        return JointObservation(_made(config.model_copy(update={"central_state": None}), outside))
    if config.teams:
        agents = _made(config.model_copy(update={"teams": {}}), outside)
        return TeamEnvironment(agents, config.teams, config.team_reward)
    if config.members is not None:
        if any(member.id == EXTERNAL for member in config.members.values()):
            raise ConfigurationError("external_environment_as_member", environment=EXTERNAL, key="environment.members")
        return Collection(config, make)
    environment = _one(config)
    if config.central_state == "state" and not isinstance(environment, PettingZooEnvironment | PettingZooAEC):
        environment.close()
        raise ConfigurationError("state_needs_pettingzoo", environment=config.id, key="environment.central_state")
    return environment


def _one(config: EnvironmentConfig) -> Environment:
    """A world in this process, which is no collection."""
    if config.id in BUILT_IN:
        return BUILT_IN[config.id](config.copies, config.turn_mode, **config.settings)
    if config.id.startswith("gymnasium:"):
        return gymnasium_adapter.from_id(config.id, config.copies, config.settings)
    if config.id.startswith("gymnasium_multi:"):
        return gymnasium_multi_agent.from_id(config.id, config.copies, config.settings)
    if config.id.startswith("openspiel:"):
        return openspiel_adapter.from_id(config.id, config.copies, config.settings)
    if config.id.startswith("pettingzoo:"):
        states = config.central_state == "state"
        return pettingzoo_parallel.from_id(config.id, config.copies, config.settings, config.turn_mode, states)
    if ":" in config.id:
        return _from_function(config)
    raise ConfigurationError(
        "unknown_environment", environment=config.id, hint=_meant(config.id), choices=_FORMS, key="environment.id"
    )


def _meant(id: str) -> str:
    """A question, where a world is called much alike."""
    known = {_plain(name): name for name in BUILT_IN}
    with suppress(ImportError):
        import gymnasium

        newest = sorted(gymnasium.registry.values(), key=lambda spec: (spec.namespace is None, spec.version or 0))
        known |= {_plain(spec.name): f"gymnasium:{spec.id}" for spec in newest}
    near = [known[one] for one in get_close_matches(_plain(id), known, 3, 0.75)]
    return f" (is {' or '.join(near)} meant?)" if near else ""


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]|_?v[0-9]+$", "", name.lower())


def describe(config: EnvironmentConfig, cut: bool = False) -> World:
    """The world of `config`, learned from a single copy; ConfigurationError if a run that makes cuts is to play it and
    it cannot tell its state."""
    environment = make(config.model_copy(update={"copies": 1, "processes": 0, "async_factor": 1}))
    try:
        if config.teams:  # whose members take turns is refused before anybody starts
            environment.reset(0)
        if cut and not environment.has_state:
            raise ConfigurationError("lockstep_environment_without_state", environment=config.id, key="schedule")
        return environment.world
    finally:
        environment.close()


def _from_function(config: EnvironmentConfig) -> Environment:
    """Calls `module:function` with the settings.

    A function that takes `copies` is called once and returns an `Environment` or a `gymnasium.vector.VectorEnv` of as
    many; any other is called once for each copy and returns what speaks as a `gymnasium.Env`, a PettingZoo environment
    (parallel or in turns), a `dm_env.Environment`, ML-Agents' `BaseEnv` or a gridworld in Sorrel's manner does.
    """
    function = import_entry_point(config.id, "environment.id", _FORMS)
    if "copies" in _parameters(function):
        return _vectorised_function(config, function)
    first = _call(config, function, {})
    made = [first]

    def make_one() -> Any:
        return made.pop() if made else _call(config, function, {})

    if isinstance(first, Environment) or hasattr(first, "single_observation_space"):
        first.close()
        kind = "an Environment" if isinstance(first, Environment) else "a VectorEnv"
        raise ConfigurationError("environment_function_without_copies", environment=config.id, expected=kind)
    if is_gridworld(first):
        return SorrelEnvironment(config.id, make_one, config.copies, config.turn_mode or "sequential")
    if hasattr(first, "possible_agents") or hasattr(first, "agent_iter"):
        states = config.central_state == "state"
        return pettingzoo_parallel.wrap_pettingzoo(config.id, first, make_one, config.copies, config.turn_mode, states)
    if is_mlagents(first):
        return MlAgentsEnvironment(config.id, make_one, config.copies)
    if is_dm_env(first):
        return gymnasium_adapter.GymnasiumEnvironment(config.id, lambda: DmEnv(config.id, make_one()), config.copies)
    if hasattr(first, "observation_space") and hasattr(first, "step"):
        return gymnasium_adapter.GymnasiumEnvironment(config.id, make_one, config.copies)
    raise ConfigurationError("environment_function_result", environment=config.id, value=type(first).__name__)


def _vectorised_function(config: EnvironmentConfig, function: Callable[..., Any]) -> Environment:
    """Calls a function that makes all copies at once."""
    arguments: dict[str, Any] = {"copies": config.copies}
    takes_mode = "turn_mode" in _parameters(function)
    if takes_mode:
        arguments["turn_mode"] = config.turn_mode
    environment = _call(config, function, arguments)
    if hasattr(environment, "single_observation_space") and environment.num_envs == config.copies:
        return GymnasiumVector(config.id, environment)
    if not isinstance(environment, Environment) or environment.copies != config.copies:
        raise ConfigurationError("environment_copies_ignored", environment=config.id, count=config.copies)
    if config.turn_mode is not None and not takes_mode and len(environment.world.agents) > 1:
        environment.close()
        raise ConfigurationError(
            "turn_mode_already_set", value=config.turn_mode, environment=config.id, key="environment.turn_mode"
        )
    return environment


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    try:
        return frozenset(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return frozenset()


def _call(config: EnvironmentConfig, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**config.settings, **arguments)
    except RookeryError:
        raise
    except BaseException as fault:
        if not is_users(fault):
            raise
        raise ConfigurationError(
            "environment_function_refused_settings",
            environment=config.id,
            value=config.settings,
            key="environment.settings",
            **blame(fault),
        ) from fault
