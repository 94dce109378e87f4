"""An environment around another.

In flow: `inner`. Out flow: all that a wrapper does not change, as `inner` has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workers.environments.base import Environment, Episodes, Player

__all__ = ["WrappedEnvironment"]


class WrappedEnvironment(Environment):
    """`inner`; subclasses say in `reset` and `step` what they change of its turns."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.world = inner.world
        self.copies, self.groups, self.counters = inner.copies, inner.groups, inner.counters

    def take_episodes(self) -> Episodes:
        """As the environment's."""
        return self._inner.take_episodes()

    def set_curriculum(self, curriculum: Mapping[str, Any]) -> None:
        """Handed on."""
        self._inner.set_curriculum(curriculum)

    def poll(self) -> None:
        """Handed on."""
        self._inner.poll()

    def metrics(self) -> dict[str, float]:
        """As the environment's."""
        return self._inner.metrics()

    def scripted(self) -> Player | None:
        """As the environment's."""
        return self._inner.scripted()

    def render(self, copy: int = 0) -> str:
        """As the environment's."""
        return self._inner.render(copy)

    def render_rgb(self, copy: int = 0, scale: int = 8) -> NDArray[np.uint8] | None:
        """As the environment's."""
        return self._inner.render_rgb(copy, scale)

    def agent_cells(self, copy: int = 0) -> NDArray[np.bool_] | None:
        """As the environment's."""
        return self._inner.agent_cells(copy)

    def close(self) -> None:
        """Closes the environment."""
        self._inner.close()
