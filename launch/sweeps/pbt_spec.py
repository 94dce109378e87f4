"""What population-based training consists of: a run, how many of it learn side by side, and what may be changed.

In flow: a YAML file. Out flow: the keys of it; what settings a member begins with, and what becomes of those that take
over from a better one. All chance is keyed (seed, member, generation).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from launch.sweeps.grid import Choices, ManyRuns, Range
from protocol.config.yaml_file import parsed, read_mapping
from protocol.errors import ConfigurationError

_RESERVED = ("seed", "steps", "until", "schedule", "actors")


class PopulationFile(ManyRuns):
    """The keys of a population's file."""

    run: str = "cartpole"
    seeds: Annotated[tuple[Annotated[int, Field(ge=0, lt=2**32)], ...], Field(min_length=1)] = (0,)
    """A population for each."""
    members: int = Field(default=8, ge=2, le=1_000)
    """Runs of a population."""
    generations: int = Field(default=10, ge=1, le=10_000)
    """Parts of `steps`, after each of which the worst take over from the best."""
    steps: int | None = Field(default=None, ge=1)
    """Agent steps of a member through all generations; None: those of the run."""
    settings: dict[str, Range | Choices] = Field(min_length=1)
    """Key of a configuration -> what it may be."""
    policy: str | None = None
    """Whose score counts; None: the mean of all that have one."""
    exploit: float = Field(default=0.25, ge=0, le=0.5)
    """Share of the members, the worst, that take over weights and settings of one of as many best; 0: nobody does."""
    resample: float = Field(default=0.25, ge=0, le=1)
    """Probability that a setting which was taken over is drawn anew instead of changed by `factor`."""
    factor: float = Field(default=1.25, gt=1)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        for key in self.settings:
            if key in _RESERVED or "network" in key.split("."):
                raise ConfigurationError("population_setting_not_allowed", key=key)
        if self.exploit and not int(self.exploit * self.members):
            raise ConfigurationError("exploit_of_nobody", value=self.exploit, count=self.members, key="exploit")
        return self

    @property
    def changing(self) -> int:
        """How many of the worst take over, from as many best."""
        return int(self.exploit * self.members)

    def first(self, seed: int, member: int) -> dict[str, Any]:
        """What a member begins with."""
        return {
            key: one.draw(_chance(seed, 0, member, place)) for place, (key, one) in enumerate(self.settings.items())
        }

    def explored(self, settings: dict[str, Any], seed: int, generation: int, member: int) -> dict[str, Any]:
        """What becomes of `settings` that a member takes over for a generation."""
        found = {}
        for place, (key, one) in enumerate(self.settings.items()):
            random = _chance(seed, generation, member, place)
            anew = random.random() < self.resample
            found[key] = one.draw(random) if anew else one.change(settings[key], self.factor, random)
        return found

    def better(self, seed: int, generation: int, member: int) -> int:
        """Which of the best a member takes over from, counted from the very best."""
        return int(_chance(seed, generation, member, len(self.settings)).integers(self.changing))


def _chance(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(key)))


def read_population(path: Path) -> PopulationFile:
    """The population in the file; ConfigurationError in one sentence."""
    told = read_mapping(path)
    wanted = told.get("settings")
    if isinstance(wanted, dict):
        listed = {key: {"values": one} if isinstance(one, list) else one for key, one in wanted.items()}
        told = {**told, "settings": listed}
    return parsed(path, told, PopulationFile).beside(path)
