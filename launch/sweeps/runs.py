"""Many runs side by side within a budget of cores, each told to end when its turn is over or somebody says so.

    runs that are not done -> started while cores are free -> looked at -> ended

In flow: a `Queue` of runs. Out flows: folders of runs, and what those come to; lines for people. What is done stays so.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from launch.local.signals import Interrupt
from launch.run_dir import can_go_on, in_use, remove, take_checkpoints
from launch.sweeps.curves import read_run
from launch.sweeps.executors import HERE, Machines, Running, end_all, tell_to_end
from launch.sweeps.grid import Trial
from protocol.config.run import parse_run
from protocol.config.yaml_file import read_mapping
from protocol.control.run_summary import read_summary
from protocol.errors import ConfigurationError
from protocol.intervals import interquartile_mean, interval

_LOOK_EVERY = 0.2
_END_SECONDS = 30.0


def done(trial: Trial) -> bool:
    """Whether the run reached its end; ConfigurationError if the folder holds a run of another configuration."""
    config, summary = trial.folder / "config.yaml", read_summary(trial.folder)
    if config.is_file() and parse_run(read_mapping(config)) != trial.run:
        raise ConfigurationError("sweep_run_differs", file=trial.folder)
    return summary is not None and bool(summary["complete"])


class Queue:
    """Runs that wait for their turn, all of them known."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self.waiting = [trial for trial in trials if not done(trial)]
        self.failed: list[Trial] = []
        self.said = f"{len(trials)} runs, {len(trials) - len(self.waiting)} of them done"

    def next(self) -> Trial | None:
        """The run whose turn it is; None where there is none, or none before another has ended."""
        return self.waiting[0] if self.waiting else None

    def stops(self, trial: Trial) -> bool:
        """Whether a run that goes on is to end before its time."""
        return False

    def ended(self, trial: Trial, complete: bool) -> None:
        """A run has ended by itself, or was told to."""
        if not complete:
            self.failed.append(trial)


def play(queue: Queue, machines: Machines, sequential: bool, tell: Callable[[str], None]) -> None:
    """Runs all of `queue`, as many at once as there are cores for. ConfigurationError after an interrupt, which ends
    all."""
    running: list[tuple[Trial, str, Running]] = []
    told = set[Path]()
    """Folders whose runs were told to end, or are waited for."""
    tell(queue.said)
    with Interrupt() as interrupt:
        try:
            while not interrupt.count:
                trial = queue.next() if machines.free(1) is not None else None
                where = machines.free(trial.cores) if trial is not None else None
                if trial is not None and where is not None and not _lived_in(trial, told, tell):
                    queue.waiting.remove(trial)
                    running.append((trial, where, _begin(trial, where, machines, sequential)))
                    tell(f"{trial.name}: started{'' if where == HERE else f' on {where}'}")
                    continue
                if trial is None and not running:
                    break
                for trial, where, process in [*running]:
                    if process.code is not None:
                        running.remove((trial, where, process))
                        machines.ended(where, trial.cores)
                        _over(queue, trial, process, tell)
                    elif queue.stops(trial) and trial.folder not in told:
                        told.add(trial.folder)
                        tell_to_end(process)
                time.sleep(_LOOK_EVERY)
        finally:
            end_all([process for *_, process in running], interrupt.patience(_END_SECONDS))
            for trial, where, _ in running:
                machines.ended(where, trial.cores)
    if interrupt.count:
        raise ConfigurationError("sweep_interrupted")


def run_all(trials: list[Trial], machines: Machines, sequential: bool, tell: Callable[[str], None]) -> list[Trial]:
    """Runs all that are not done, as `play` does; those that failed."""
    queue = Queue(trials)
    play(queue, machines, sequential, tell)
    return queue.failed


def told_first(queue: Queue, machines: Machines) -> str:
    """Which runs of `queue` would be started at once, and where: a line each."""
    lines = []
    while (trial := queue.next()) is not None and (where := machines.free(trial.cores)) is not None:
        queue.waiting.remove(trial)
        machines.take(where, trial.cores)
        lines.append(f"{where}: {trial.folder}, {trial.cores} cores")
    return "\n".join([*lines, queue.said])


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Keeps the folder of a sweep or a population from another; ConfigurationError where one has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given back when it is closed, at any death
        except BlockingIOError:
            raise ConfigurationError("sweep_folder_in_use", file=folder) from None
        yield


