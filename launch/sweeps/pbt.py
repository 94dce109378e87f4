"""Population-based training (Jaderberg et al. 2017): runs that learn side by side, of which the worst take over weights
and settings of the best after each generation, and explore from there.

    generation: all members learn a part of their steps -> scores -> who takes over from whom -> the next

In flow: a population's file, in YAML: a run, how many of it learn side by side, and what may be changed. Out
flow: a folder for each member and generation, whose summaries say all that is needed to go on. A generation is a
trainer of as many runs as there are members, each begun with the checkpoints of what it goes on from; schedules follow
the steps of all generations together. A trainer's work lies in folders: the same trainer made again goes on where it
was. All chance is keyed (seed, member, generation).
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from launch.config_loader import load
from launch.sweeps.executors import check_fits
from launch.sweeps.grid import Choices, ManyRuns, Range, Trial
from launch.sweeps.runs import done, score_of
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


Play = Callable[[list[Trial]], list[Trial]]
"""Plays runs side by side to their ends; those that failed."""


class Trainer(ABC):
    """One training procedure."""

    name: str

    @abstractmethod
    def train(self) -> bool:
        """One iteration; False if there was nothing left to do. ConfigurationError if it cannot be done."""


class Together(Trainer):
    """Trainers side by side: one iteration is one of each that has not ended; all wait for the slowest."""

    def __init__(self, name: str, trainers: Sequence[Trainer]) -> None:
        self.name, self._going = name, list(trainers)
        if len({one.name for one in trainers}) < len(trainers):
            raise ConfigurationError("trainer_names_collide", name=name)

    def train(self) -> bool:
        """One iteration of each."""
        self._going = [one for one in self._going if one.train()]
        return bool(self._going)


def train(trainer: Trainer, most: int) -> int:
    """Iterates until nothing is left to do; how often. ConfigurationError after `most` iterations: a trainer that
    can never end."""
    for count in range(most + 1):
        if not trainer.train():
            return count
    raise ConfigurationError("trainer_not_finished", name=trainer.name, limit=most, key="generations")


def played(play: Play, trials: list[Trial]) -> None:
    """Plays `trials`; ConfigurationError in one sentence if any failed."""
    failed = play(trials)
    if failed:
        names = ", ".join(trial.name for trial in failed)
        raise ConfigurationError("trainer_runs_failed", count=len(failed), total=len(trials), runs=names)


@dataclass(frozen=True, slots=True)
class PopulationMember:
    """One of a generation: its settings, and whose checkpoints of the generation before it goes on from."""

    settings: dict[str, Any]
    parent: int
    """Its own number, unless it took over."""
    score: float | None = None


class Population(Trainer):
    """The population of one seed, below `folder`; `play` makes runs."""

    def __init__(self, wanted: PopulationFile, seed: int, folder: Path, play: Play) -> None:
        self.name = f"seed-{seed}"
        self._wanted, self._seed, self._folder, self._play = wanted, seed, folder / self.name, play
        self.generations: list[list[PopulationMember]] = []
        """Those that are done, with their scores."""
        self._next = [PopulationMember(wanted.first(seed, number), number) for number in range(wanted.members)]
        run = load(wanted.run, [], steps=wanted.steps)
        if run.lockstep:
            raise ConfigurationError("lockstep_in_population", key="schedule")
        if run.steps < wanted.generations:
            raise ConfigurationError(
                "too_many_generations", limit=run.steps, count=wanted.generations, key="generations"
            )
        self._ends = np.linspace(0, run.steps, wanted.generations + 1).astype(int).tolist()
        self.trials(0)

    def train(self) -> bool:
        """One generation; False after the last."""
        number = len(self.generations)
        if number == self._wanted.generations:
            return False
        trials = self.trials(number)
        played(self._play, [trial for trial in trials if not done(trial)])
        self.generations.append(
            [
                PopulationMember(one.settings, one.parent, score_of(trial.folder, self._wanted.policy))
                for one, trial in zip(self._next, trials, strict=True)
            ]
        )
        self._next = self._following(self.generations[-1])
        return True

    @property
    def best(self) -> tuple[int, PopulationMember]:
        """The number of the best member of the last generation, and what it is."""
        last = self.generations[-1]
        number = int(np.argmax([one.score for one in last]))  # type: ignore[arg-type] # all have one
        return number, last[number]

    def view(self) -> dict[str, Any]:
        """For `population.json`."""
        number, best = self.best
        return {
            "seed": self._seed,
            "best": {**asdict(best), "folder": str(self._place(len(self.generations) - 1, number))},
            "generations": [[asdict(one) for one in members] for members in self.generations],
        }

    def trials(self, generation: int) -> list[Trial]:
        """The runs of the generation that comes next."""
        found = []
        for number, member in enumerate(self._next):
            changes = [f"{key}={json.dumps(value)}" for key, value in member.settings.items()]
            changes.append(f"until={self._ends[generation + 1] - self._ends[generation]}")
            seed = int(np.random.SeedSequence([self._seed, generation, number]).generate_state(1)[0])
            run = load(self._wanted.run, changes, steps=self._wanted.steps, seed=seed)
            begin = self._place(generation - 1, member.parent) if generation else None
            cores = self._wanted.cores_of(run)
            check_fits(cores, self._wanted.hosts, self._wanted.cores, "population")
            found.append(Trial(member.settings, run, self._place(generation, number), cores, begin))
        return found

    def _place(self, generation: int, member: int) -> Path:
        return self._folder / f"generation-{generation}" / f"member-{member}"

    def _following(self, members: list[PopulationMember]) -> list[PopulationMember]:
        """The next generation: the worst take over from the best, all others go on."""
        wanted, generation = self._wanted, len(self.generations)
        ranked = sorted(range(len(members)), key=lambda number: -(members[number].score or 0.0))
        following = [PopulationMember(one.settings, number) for number, one in enumerate(members)]
        for number in ranked[len(ranked) - wanted.changing :]:
            parent = ranked[wanted.better(self._seed, generation, number)]
            settings = wanted.explored(members[parent].settings, self._seed, generation, number)
            following[number] = PopulationMember(settings, parent)
        return following
