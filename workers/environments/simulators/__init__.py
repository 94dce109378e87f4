"""Simulators that connect to an actor as the copies of its world."""

from workers.environments.simulators.endpoint import SimulatorEndpoint, simulator_endpoint
from workers.environments.simulators.environment import SimulatorEnvironment
from workers.environments.simulators.simulator_settings import EXTERNAL, environment_for_actor, settings_of, world_of

__all__ = [
    "EXTERNAL",
    "SimulatorEndpoint",
    "SimulatorEnvironment",
    "environment_for_actor",
    "settings_of",
    "simulator_endpoint",
    "world_of",
]
