"""Self-play against a library of frozen policies: the section `league` of a run's configuration.

In flow: its keys. Out flow: a frozen `LeagueConfig`. Who can play whom follows from the world
(workers/planning/league_plan.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from protocol.config.base import AgentName, ConfigModel, Name
from protocol.errors import ConfigurationError

if TYPE_CHECKING:
    from protocol.config.run import Run

Matchmaking = Literal["latest", "uniform", "prioritised", "nash"]
"""Against whom the next episode is: the newest weights of an opponent as they come; any frozen member, all equally
likely; hard ones more often; or as the equilibrium of the members' game among themselves mixes them."""


class PlayerConfig(ConfigModel):
    """One policy that learns in a league."""

    agents: Annotated[tuple[AgentName, ...], Field(min_length=1)] | None = None
    """Where it sits; None: where `agents` of the run puts it."""
    opponents: Annotated[tuple[Name, ...], Field(min_length=1)] | None = None
    """Players whose pasts (or newest weights) it meets; None: all that can sit opposite to it."""
    matchmaking: Matchmaking | None = None
    """None: the league's."""
    latest: float | None = Field(default=None, ge=0, le=1)
    """None: the league's."""
    fresh: bool | None = None
    """None: the league's."""


class LeagueConfig(ConfigModel):
    """A library of frozen policies that grows while the run goes on, and who meets whom."""

    snapshot_every: int = Field(ge=1)
    """Rows that a player learns from until its weights join the library as its next member."""
    size: int = Field(default=16, ge=2, le=64)
    """Members that the library holds; a run that would make more is refused."""
    matchmaking: Matchmaking = "uniform"
    """Whom players meet."""
    latest: float = Field(default=0.0, ge=0, le=1)
    """Share of the episodes that is played against an opponent's newest weights, whatever the matchmaking."""
    fresh: bool = False
    """Players begin again with new weights, moments and schedules whenever they have joined the library (PSRO,
    exploiters); otherwise they go on (self-play, main agents)."""
    arena: float = Field(default=0.25, ge=0, lt=1)
    """Share of the copies in which members play each other, by which they are rated; nobody learns there."""
    loaded: int = Field(default=16, ge=2, le=256)
    """Members that one actor has in memory at most."""
    players: dict[Name, PlayerConfig] = Field(default_factory=dict)
    """Players that differ in something, or that no agent of `agents` names, as exploiters."""


def check_league(run: Run) -> None:
    """ValueError where the section does not go together with the rest of `run`."""
    if run.lockstep:
        raise ConfigurationError("league_in_lockstep", key="league")
    if run.multiprocessing.enabled is False or run.replay is not None:
        raise ConfigurationError("league_without_coordinator", key="league")
    if not run.actors:
        raise ConfigurationError("league_without_actors", key="league")
    if run.auxiliaries:
        raise ConfigurationError("league_with_auxiliaries", key="league")
    if run.environment.members is not None:
        raise ConfigurationError("league_of_several_environments", key="league")
