"""Simulators that connect to an actor as the copies of its world."""

from workers.environments.simulators.endpoint import SimulatorEndpoint, lend
from workers.environments.simulators.environment import SimulatorEnvironment
from workers.environments.simulators.simulator_settings import EXTERNAL, played, settings_of, world_of

__all__ = ["EXTERNAL", "SimulatorEndpoint", "SimulatorEnvironment", "lend", "played", "settings_of", "world_of"]
