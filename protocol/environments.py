"""Which world a run plays, or which several and when: the section `environment` of a run's configuration.

In flow: its keys. Out flow: a frozen `EnvironmentConfig`, whose parts are known to fit.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from protocol.section import Section

__all__ = ["EnvironmentConfig"]


class EnvironmentConfig(Section):
    """Which world, and how many copies of it each actor steps at once."""

    id: str = "treasure_hunt"
    """`treasure_hunt`, `gymnasium:ID`, `pettingzoo:MODULE` or the user's own `module:function`."""
    copies: int = Field(default=64, ge=1, le=1_000_000)
    turn_mode: Literal["sequential", "simultaneous"] | None = None
    """Do agents act one after another, each seeing what the one before did, or all at once? None: the world's way."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the world."""
    processes: int = Field(default=0, ge=0, le=1_024)
    """Processes that step the copies, equally many each; 0: the actor's own process does."""
    async_factor: int = Field(default=1, ge=1, le=64)
    """Groups of copies that take turns: while processes step one group, the actor chooses the actions of another."""
    step_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a process that has not stepped its copies is taken to hang, and is started again."""
    restarts: int = Field(default=3, ge=0)
    """Times that each process is started again after a crash or a hang."""

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.async_factor > 1 and not self.processes:
            raise ValueError(
                f"async_factor {self.async_factor} needs processes that step one group while another one's actions are "
                "chosen; set processes to 1 or more, or async_factor to 1"
            )
        shares = max(1, self.processes) * self.async_factor
        if self.copies % shares:
            below, above = self.copies // shares * shares, -(-self.copies // shares) * shares
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ValueError(
                f"copies {self.copies} cannot be divided into {self.async_factor} groups over {self.processes} "
                f"processes equally; set copies to {nearest}"
            )
        return self
