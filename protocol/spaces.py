"""What agents observe and do: the spaces of a world, as plain data that round-trips through JSON."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Agent", "Box", "Discrete", "Label", "World"]

Label = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The name of an agent or policy: it becomes part of file names and topics."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Box(_Frozen):
    """An array of numbers; `low` and `high` bound every element (None: unbounded)."""

    kind: Literal["box"] = "box"
    shape: tuple[int, ...]
    dtype: Literal["uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool"] = "float32"
    low: float | None = None
    high: float | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


class Discrete(_Frozen):
    """One of `n` choices, numbered from 0."""

    kind: Literal["discrete"] = "discrete"
    n: int = Field(ge=1)


class Agent(_Frozen):
    """A named place in a world that observes and acts."""

    name: Label
    observation: Box
    action: Discrete


class World(_Frozen):
    """All agents of one environment. `episode_steps`: the most steps an agent takes in an episode, if known."""

    id: str
    agents: tuple[Agent, ...] = Field(min_length=1)
    episode_steps: int | None = Field(default=None, ge=1)

    def agent(self, name: str) -> Agent:
        """The agent called `name`; KeyError if there is none."""
        for agent in self.agents:
            if agent.name == name:
                return agent
        raise KeyError(name)
