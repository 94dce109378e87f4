"""What a sweep consists of: every combination of settings, or those that a search draws, with every seed.

In flow: a YAML file. Out flow: `Trial`s, each with a whole configuration and a folder of its own. Starts nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from launch.config_loader import load
from launch.presets import preset_names
from launch.sweeps.executors import NamedMachines, check_fits
from protocol.config.base import ConfigModel
from protocol.config.run import Run
from protocol.config.yaml_file import parsed, read_mapping
from protocol.errors import ConfigurationError

_STRANGE = re.compile(r"[^A-Za-z0-9_.=,+-]+")


class Range(ConfigModel):
    """Numbers between two bounds, both included; whole ones where the bounds and the step are."""

    low: int | float
    high: int | float
    scale: Literal["linear", "log"] = "linear"
    """Whether differences or ratios count."""
    step: Annotated[int | float, Field(gt=0)] | None = None
    """Only low and what lies a multiple of this above it."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low < self.high:
            raise ConfigurationError("range_bounds_reversed", low=self.low, high=self.high, key="low")
        if self.scale == "log" and self.low <= 0:
            raise ConfigurationError("log_range_not_positive", value=self.low, key="low")
        if self.step is not None and (self.scale == "log" or self.step > self.high - self.low):
            raise ConfigurationError("range_step_impossible", value=self.step, key="step")
        return self

    @property
    def whole(self) -> bool:
        """Whether its numbers are."""
        return all(isinstance(one, int) for one in (self.low, self.high, self.step or 1))

    def draw(self, random: np.random.Generator) -> int | float:
        """Equally likely anywhere."""
        share = float(random.random())
        if self.scale == "log":
            return self._fit(math.exp(math.log(self.low) + share * (math.log(self.high) - math.log(self.low))))
        return self._fit(self.low + share * (self.high - self.low))

    def change(self, value: Any, factor: float, random: np.random.Generator) -> int | float:
        """`factor` times as much, or as little."""
        return self._fit(value * (factor if random.random() < 0.5 else 1 / factor))

    def _fit(self, value: float) -> int | float:
        within = min(max(value, self.low), self.high)
        if self.step is not None:
            most = math.floor((self.high - self.low) / self.step + 1e-9)  # 0.3 / 0.1 is a little less than 3
            within = self.low + min(round((within - self.low) / self.step), most) * self.step
        return round(within) if self.whole else float(within)


class Choices(ConfigModel):
    """One of some values, in an order in which neighbours are alike."""

    values: Annotated[tuple[Any, ...], Field(min_length=2)]

    def draw(self, random: np.random.Generator) -> Any:
        """All are equally likely."""
        return self.values[random.integers(len(self.values))]

    def change(self, value: Any, factor: float, random: np.random.Generator) -> Any:
        """The next one, or the one before."""
        at = self.values.index(value) + (1 if random.random() < 0.5 else -1)
        return self.values[min(max(at, 0), len(self.values) - 1)]


def is_range(value: Any) -> bool:
    """Whether what a file says of a setting is meant as a range, not as a section of a configuration."""
    return isinstance(value, Mapping) and bool({"low", "high"} & value.keys())


class ManyRuns(ConfigModel):
    """What the files of sweeps and of populations have in common."""

    run: str
    """A preset, or a configuration's file, from the folder of this file."""
    seeds: tuple[int, ...]
    steps: int | None = Field(default=None, ge=1)
    cores: int = Field(default=2, ge=1)
    """All runs at one time take no more."""
    cores_per_run: int | None = Field(default=None, ge=1)
    """None: one for each actor and learner process, or for a sequential run."""
    sequential: bool = False
    """Each run in one process."""
    hosts: NamedMachines | None = Field(default=None, min_length=1)
    """Machines that the runs are shared out to, with their cores; None: this one, with `cores`."""

    @model_validator(mode="after")
    def _seeds_apart(self) -> Self:
        if len({*self.seeds}) < len(self.seeds):
            raise ConfigurationError("seed_repeated", value=[*self.seeds], key="seeds")
        return self

    def beside(self, path: Path) -> Self:
        """As read from the file `path`, from whose folder the run's leads."""
        return self if self.run in preset_names() else self.model_copy(update={"run": str(path.parent / self.run)})

    def cores_of(self, run: Run) -> int:
        """That a run takes."""
        if self.cores_per_run is not None:
            return self.cores_per_run
        if self.sequential or run.multiprocessing.enabled is False:
            return 1
        return run.actors + (run.num_learner_processes or 1)


