"""Learning from experience that lies on disk: which dataset, and cloning of the behaviour that is in it.

In flows: `policy.dataset` and `policy.algorithm`. Out flows: their keys, and what cloning asks of replay and rows.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from protocol.config.base import ConfigModel
from protocol.errors import ConfigurationError


class Dataset(ConfigModel):
    """What a policy learns from instead of from actors: one of the two."""

    path: str | None = Field(default=None, min_length=1)
    """A folder that a run with `policy.record` wrote, or one that holds such a folder for each policy."""
    minari: str | None = Field(default=None, min_length=1)
    """The ID of a Minari dataset that is on this machine."""
    newest: int | None = Field(default=None, ge=1)
    """Of all rows only about so many, those that were made last; None: all."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.path is None) == (self.minari is None):
            raise ConfigurationError("dataset_source_not_one")
        return self


class BC(ConfigModel):
    """Behaviour cloning: the network of `ppo` makes the actions of a dataset likely."""

    name: Literal["bc"] = "bc"
    batch_size: int = Field(default=256, ge=1)
    """Rows in a batch."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Weight of an entropy bonus in the loss."""
    normalize_observation: bool | None = None
    """Observations by their running mean and deviation; None: as `ppo` does by default, which may start from it."""
    anneal_learning_rate: bool = False
    """Let the learning rate fall to 0 by the end of the run, so that the policy settles."""

    mode: ClassVar[Literal["stream", "replay"]] = "replay"
    """Rows are sampled, any number of times."""
    before: ClassVar[int] = 0
    """Rows of history in front of each segment."""
    row_fields: ClassVar[tuple[tuple[str, str], ...]] = ()
    """(name, dtype) of the scalar fields this algorithm adds to every row."""
    frames: ClassVar[int] = 1
    n_step: ClassVar[int] = 1
    """Rewards are only looked at."""
    discount: ClassVar[float] = 1.0
    priority_alpha: ClassVar[float] = 0.0
    priority_beta: ClassVar[float] = 0.0
