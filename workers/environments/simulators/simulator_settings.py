"""What may be set for simulators under `environment.settings`, and the world that they are copies of.

In flow: a mapping. Out flow: typed settings; the `World`, or a ConfigurationError that says what to write.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from protocol.config.run import EnvironmentConfig, Run
from protocol.errors import ConfigurationError, WireError
from protocol.messages.simulator import Fallback
from protocol.spaces import World, parse_world
from workers.environments.base import WorldSettings, parse_settings
from workers.environments.checks.payoff_check import declares_payoffs
from workers.environments.simulators import EXTERNAL

_WORLD = "environment.settings.world"


class SimulatorSettings(WorldSettings):
    """What may be set."""

    world: str | dict[str, Any]
    """The tree of agents and spaces: a file of JSON or YAML, the tree itself, or the id of an environment like which
    the simulators are."""
    internal: int = Field(default=0, ge=0)
    """So many of the run's actors, the first ones, play the environment `world` themselves; the others serve."""
    world_settings: dict[str, Any] = Field(default_factory=dict)
    """The settings of the environment `world`, where that is an id."""
    port: int | None = Field(default=None, ge=1, le=65_525)
    """Where the first actor serves; each further one at the next port. None: where `--bind` says, or any free one."""
    command: str | None = None
    """What to start for each copy, with `{address}`, `{host}`, `{port}`, `{seed}`, `{instance}` and `{name}` filled in;
    None: they are started by somebody else."""
    machines: list[str] = Field(default_factory=list)
    """Where to start them, in turn; the command is told as `{machine}`."""
    batch_wait: int = Field(default=0, ge=0, le=1_000)
    """Milliseconds that the first who asks waits for others to ask with it; 0: only for those that have asked."""
    rate: int = Field(default=20_000, ge=1)
    """Messages a second that one simulator may send."""
    deadline: float = Field(default=0.0, ge=0, le=3_600, allow_inf_nan=False)
    """Seconds in which simulators should have an action, or else do what `fallback` says; 0: they wait."""
    fallback: Fallback = "last"
    """What they do while an action is late: the last one again, the space's own default, or what a script of theirs
    says."""


def settings_of(config: EnvironmentConfig) -> SimulatorSettings:
    """Of an environment `external`; ConfigurationError where what it asks for makes no sense together."""
    if config.processes:
        raise ConfigurationError("simulators_with_processes", value=config.processes, key="environment.processes")
    if config.turn_mode is not None:
        raise ConfigurationError("simulators_with_turn_mode", value=config.turn_mode, key="environment.turn_mode")
    if config.teams:
        raise ConfigurationError("simulators_with_teams", key="environment.teams")
    if config.central_state is not None:
        raise ConfigurationError(
            "simulators_with_central_state", value=config.central_state, key="environment.central_state"
        )
    settings = parse_settings(config.id, SimulatorSettings, config.settings)
    if (settings.internal or settings.world_settings) and not _is_id(settings.world):
        raise ConfigurationError("simulator_world_not_playable", key=_WORLD)
    if settings.machines and "{machine}" not in (settings.command or ""):
        raise ConfigurationError("simulator_command_ignores_machines", key="environment.settings.machines")
    return settings


def environment_for_actor(run: Run, index: int) -> EnvironmentConfig:
    """The environment of actor number `index`: where some play the world of simulators themselves, that of the first
    ones. ConfigurationError where nobody would serve."""
    config = run.environment
    if config.id != EXTERNAL:
        return config
    settings = settings_of(config)
    if run.actors and settings.internal >= run.actors:
        raise ConfigurationError(
            "no_actor_left_for_simulators",
            value=settings.internal,
            count=run.actors,
            key="environment.settings.internal",
        )
    if index >= settings.internal:
        return config
    assert isinstance(settings.world, str)
    return EnvironmentConfig(id=settings.world, copies=config.copies, settings=settings.world_settings)


def world_of(settings: SimulatorSettings, describe: Callable[[EnvironmentConfig], World]) -> World:
    """The world of simulators; `describe` tells that of other environments."""
    world = _world(settings, describe)
    if world.common:
        raise ConfigurationError("simulators_with_common_observation", environment=world.id, key=_WORLD)
    if declares_payoffs(world):
        raise ConfigurationError("simulators_with_payoffs", environment=world.id, key=_WORLD)
    return world


def _is_id(given: str | dict[str, Any]) -> bool:
    return isinstance(given, str) and not given.endswith((".json", ".yaml", ".yml"))


def _world(settings: SimulatorSettings, describe: Callable[[EnvironmentConfig], World]) -> World:
    given = settings.world
    if isinstance(given, str) and _is_id(given):
        return describe(EnvironmentConfig(id=given, copies=1, settings=settings.world_settings))
    try:
        tree = given if isinstance(given, dict) else yaml.safe_load(Path(given).read_text())
        return parse_world(json.dumps(tree))
    except (OSError, yaml.YAMLError, TypeError, WireError, ValidationError) as fault:
        said = " ".join(str(fault).split())
        raise ConfigurationError("simulator_world_unreadable", reason=said, key=_WORLD) from None
