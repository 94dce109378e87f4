"""Several environments with string IDs, and the structure that says when each of them is played.

In flows: keys below `environment`. Out flows: frozen sections, known to name each other's IDs rightly.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from protocol.errors import ConfigurationError
from protocol.section import Section, Settings

__all__ = ["STRUCTURES", "Adversarial", "Curriculum", "Id", "Member", "Split", "check_structure"]

STRUCTURES = ("split", "curriculum", "adversarial", "prior")
Id = Annotated[str, Field(min_length=1, max_length=48, pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
"""The ID of a member: with a policy's name it is part of a counter's name, which has an end."""
_Share = Annotated[float, Field(ge=0, lt=1)]
_Ids = Annotated[tuple[Id, ...], Field(min_length=1)]


class Member(Section):
    """One environment of several; its ID is the key that it stands under."""

    id: str = Field(min_length=1)
    """The world, as in `environment.id`."""
    settings: Settings = Field(default_factory=dict)
    """Keyword arguments of the world."""


class Split(Section):
    """Training draws an environment of `train` for each episode, evaluation one of `test`, all equally likely."""

    train: _Ids
    """IDs of the members to learn in."""
    test: _Ids
    """IDs of the members to be evaluated in."""


class Curriculum(Section):
    """From simple environments to complex ones. One is open to training once all that it comes `after` are mastered."""

    after: dict[Id, _Ids] = Field(min_length=1)
    """ID -> those that come right before it; one that is not named here is open from the start."""
    threshold: dict[Id, float]
    """ID -> the mean return at which it is mastered, for each that another one comes after."""
    episodes: int = Field(default=20, ge=1)
    """Episodes, the last ones, of which that mean is taken."""
    rehearsal: _Share = 0.2
    """Share of the episodes that go on in mastered environments, so that they are not forgotten."""


class Adversarial(Section):
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
