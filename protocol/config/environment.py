"""Which environment a run plays, or which several and when: the section `environment` of a run's configuration.

In flow: its keys. Out flow: a frozen `EnvironmentConfig`, whose parts fit and name each other's IDs rightly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from protocol.config.base import AgentName, ConfigModel, Name, Settings
from protocol.errors import ConfigurationError

COLLECTION = "collection"
"""The id of several environments together."""
Mates = Literal["all"] | Annotated[tuple[AgentName, ...], Field(min_length=2)]
"""Agents by their names in the world, or all of them."""


class EnvironmentConfig(ConfigModel):
    """Which world, and how many copies of it each actor steps at once."""

    id: str = "treasure_hunt"
    """`treasure_hunt`, `atari:GAME`, `gymnasium:ID`, `gymnasium_multi:ID`, `pettingzoo:MODULE`, `openspiel:GAME` or the
    user's own `module:function`; with `members`, which have ids of their own, it is `collection`."""
    copies: int = Field(default=64, ge=1, le=1_000_000)
    """Copies that each actor steps at once."""
    turn_mode: Literal["sequential", "simultaneous"] | None = None
    """Do agents act one after another, each seeing what the one before did, or all at once? None: the world's way."""
    settings: Settings = Field(default_factory=dict)
    """Keyword arguments of the world."""
    teams: dict[Name, Mates] = Field(default_factory=dict)
    """team -> the agents that act as one: it sees what each of them sees, and chooses for each what it does."""
    team_reward: Literal["sum", "mean"] = "sum"
    """What a team earns, of what its agents earn in a turn."""
    central_state: Literal["joint", "state"] | None = None
    """What learners see of the world beside what each agent does (an evaluation-only part `central` of every
    observation), as for a central critic: what all others see, or a PettingZoo environment's `state()`. None: what the
    world itself has of that kind."""
    observe: ObservedParts | None = None
    """Which parts of observations are taken, and what is added to them."""
    processes: int = Field(default=0, ge=0, le=1_024)
    """Processes that step the copies, equally many each; 0: the actor's own process does."""
    async_factor: int = Field(default=1, ge=1, le=64)
    """Groups of copies that take turns: while processes step one group, the actor chooses the actions of another."""
    step_timeout: float = Field(default=60.0, gt=0)
    """Seconds after which a process that has not stepped its copies is taken to hang, and is started again."""
    restarts: int = Field(default=3, ge=0)
    """Times that each process is started again after a crash or a hang."""
    members: Annotated[dict[Id, CollectionMember], Field(min_length=1, max_length=256)] | None = None
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
            observe=self.observe,
        )

    def with_settings(self, settings: Mapping[str, Mapping[str, Any]]) -> EnvironmentConfig:
        """The same with other `settings` of some members, key by key."""
        members = {
            name: one.model_copy(update={"settings": {**one.settings, **settings.get(name, {})}})
            for name, one in (self.members or {}).items()
        }
        return self.model_copy(update={"members": members})

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