def _lived_in(trial: Trial, told: set[Path], tell: Callable[[str], None]) -> bool:
    """Whether another run still ends in its folder, as after a sweep was killed."""
    found = in_use(trial.folder)
    if found and trial.folder not in told:
        told.add(trial.folder)
        tell(f"{trial.name}: waits for the run that is still alive in its folder")
    return found


def _begin(trial: Trial, where: str, machines: Machines, sequential: bool) -> Running:
    """Starts a run anew, or goes on with one that was killed."""
    if (trial.folder / "summary.json").exists() or not can_go_on(trial.folder):  # told to stop, or one process alone
        remove(trial.folder)
    trial.folder.parent.mkdir(parents=True, exist_ok=True)
    if trial.begin is not None:
        take_checkpoints(trial.begin, trial.folder)
    config = trial.folder.with_suffix(".yaml")
    config.write_text(yaml.safe_dump(trial.run.model_dump(mode="json"), sort_keys=False))
    words = ["train", str(config), "--run-dir", str(trial.folder), "--no-progress"]
    words += ["--sequential"] if sequential else []
    return machines.begin(where, trial.cores, words, trial.folder.with_suffix(".out"))


def _over(queue: Queue, trial: Trial, process: Running, tell: Callable[[str], None]) -> None:
    """What becomes of a run that has ended."""
    complete = done(trial) and not process.code
    if not complete and in_use(trial.folder):  # by one that was only beginning when an earlier sweep died
        queue.waiting.insert(0, trial)
        return
    fault = f"failed: {process.last_words(1) or process.code}"
    tell(f"{trial.name}: {'done' if complete else 'ended early' if queue.stops(trial) else fault}")
    queue.ended(trial, complete)


def aggregate(trials: list[Trial]) -> list[dict[str, Any]]:
    """For each setting and policy: the interquartile means over seeds, with their intervals, of the returns at the end
    of training and, where runs evaluate themselves, of the last evaluation."""
    by_setting: dict[Path, list[Trial]] = {}
    for trial in trials:
        if done(trial):
            by_setting.setdefault(trial.folder.parent, []).append(trial)
    found = []
    for members in by_setting.values():
        scores: dict[tuple[str, str], list[float]] = {}
        for trial in members:
            for key, value in scores_of(trial.folder).items():
                scores.setdefault(key, []).append(value)
        for (policy, kind), values in sorted(scores.items()):
            told = interval(np.array(values), interquartile_mean)
            low, high = (None if np.isnan(bound) else float(bound) for bound in (told.low, told.high))
            line = {"settings": members[0].settings, "policy": policy, "score": kind, "runs": len(values)}
            line |= {"of": len(members), "iqm": float(told.value), "low": low, "high": high, "values": values}
            found.append(line)
    return found


def scores_of(folder: Path) -> dict[tuple[str, str], float]:
    """(policy, kind of score) -> that of one run."""
    returns = (read_summary(folder) or {})["returns"]
    found = {(policy, "return"): told["last"] for policy, told in returns.items() if told["last"] is not None}
    curves = read_run(folder).curves
    for policy in {policy for policy, name in curves if name.startswith("evaluation/")}:
        last = [curves[key][1][-1] for key in curves if key[0] == policy and key[1].startswith("evaluation/")]
        found[policy, "evaluation"] = float(np.mean(last))
    return found


def score_of(folder: Path, policy: str | None, kinds: Sequence[str] = ("evaluation", "return")) -> float:
    """Of one run, by the first of `kinds` that it has: what `policy` reached, None: the mean of all policies.
    ConfigurationError if there is none."""
    found = scores_of(folder)
    earned: dict[str, float] = {}
    for kind in kinds:
        earned = earned or {name: value for (name, of), value in found.items() if of == kind}
    if policy is not None and policy not in earned:
        raise ConfigurationError("score_of_policy_missing", file=folder, policy=policy, key="policy")
    if not earned:
        raise ConfigurationError("score_missing", file=folder, key="steps")
    return earned[policy] if policy is not None else float(np.mean([*earned.values()]))
