"""What a sweep consists of: every combination of settings, with every seed.

In flow: a YAML file. Out flow: `Trial`s, each with a whole configuration and a folder of its own. Starts nothing.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, model_validator

from launch.config_loader import load, preset_names
from launch.sweeps.executors import NamedMachines, check_fits
from protocol.config.base import ConfigModel
from protocol.config.run import Run
from protocol.config.yaml_file import parsed, read_mapping
from protocol.errors import ConfigurationError

_STRANGE = re.compile(r"[^A-Za-z0-9_.=,+-]+")


def _listed(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else (value,)


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


class Sweep(ManyRuns):
    """The keys of a sweep's file."""

    run: str = "treasure-hunt"
    seeds: Annotated[tuple[int, ...], Field(min_length=1)] = (0, 1, 2, 3, 4)
    settings: dict[str, Annotated[tuple[Any, ...], BeforeValidator(_listed), Field(min_length=1)]] = Field(
        default_factory=dict
    )
    """Key of a configuration -> its values, or the one that it has in all runs."""

    @model_validator(mode="after")
    def _apart(self) -> Self:
        for reserved in ("seed", "steps"):
            if reserved in self.settings:
                raise ConfigurationError("sweep_key_in_settings", key=reserved)
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
    return parsed(path, read_mapping(path), Sweep).beside(path)


def trials_of(sweep: Sweep, folder: Path) -> list[Trial]:
    """All runs of the sweep, below `folder`, seeds of one setting together. ConfigurationError for what cannot be."""
    trials: list[Trial] = []
    for values in itertools.product(*sweep.settings.values()):
        settings = dict(zip(sweep.settings, values, strict=True))
        changes = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
        name = _STRANGE.sub("_", ",".join(f"{key}={value}" for key, value in settings.items())) or "runs"
        for seed in sweep.seeds:
            run = load(sweep.run, changes, steps=sweep.steps, seed=seed)
            trials.append(Trial(settings, run, folder / name / f"seed-{seed}", sweep.cores_of(run)))
    if len({trial.folder for trial in trials}) < len(trials):
        raise ConfigurationError("sweep_names_collide")
    most = max(trial.cores for trial in trials)
    check_fits(most, sweep.hosts, sweep.cores, "sweep")
    return trials
