"""Simulators that connect to an actor as the copies of its world."""

from workers.environments.simulators.external import External
from workers.environments.simulators.opening import Outside, lend
from workers.environments.simulators.settings import EXTERNAL, played, settings_of, world_of

__all__ = ["EXTERNAL", "External", "Outside", "lend", "played", "settings_of", "world_of"]
