"""Which world a run plays, or which several and when: the section `environment` of a run's configuration.

In flow: its keys. Out flow: a frozen `EnvironmentConfig`, whose parts are known to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from protocol.collection import STRUCTURES, Adversarial, Curriculum, Id, Member, Split, check_structure
from protocol.errors import ConfigurationError
from protocol.section import Section, Settings
from protocol.spaces import Label

__all__ = ["COLLECTION", "EnvironmentConfig", "Mates"]

COLLECTION = "collection"
"""The id of several environments together."""
Mates = Literal["all"] | Annotated[tuple[str, ...], Field(min_length=2)]
"""Agents by their names in the world, or all of them."""


class EnvironmentConfig(Section):
    """Which world, and how many copies of it each actor steps at once."""

    id: str = "treasure_hunt"
    """`treasure_hunt`, `gymnasium:ID`, `gymnasium_multi:ID`, `pettingzoo:MODULE`, `openspiel:GAME` or the user's own
    `module:function`; with `members`, which have ids of their own, it is `collection`."""
    copies: int = Field(default=64, ge=1, le=1_000_000)
    """Copies that each actor steps at once."""
    turn_mode: Literal["sequential", "simultaneous"] | None = None
    """Do agents act one after another, each seeing what the one before did, or all at once? None: the world's way."""
    settings: Settings = Field(default_factory=dict)
    """Keyword arguments of the world."""
    teams: dict[Label, Mates] = Field(default_factory=dict)
    """team -> the agents that act as one: it sees what each of them sees, and chooses for each what it does."""
    team_reward: Literal["sum", "mean"] = "sum"
    """What a team earns, of what its agents earn in a turn."""
    central_state: Literal["joint", "state"] | None = None
    """What learners see of the world beside what each agent does (an evaluation-only part `central` of every
    observation), as for a central critic: what all others see, or a PettingZoo environment's `state()`. None: what the
    world itself has of that kind."""
    processes: int = Field(default=0, ge=0, le=1_024)
    """Processes that step the copies, equally many each; 0: the actor's own process does."""
    async_factor: int = Field(default=1, ge=1, le=64)
    """Groups of copies that take turns: while processes step one group, the actor chooses the actions of another."""
    step_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a process that has not stepped its copies is taken to hang, and is started again."""
    restarts: int = Field(default=3, ge=0)
    """Times that each process is started again after a crash or a hang."""
    members: Annotated[dict[Id, Member], Field(min_length=1, max_length=256)] | None = None
    """ID -> environment, for several with the same agents; each episode is played in one of them. Where they are more
    than one, exactly one of the keys below says in which."""
    split: Split | None = None
    """Which members are for training and which for evaluation."""
    curriculum: Curriculum | None = None
    """Members in an order, from simple ones to complex ones."""
    adversarial: Adversarial | None = None
    """Members of which the one is played in which the policies do worst."""
    prior: Annotated[dict[Id, Annotated[float, Field(gt=0)]], Field(min_length=1)] | None = None
    """ID -> how likely each episode is played in it; the sum need not be 1."""

    @model_validator(mode="before")
    @classmethod
    def _together(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and data.get("members") is not None:
            return {"id": COLLECTION, **data}
        return data

    @model_validator(mode="after")
    def _divisible(self) -> Self:
        if self.async_factor > 1 and not self.processes:
            raise ConfigurationError(
                "async_factor_without_processes", value=self.async_factor, key="environment.async_factor"
            )
        shares = max(1, self.processes) * self.async_factor
        if self.copies % shares:
            below, above = self.copies // shares * shares, -(-self.copies // shares) * shares
            nearest = f"{below} or {above}" if below else f"{above}"
            raise ConfigurationError(
                "copies_do_not_divide",
                copies=self.copies,
                groups=self.async_factor,
                processes=self.processes,
                choices=nearest,
                key="environment.copies",
            )
        return self

    @model_validator(mode="after")
    def _one_or_several(self) -> Self:
        check_structure(
            self.members, {name: value for name in STRUCTURES if (value := getattr(self, name)) is not None}
        )
        if self.members is None and self.id == COLLECTION:
            raise ConfigurationError("collection_without_members", value=COLLECTION, key="environment.members")
        if self.members is not None:
            if self.id != COLLECTION:
                raise ConfigurationError("id_beside_members", value=self.id, key="environment.id")
            if self.settings:
                raise ConfigurationError("settings_beside_members", key="environment.settings")
        return self

    def member(self, name: str) -> EnvironmentConfig:
        """One copy of the member `name`, as an environment by itself."""
        assert self.members is not None
        chosen = self.members[name]
        return EnvironmentConfig(
            id=chosen.id,
            copies=1,
            turn_mode=self.turn_mode,
            settings=chosen.settings,
            central_state=self.central_state,
        )

    def evaluation(self) -> EnvironmentConfig:
        """What policies are evaluated in: the test side of a split, all members of a curriculum or an adversarial set,
        each equally likely; what has no other structure, or is drawn from a prior anyway, stays as it is."""
        if self.members is None or self.prior is not None or len(self.members) == 1:
            return self
        names = self.split.test if self.split is not None else tuple(self.members)
        members = {name: self.members[name] for name in names}
        return self.model_copy(
            update={**dict.fromkeys(STRUCTURES), "members": members, "prior": dict.fromkeys(names, 1.0)}
        )
