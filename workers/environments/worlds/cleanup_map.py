"""What may be set in cleanup, where its regions lie, and which cells a beam covers.

In flow: settings. Out flow: masks and offsets of cells.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from protocol.errors import ConfigurationError
from workers.environments.settings import WorldSettings

_HEADINGS = np.array([[(-1, 0), (0, 1)], [(1, 0), (0, -1)], [(0, -1), (-1, 0)], [(0, 1), (1, 0)]])
"""(rows, columns) ahead and to the right of an agent that faces up, down, left, right."""


class CleanupSettings(WorldSettings):
    """What may be set under `environment.settings`; sizes in cells, the outer wall included."""

    height: int = Field(default=21, ge=6, le=1_000)
    width: int = Field(default=31, ge=5, le=1_000)
    agents: int = Field(default=10, ge=1, le=100)
    turns: int = Field(default=1_000, ge=1)
    """Turns of an episode, which then ends as truncated."""
    radius: int = Field(default=5, ge=1, le=50)
    """Cells an agent sees in each direction."""
    beam: int = Field(default=3, ge=1, le=50)
    """Cells that a beam reaches."""
    depletion: float = Field(default=0.4, gt=0, le=1)
    """Polluted part of the river from which on no apple grows and no further waste appears (thresholdDepletion)."""
    restoration: float = Field(default=0.0, ge=0, lt=1)
    """Polluted part up to which apples grow at their full rate (thresholdRestoration)."""
    waste_spawn: float = Field(default=0.5, ge=0, le=1)
    """Probability, a turn, that a clean cell of the river is polluted (wasteSpawnProbability)."""
    apple_spawn: float = Field(default=0.05, ge=0, le=1)
    """Probability, a turn and tree, of an apple at full rate (appleRespawnProbability)."""
    initial_waste: float = Field(default=0.4, ge=0, le=1)
    """Polluted part of the river at first, rounded up to whole cells."""
    apple: float = Field(default=1.0, allow_inf_nan=False)
    """Reward for an apple eaten."""
    zapped: float = Field(default=-1.0, allow_inf_nan=False)
    """Reward for an agent hit by another's zap; Hughes et al. fine 50."""
    zapping: float = Field(default=0.0, allow_inf_nan=False)
    """Reward for every zap fired; Hughes et al. take 1."""
    desynchronize: bool = False
    """Draw the length of each copy's first episode from 1..turns, so that copies do not end all at once."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.restoration >= self.depletion:
            raise ConfigurationError(
                "restoration_not_below_depletion", value=self.restoration, limit=self.depletion, field="restoration"
            )
        cells = int(regions(self.height, self.width)[2].sum())
        if self.agents > cells:
            raise ConfigurationError("agents_exceed_sand_cells", count=self.agents, limit=cells, field="agents")
        return self


def regions(height: int, width: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """River, orchard and sand, each [height, width]: the upper third with an arm that reaches down, the lower third,
    and the rest within the wall."""
    rows, columns = np.arange(height)[:, None], np.arange(width)
    inside = (rows > 0) & (rows < height - 1) & (columns > 0) & (columns < width - 1)
    third = height // 3
    arm = (rows < 2 * third - 1) & ((columns == width // 3) | (columns == width // 3 + 1))
    river = inside & ((rows < third) | arm)
    orchard = inside & ~river & (rows > height - 1 - third)
    return river, orchard, inside & ~river & ~orchard


def beams(reach: int) -> NDArray[np.int64]:
    """[4, 3 * reach, 2]: (rows, columns) that a beam covers when facing up, down, left, right: 1..reach ahead, and on
    either side 0..reach-1 ahead."""
    straight = [(step, 0) for step in range(1, reach + 1)]
    sides = [(step, side) for side in (-1, 1) for step in range(reach)]
    cells: NDArray[np.int64] = np.array(straight + sides) @ _HEADINGS
    return cells
