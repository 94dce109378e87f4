"""`rookery pbt`: population-based training of one or several populations within a budget of cores.

In flow: a YAML file (launch/sweeps/pbt_spec.py). Out flows: a folder of runs; `population.json`: who took over from
whom with which settings, and which member is the best. The same command goes on where it was interrupted.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from launch.sweeps.executors import Machines
from launch.sweeps.grid import Trial
from launch.sweeps.pbt import Population, Together, train
from launch.sweeps.pbt_spec import read_population
from launch.sweeps.runs import Queue, held, run_all, told_first
from protocol.intervals import shown


@click.command()
@click.argument("file", metavar="FILE.yaml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), help="Its folder; default populations/FILE.")
@click.option("--dry-run", is_flag=True, help="Only tell where the first runs would be started.")
@click.option("--json", "as_json", is_flag=True, help="Print what became of it as JSON.")
def pbt(file: Path, out: Path | None, dry_run: bool, as_json: bool) -> None:
    """Trains the members of a population side by side; the worst take over from the best, and explore from there.

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
    console.print(_table(populations))
    console.print(f"population folder: {folder}", highlight=False)
    if as_json:
        click.echo(json.dumps(found, indent=2))


def _table(populations: list[Population]) -> Table:
    table = Table("population", "best member", "score", "settings", "took over")
    for one in populations:
        number, best = one.best
        settings = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in best.settings.items())
        over = sum(member.parent != place for members in one.generations for place, member in enumerate(members))
        table.add_row(one.name, str(number), shown(best.score), settings, str(over))
    return table