STRUCTURES = ("split", "curriculum", "adversarial", "prior")
Id = Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The ID of a member: with a policy's name it is part of a counter's name, which has an end."""
_Share = Annotated[float, Field(ge=0, lt=1)]
_Ids = Annotated[tuple[Id, ...], Field(min_length=1)]


AddedInput = Literal["agent", "last_action", "last_reward"]


class ObservedParts(ConfigModel):
    """What agents are shown: some parts of what an environment in Gymnasium's or PettingZoo's form shows, by their
    paths, as `mission` or `radar.image` (of a tuple by position), and more than any environment shows."""

    drop: tuple[str, ...] = ()
    """Paths of the parts that are left out, of every agent that has them."""
    keep: tuple[str, ...] = ()
    """Paths of the parts that are taken; a mask of legal actions, `action_mask`, stays beside them."""
    add: tuple[AddedInput, ...] = ()
    """What each agent is shown besides: its number among all (`agent`), what it did last in the episode (`last_action`)
    and what that earned (`last_reward`)."""

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (bool(self.drop) and bool(self.keep)) or not (self.drop or self.keep or self.add):
            raise ConfigurationError("observe_not_one", key="environment.observe")
        twice = next((one for one in self.add if self.add.count(one) > 1), None)
        if twice is not None:
            raise ConfigurationError("observe_adds_twice", value=twice, key="environment.observe.add")
        return self


class CollectionMember(ConfigModel):
    """One environment of several; its ID is the key that it stands under."""

    id: str = Field(min_length=1)
    """The world, as in `environment.id`."""
    settings: Settings = Field(default_factory=dict)
    """Keyword arguments of the world."""


class Split(ConfigModel):
    """Training draws an environment of `train` for each episode, evaluation one of `test`, all equally likely."""

    train: _Ids
    """IDs of the members to learn in."""
    test: _Ids
    """IDs of the members to be evaluated in."""


class Curriculum(ConfigModel):
    """From simple environments to complex ones. One is open to training once all that it comes `after` are mastered."""

    after: dict[Id, _Ids] = Field(min_length=1)
    """ID -> those that come right before it; one that is not named here is open from the start."""
    threshold: dict[Id, float]
    """ID -> the mean return at which it is mastered, for each that another one comes after."""
    episodes: int = Field(default=20, ge=1)
    """Episodes, the last ones, of which that mean is taken."""
    rehearsal: _Share = 0.2
    """Share of the episodes that go on in mastered environments, so that they are not forgotten."""


class Adversarial(ConfigModel):
    """Each episode is in the environment in which the policies have done worst so far."""

    tries: int = Field(default=5, ge=1)
    """Episodes that end in every environment before the worst is looked for."""
    episodes: int = Field(default=20, ge=1)
    """Episodes, the last ones, whose mean return says how well the policies do."""
    exploration: _Share = 0.1
    """Share of the episodes whose environment is drawn, all equally likely, so that none goes unmeasured."""


def check_structure(members: Collection[str] | None, given: Mapping[str, Any]) -> None:
    """Raises ValueError unless there is one structure where there are several members, and none without; and unless it
    names members only, and all that it has to. `given`: those that are there, by their key."""
    if members is None:
        for name in given:
            raise ConfigurationError("structure_without_members", key=name)
        return
    if len(given) > 1:
        raise ConfigurationError("several_structures", value=_all(given))
    if not given and len(members) > 1:
        raise ConfigurationError("structure_missing", members=_all(members), choices=list(STRUCTURES))
    for structure in given.values():
        match structure:
            case Split():
                _check_split(members, structure)
            case Curriculum():
                _check_curriculum(members, structure)
            case Mapping():
                _check_prior(members, structure)


def _check_prior(members: Collection[str], prior: Mapping[str, float]) -> None:
    _known("prior", prior, members)
    for lacking in (one for one in members if one not in prior):
        raise ConfigurationError("prior_lacks_member", environment=lacking, key="prior")


def _check_split(members: Collection[str], split: Split) -> None:
    for name, side in (("train", split.train), ("test", split.test)):
        _known(f"split.{name}", side, members)
        for one in (one for i, one in enumerate(side) if one in side[:i]):
            raise ConfigurationError("split_repeats_member", side=name, environment=one, key=f"split.{name}")
    both = [one for one in split.train if one in split.test]
    if both:
        raise ConfigurationError("member_in_both_splits", environment=both[0], key="split")
    for one in members:
        if one not in split.train and one not in split.test:
            raise ConfigurationError("member_in_no_split", environment=one, key="split")


def _check_curriculum(members: Collection[str], curriculum: Curriculum) -> None:
    after = curriculum.after
    _known("curriculum.after", (*after, *(one for before in after.values() for one in before)), members)
    cycle = _cycle(after)
    if cycle:
        raise ConfigurationError("curriculum_circular", value=" after ".join(map(repr, cycle)), key="curriculum.after")
    _known("curriculum.threshold", curriculum.threshold, members)
    before = {one for early in after.values() for one in early}
    for one in (one for one in members if one in before and one not in curriculum.threshold):
        raise ConfigurationError("curriculum_threshold_missing", environment=one, key="curriculum.threshold")
    for one in (one for one in curriculum.threshold if one not in before):
        raise ConfigurationError("curriculum_threshold_unused", environment=one, key="curriculum.threshold")


def _known(key: str, named: Iterable[str], members: Collection[str]) -> None:
    for one in named:
        if one not in members:
            raise ConfigurationError("member_unknown", key=key, environment=one, choices=list(members))


def _cycle(after: Mapping[str, tuple[str, ...]]) -> list[str]:
    """IDs each of which comes after the next, the first one again at the end; empty where there is no circle."""
    settled: set[str] = set()
    for start in after:
        path = [start]
        while path:
            following = next((one for one in after.get(path[-1], ()) if one not in settled), None)
            if following is None:
                settled.add(path.pop())
            elif following in path:
                return [*path[path.index(following) :], following]
            else:
                path.append(following)
    return []


def _all(names: Iterable[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}"
