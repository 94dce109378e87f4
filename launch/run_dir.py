"""The run's folder before its coordinator has it: made, found free, given its configuration, removed again."""

from __future__ import annotations

import fcntl
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from launch.config_loader import DEFAULT, is_run_folder
from protocol.config.run import Run
from protocol.config.yaml_file import going_on, read_run
from protocol.control.processors import available_cores
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError, disk_fault

_LIBRARIES = ("gymnasium", "gymnasium_multi", "openspiel", "pettingzoo")


def _name_of(source: str) -> str:
    """What a run is called after: a preset, a file, a user's module, or the id of somebody else's world."""
    library, _, rest = source.partition(":")
    if library in _LIBRARIES and rest:
        return re.split("[:/.]", rest)[-1]
    return Path(source).stem.partition(":")[0] or DEFAULT


def folder_for(run: Run, source: str, run_dir: Path | None, alone: bool = False) -> Path:
    """`run_dir`, or `source` if that is a run's folder, or a new one below `runs` called after `source`, for a run of
    workers, or of one process `alone`.

    ConfigurationError if one reached its end in it and `run` has none beyond, or was stopped in it that cannot go on.
    """
    made = f"{_name_of(source)}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = run_dir or (Path(source) if is_run_folder(source) else Path("runs") / made)
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError("folder_not_made", file=folder, reason="it is no folder")
    summary = read_summary(folder)
    goes_on, of_workers = can_go_on(folder), alone and (folder / "state.json").exists()
    if (not goes_on or of_workers) and not in_use(folder):  # of one that lives `make_folder` says so
        raise ConfigurationError("run_of_workers_stopped" if of_workers else "sequential_run_stopped", file=folder)
    changes = {one.key: one.old for one in going_on(run, folder)[1] or []}
    if summary is not None and summary.get("complete", True) and (key := _ended_by(run, changes, summary)):
        how = "--steps" if key == "steps" else f"--set {key}="
        raise ConfigurationError("run_already_finished", file=folder, key=key, value=getattr(run, key), remedy=how)
    return folder.resolve()


def _ended_by(run: Run, changes: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """The key by which `run`, which reached its end as `summary` tells, would end at once again, as nothing or too
    little of that is among the `changes` (key -> old value); empty where it would go on."""
    if run.seconds is not None and summary.get("seconds", 0.0) >= run.seconds:
        return "seconds"
    if (old := changes.get("seconds")) is not None and summary.get("seconds", 0.0) >= old:
        return ""
    steps, until = (changes.get(key, getattr(run, key)) for key in ("steps", "until"))
    end = "steps" if run.until is None else "until"
    if run.actors and summary.get("agent_steps", math.inf) < (steps if until is None else until):  # before its steps
        return "target_return" if run.target_return is not None and "target_return" not in changes else ""
    return "" if {"steps", "until"} & {*changes} else end


def can_go_on(folder: Path) -> bool:
    """Whether nothing has begun in `folder`, or workers know there how far they came. Whoever begins has a page of
    counters first of all: those of a run that died would be taken for the new one's."""
    begun = (folder / "counters").exists() or (folder / "summary.json").exists()
    return not begun or (folder / "state.json").exists()


def make_folder(folder: Path) -> bool:
    """Makes the run's folder; True if it was not there.

    ConfigurationError if it cannot be made or another run has it.
    """
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        if in_use(folder):
            raise ConfigurationError("folder_in_use", file=folder) from None
        return False
    except OSError as fault:
        raise disk_fault(fault) or ConfigurationError("folder_not_made", file=folder, reason=str(fault)) from None
    return True


@contextmanager
def left_as_found(folder: Path, fresh: bool) -> Iterator[None]:
    """Whatever fails in here leaves no folder behind that was made afresh for it."""
    try:
        yield
    except BaseException:
        if fresh:
            remove(folder)
        raise


def in_use(folder: Path) -> bool:
    """Whether a living coordinator or sequential run holds the folder's lock."""
    return held(folder / ".lock")


def held(path: Path) -> bool:
    """Whether a living process has locked this file."""
    try:
        with path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # given back when it is closed
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    return False


def remove(folder: Path) -> None:
    """Removes what this process made, unless another run has come to live there."""
    if not in_use(folder):
        shutil.rmtree(folder)


def take_checkpoints(other: Path, folder: Path) -> None:
    """Puts the newest checkpoint of each policy of the run in `other` into `folder`, for a run that is to go on from
    there; not if it has some of its own."""
    final = folder / "checkpoints"
    if final.exists():
        return
    aside = folder / ".checkpoints.new"
    shutil.rmtree(aside, ignore_errors=True)
    for policy in (other / "checkpoints").iterdir():
        newest = max((path for path in policy.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        shutil.copytree(newest, aside / policy.name / newest.name)
    aside.rename(final)


def on_this_machine(run: Run, folder: Path, gpu: bool = False) -> Run:
    """`run` with its learners placed as is fastest here, where they have no `gpu`, or as they were when the run in
    `folder` began."""
    path, placed = folder / "config.yaml", run if gpu else run.on_cores(available_cores())
    if run.on_cores(1) is not run and path.exists() and (folder / "state.json").exists():
        before = read_run(path)
        kept = {"learners": before.learners, "num_learner_processes": before.num_learner_processes}
        return run.model_copy(update=kept)
    return placed


def write_config(run: Run, folder: Path) -> Path:
    """Puts the resolved configuration into the run's folder; returns its path. Where a run goes on with another one,
    it lies beside the old one until the coordinator has made sure that it can.

    ConfigurationError if the folder holds the state of a run that cannot go on with it.
    """
    run, changes = going_on(run, folder)
    path = folder / ("config.new.yaml" if changes else "config.yaml")
    if changes != []:
        path.write_text(yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False))
    return path
