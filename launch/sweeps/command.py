"""`rookery sweep`: many runs side by side within a budget of cores, and what they come to together.

In flow: a YAML file (launch/sweeps/grid.py). Out flows: a folder of runs, `sweep.json`, pictures. What is done stays
so: the same command goes on where it was interrupted. With `search` settings are drawn (launch/sweeps/search.py), else
every combination is run.

`rookery pbt`: population-based training of one or several populations within a budget of cores.
In flow: a YAML file (launch/sweeps/pbt.py). Out flows: a folder of runs; `population.json`: who took over from
whom with which settings, and which member is the best. The same command goes on where it was interrupted.
"""

from __future__ import annotations

import json
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Column, Table

from launch.cli.plot import draw
from launch.sweeps.curves import groups_of, read_run
from launch.sweeps.executors import Machines
from launch.sweeps.grid import Sweep, Trial, read_sweep, trials_of
from launch.sweeps.pbt import Population, Together, read_population, train
from launch.sweeps.runs import Queue, aggregate, done, held, play, run_all, told_first
from protocol.control.wording import shown, shown_interval
from protocol.errors import ConfigurationError

_BEST = 10
"""Trials of a search that are shown."""
Line = dict[str, Any]


@click.command()
@click.argument("file", metavar="FILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Its folder; default sweeps/FILE.")
@click.option("--dry-run", is_flag=True, help="Only tell where the first runs would be started.")
@click.option("--json", "as_json", is_flag=True, help="Print the scores as JSON.")
def sweep(file: Path, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Runs all combinations of settings and seeds in FILE.yaml, or those that a search draws.

    They run side by side, and it tells what each comes to.

    \b
    rookery sweep rates.yaml           the same again goes on with what is left
    """
    wanted, folder = read_sweep(file), (out or Path("sweeps") / file.stem).resolve()
    console, machines = Console(stderr=True, markup=False), Machines(wanted.hosts, wanted.cores)
    if wanted.search is not None and find_spec("optuna") is None:
        raise ConfigurationError("optuna_missing", key="search")
    trials = trials_of(wanted, folder)
    if not any(trial.run.actors or trial.run.evaluation for trial in trials):
        raise ConfigurationError("sweep_without_scores", key="evaluation")
    if dry_run:
        queue = Queue(trials)
        if wanted.search is not None:
            queue.said = f"{wanted.search.trials} trials in all, whose settings are drawn when they begin"
        click.echo(told_first(queue, machines))
        return
    machines.check(folder)
    with held(folder):
        found = (_combine if wanted.search is None else _search)(wanted, trials, folder, machines, console)
    if as_json:
        click.echo(json.dumps(found, indent=2))
    failed = [trial.name for trial in trials if wanted.search is None and not done(trial)]
    if failed:
        raise ConfigurationError("sweep_runs_failed", count=len(failed), total=len(trials), runs=failed, file=folder)


def _combine(wanted: Sweep, trials: list[Trial], folder: Path, machines: Machines, console: Console) -> list[Line]:
    """Runs every combination."""
    run_all(trials, machines, wanted.sequential, console.print)
    found = aggregate(trials)
    _show(found, _table(found), [trial.folder for trial in trials if done(trial)], folder, console)
    return found


def _search(wanted: Sweep, trials: list[Trial], folder: Path, machines: Machines, console: Console) -> list[Line]:
    """Runs what Optuna draws; `trials`: with each value that each setting may have, at the least."""
    from launch.sweeps.search import draw_study, searching

    with searching(wanted, trials, folder, console.print) as queue:
        play(queue, machines, wanted.sequential, console.print)
        found = queue.found()
        runs = [path.parent for path in sorted(folder.glob("trial-*/seed-*/config.yaml"))]
        if _show(found, _best(found, wanted), runs, folder, console):
            draw_study(queue.study, folder)
    return found


def _show(found: list[Line], table: Table, runs: list[Path], folder: Path, console: Console) -> bool:
    """Whether there is a picture: that there is none is no reason for a sweep to fail."""
    (folder / "sweep.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(table)
    console.print(f"sweep folder: {folder}", highlight=False)
    try:
        draw(groups_of(map(read_run, runs)), folder / "curves.png")
    except ConfigurationError as fault:
        console.print(f"no picture: {fault}")
        return False
    return True


def _said(settings: dict[str, Any]) -> str:
    """Floats as short as is enough to tell them apart."""
    shortened = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in settings.items()}
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in shortened.items()) or "–"


def _table(found: list[Line]) -> Table:
    table = Table(Column("settings", overflow="fold"), "policy", "score", "runs", "interquartile mean", "95 % interval")
    for one in found:
        sure = shown_interval(one["low"], one["high"])
        runs = str(one["runs"]) if one["runs"] == one["of"] else f"{one['runs']} of {one['of']}"
        table.add_row(_said(one["settings"]), one["policy"], one["score"], runs, shown(one["iqm"]), sure)
    return table


def _best(found: list[Line], wanted: Sweep) -> Table:
    """The best trials, and how many ended in which way."""
    assert wanted.search is not None
    table = Table("trial", wanted.search.score, Column("settings", overflow="fold"))
    table.caption = ", ".join(f"{count} {state}" for state, count in Counter(one["state"] for one in found).items())
    drawn = {key for key, space in wanted.settings.items() if not isinstance(space, tuple) or len(space) > 1}
    whole = sorted((one for one in found if one["state"] == "complete"), key=lambda one: float(one["score"]))
    for one in (whole if wanted.search.direction == "minimize" else whole[::-1])[:_BEST]:
        settings = {key: value for key, value in one["settings"].items() if key in drawn}
        table.add_row(str(one["trial"]), shown(one["score"]), _said(settings))
    return table


@click.command()
@click.argument("file", metavar="FILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Its folder; default populations/FILE.")
@click.option("--dry-run", is_flag=True, help="Only tell where the first runs would be started.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of it as JSON.")
def pbt(file: Path, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Trains a population side by side; the worst take over from the best, and explore from there.

    \b
    rookery pbt rates.yaml           the same again goes on with what is left
    """
    wanted, console = read_population(file), Console(stderr=True)
    folder = (out or Path("populations") / file.stem).resolve()
    machines = Machines(wanted.hosts, wanted.cores)

    def play(trials: list[Trial]) -> list[Trial]:
        return run_all(trials, machines, wanted.sequential, lambda line: console.print(line, markup=False))

    populations = [Population(wanted, seed, folder, play) for seed in wanted.seeds]
    if dry_run:
        click.echo(told_first(Queue([trial for one in populations for trial in one.trials(0)]), machines))
        return
    machines.check(folder)
    with held(folder):
        train(Together(file.stem, populations), wanted.generations)
    found = [one.view() for one in populations]
    (folder / "population.json").write_text(json.dumps(found, indent=2) + "\n")
    console.print(_members(populations))
    console.print(f"population folder: {folder}", highlight=False)
    if as_json:
        click.echo(json.dumps(found, indent=2))


def _members(populations: list[Population]) -> Table:
    table = Table("population", "best member", "score", "settings", "took over")
    for one in populations:
        number, best = one.best
        settings = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in best.settings.items())
        over = sum(member.parent != place for members in one.generations for place, member in enumerate(members))
        table.add_row(one.name, str(number), shown(best.score), settings, str(over))
    return table
