"""`rookery sweep`: many runs side by side within a budget of cores, and what they come to together.

    trials that are not done -> started while cores are free -> ended -> scores of all, by setting

In flow: a YAML file (launch/sweeps/grid.py). Out flows: a folder of runs, `sweep.json`, `curves.png`. What is done
stays so: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import yaml
from rich.console import Console
from rich.table import Column, Table

from launch.cli.plot import draw
from launch.local.signals import Interrupt
from launch.run_dir import can_go_on, remove, take_checkpoints
from launch.sweeps.curves import groups_of, read_run
from launch.sweeps.executors import HERE, Machines, Running, end_all
from launch.sweeps.grid import Trial, read_sweep, trials_of
from protocol.config.run import parse_run
from protocol.config.yaml_file import read_mapping, read_summary
from protocol.errors import ConfigurationError
from protocol.intervals import interquartile_mean, interval, shown, shown_interval

_LOOK_EVERY = 0.2
_END_SECONDS = 30.0


def run_all(trials: list[Trial], machines: Machines, sequential: bool, tell: Callable[[str], None]) -> list[Trial]:
    """Runs all that are not done, as many at once as there are cores for; those that failed. An interrupt ends all."""
    waiting = [trial for trial in trials if not done(trial)]
    running: list[tuple[Trial, str, Running]] = []
    failed: list[Trial] = []
    tell(f"{len(trials)} runs, {len(trials) - len(waiting)} of them done")
    with Interrupt() as interrupt:
        try:
            while (waiting or running) and not interrupt.count:
                where = machines.free(waiting[0].cores) if waiting else None
                if where is not None:
                    trial = waiting.pop(0)
                    running.append((trial, where, _begin(trial, where, machines, sequential)))
                    tell(f"{trial.name}: started{'' if where == HERE else f' on {where}'}")
                    continue
                for trial, where, process in [one for one in running if one[2].code is not None]:
                    running.remove((trial, where, process))
                    machines.ended(where, trial.cores)
                    if process.code or not done(trial):
                        failed.append(trial)
                        tell(f"{trial.name}: failed: {process.last_words(1) or process.code}")
                    else:
                        tell(f"{trial.name}: done, {len(waiting) + len(running)} left")
                time.sleep(_LOOK_EVERY)
        finally:
            end_all([process for *_, process in running], interrupt.patience(_END_SECONDS))
            for trial, where, _ in running:
                machines.ended(where, trial.cores)
    if interrupt.count:
        raise ConfigurationError("sweep_interrupted")
    return failed


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
            found.append(
                {
                    "settings": members[0].settings,
                    "policy": policy,
                    "score": kind,
                    "runs": len(values),
                    "of": len(members),
                    "iqm": float(told.value),
                    "low": low,
                    "high": high,
                    "values": values,
                }
            )
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


def told_first(trials: list[Trial], machines: Machines) -> str:
    """Which of `trials` that are not done would be started at once, and where: a line each."""
    waiting = [trial for trial in trials if not done(trial)]
    lines = []
    for trial in waiting:
        where = machines.free(trial.cores)
        if where is None:
            break
        machines.take(where, trial.cores)
        lines.append(f"{where}: {trial.folder}, {trial.cores} cores")
    return "\n".join([*lines, f"{len(trials)} runs, {len(trials) - len(waiting)} of them done"])


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


def done(trial: Trial) -> bool:
    """Whether the run reached its end; ConfigurationError if the folder holds a run of another configuration."""
    config, summary = trial.folder / "config.yaml", read_summary(trial.folder)
    if config.is_file() and parse_run(read_mapping(config)) != trial.run:
        raise ConfigurationError("sweep_run_differs", file=trial.folder)
    return summary is not None and bool(summary["complete"])


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table(Column("settings", overflow="fold"), "policy", "score", "runs", "interquartile mean", "95 % interval")
    for one in found:
        settings = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in one["settings"].items()) or "–"
        sure = shown_interval(one["low"], one["high"])
        runs = str(one["runs"]) if one["runs"] == one["of"] else f"{one['runs']} of {one['of']}"
        table.add_row(settings, one["policy"], one["score"], runs, shown(one["iqm"]), sure)
    return table


@click.command()
@click.argument("file", metavar="FILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Its folder; default sweeps/FILE.")
@click.option("--dry-run", is_flag=True, help="Only tell where the first runs would be started.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def sweep(file: Path, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Runs every combination of settings and seeds in FILE.yaml side by side, and tells what each setting comes to.

    \b
    rookery sweep rates.yaml           the same again goes on with what is left
    """
    wanted = read_sweep(file)
    folder = (out or Path("sweeps") / file.stem).resolve()
    trials = trials_of(wanted, folder)
    if not any(trial.run.actors or trial.run.evaluation for trial in trials):
        raise ConfigurationError("sweep_without_scores", key="evaluation")
    console, machines = Console(stderr=True), Machines(wanted.hosts, wanted.cores)
    if dry_run:
        click.echo(told_first(trials, machines))
        return
    machines.check(folder)
    failed = run_all(trials, machines, wanted.sequential, lambda line: console.print(line, markup=False))
    found = aggregate(trials)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sweep.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(_table(found))
    try:
        draw(groups_of(read_run(trial.folder) for trial in trials if done(trial)), folder / "curves.png")
    except ConfigurationError as fault:  # a picture is no reason for a sweep to fail
        console.print(f"no picture: {fault}", markup=False)
    console.print(f"sweep folder: {folder}", highlight=False)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    if failed:
        raise ConfigurationError(
            "sweep_runs_failed",
            count=len(failed),
            total=len(trials),
            runs=[trial.name for trial in failed],
            file=folder,
        )