class Search(ConfigModel):
    """How the settings of a sweep are searched instead of combined: trial after trial, by Optuna."""

    trials: int = Field(ge=1, le=100_000)
    """Of all starts together."""
    sampler: Literal["tpe", "random"] = "tpe"
    """Who draws settings: Optuna's TPE, by what trials came to before, or chance alone."""
    pruner: Literal["halving", "median"] | None = None
    """By which rule of Optuna's a trial ends early that is behind others in its evaluations; None: none does."""
    score: Literal["evaluation", "return"] = "evaluation"
    """The last evaluation, or what episodes earned at the end of training."""
    policy: str | None = None
    """Whose score counts; None: the mean of all that have one."""
    direction: Literal["maximize", "minimize"] = "maximize"
    seed: int = Field(default=0, ge=0)
    """Of what the sampler draws."""

    @model_validator(mode="after")
    def _evaluated(self) -> Self:
        if self.pruner is not None and self.score != "evaluation":
            raise ConfigurationError("pruner_without_evaluation", value=self.pruner, key="pruner")
        return self


class Sweep(ManyRuns):
    """The keys of a sweep's file."""

    run: str = "treasure-hunt"
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2, 3, 4)
    search: Search | None = None
    """None: every combination of settings."""
    settings: dict[str, Range | Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Key of a configuration -> its values, or the one that it has in all runs, or a range to be searched."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        for reserved in ("seed", "steps"):
            if reserved in self.settings:
                raise ConfigurationError("sweep_key_in_settings", key=reserved)
        for key, one in self.settings.items():
            if self.search is None and isinstance(one, Range):
                raise ConfigurationError("range_without_search", key=f"settings.{key}")
        return self


@dataclass(frozen=True, slots=True)
class Trial:
    """One run: the settings that make it what it is, and where it lies."""

    settings: dict[str, Any]
    run: Run
    folder: Path
    cores: int
    begin: Path | None = None
    """The run whose newest checkpoints it begins with."""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.folder.parent.name} {self.folder.name}"


def read_sweep(path: Path) -> Sweep:
    """The sweep in the file; ConfigurationError in one sentence."""
    told = read_mapping(path)
    wanted = told.get("settings")
    if isinstance(wanted, dict):
        listed = {key: one if is_range(one) or isinstance(one, list) else [one] for key, one in wanted.items()}
        told = {**told, "settings": listed}
    return parsed(path, told, Sweep).beside(path)


def trials_of(sweep: Sweep, folder: Path) -> list[Trial]:
    """All runs of the sweep, below `folder`, seeds of one setting together; of a search those with each value, or end
    of a range, and the first of all other settings. ConfigurationError for what cannot be."""
    ends = {key: (one.low, one.high) if isinstance(one, Range) else one for key, one in sweep.settings.items()}
    first = {key: values[0] for key, values in ends.items()}
    trials: list[Trial] = []
    every: Iterable[dict[str, Any]] = (dict(zip(ends, values, strict=True)) for values in product(*ends.values()))
    if sweep.search is not None:
        every = [first, *({**first, key: value} for key, values in ends.items() for value in values[1:])]
    for number, settings in enumerate(every):
        name = _STRANGE.sub("_", ",".join(f"{key}={value}" for key, value in settings.items())) or "runs"
        trials += seeds_of(sweep, settings, folder / (name if sweep.search is None else f"trial-like-{number}"))
    for run in [trial.run for trial in trials if sweep.search is not None and sweep.search.score == "evaluation"]:
        if run.evaluation is None or run.evaluation.every_steps is None:
            raise ConfigurationError("search_without_evaluation", key="evaluation.every_steps")
    if len({trial.folder for trial in trials}) < len(trials):
        raise ConfigurationError("sweep_names_collide")
    return trials


def seeds_of(sweep: Sweep, settings: dict[str, Any], folder: Path) -> list[Trial]:
    """The runs with `settings`, below `folder`. ConfigurationError for what cannot be."""
    changes = [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()]
    runs = [load(sweep.run, changes, steps=sweep.steps, seed=seed) for seed in sweep.seeds]
    check_fits(max(map(sweep.cores_of, runs)), sweep.hosts, sweep.cores, "sweep")
    return [Trial(settings, run, folder / f"seed-{run.seed}", sweep.cores_of(run)) for run in runs]
