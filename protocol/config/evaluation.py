"""How a run is evaluated while it goes on: the section `evaluation` of its configuration.

In flow: its keys. Out flow: a frozen `EvaluationConfig`. Where it is played is said by `environment`: the test side of
a split, all members of another collection, else the world itself.
"""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError


class EvaluationConfig(ConfigModel):
    """Whole episodes with exploration off, by a process of its own, on one set of seeds."""

    every_steps: int | None = Field(default=None, ge=1)
    """Agent steps of the run from one evaluation to the next."""
    every_seconds: float | None = Field(default=None, gt=0)
    """Seconds from one evaluation to the next; with `every_steps`, whichever comes first."""
    episodes: int = Field(default=20, ge=1, le=1_000_000)
    """At least so many in each environment."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Of the episodes, which are the same in every evaluation, and in every run that has the same one."""

    @model_validator(mode="after")
    def _due(self) -> Self:
        if self.every_steps is None and self.every_seconds is None:
            raise ConfigurationError("evaluation_without_interval", key="evaluation")
        return self
