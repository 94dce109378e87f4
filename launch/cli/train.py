"""`rookery train`, and `rookery coordinator` for those who start workers by hand."""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
from functools import partial
from pathlib import Path

import click
from rich.console import Console

from launch.cli.display import display, tell_summary
from launch.cli.exec import become
from launch.cli.options import Configured, Count, own_environment, presets_and_files
from launch.config_loader import load
from launch.local import supervisor
from launch.run_dir import folder_for, left_as_found, make_folder, write_config
from protocol.transport.curve import run_keys
from protocol.transport.sockets import is_loopback


@click.command(cls=Configured)
@click.argument(
    "source", required=False, metavar="[PRESET or FILE.yaml or RUN-FOLDER]", shell_complete=presets_and_files
)
@own_environment
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--steps", type=Count(min=1), help="Agent steps (without actors: rows trained) until the run ends.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of the run.")
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="The run's folder; default runs/…")
@click.option("--sequential", is_flag=True, help="The same configuration in one process, without any queue.")
@click.option("--open", "without_keys", is_flag=True, help="Without keys: every user of this machine may take part.")
@click.option("--record", is_flag=True, help="Keep what learners receive, and in which order they learn from it.")
@click.option("--replay", metavar="DIR", help="Learn again, in one process, what the run in DIR recorded.")
@click.option("--no-progress", is_flag=True, help="Show no progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON at the end.")
def train(
    source: str | None,
    env: str | None,
    settings: tuple[str, ...],
    steps: int | None,
    seed: int | None,
    run_dir: Path | None,
    sequential: bool,
    without_keys: bool,
    record: bool,
    replay: str | None,
    no_progress: bool,
    as_json: bool,
) -> None:
    """Trains on this machine: starts all workers, watches them, ends them.

    \b
    rookery train
    rookery train cartpole --seed 1 --json
    rookery train runs/first --steps 2000000      (goes on with a run)
    rookery train --env package.module:function
    rookery train spread --set policy.learning_rate=0.001 --steps 1000000
    """
    logging.getLogger().addHandler(logging.NullHandler())  # what the supervisor has to say is told on the console
    settings = (*settings, "policy.record=true") if record else settings
    run = load(source, settings, env=env, steps=steps, seed=seed, replay=replay)
    alone = sequential or bool(run.replay) or run.multiprocessing.enabled is False
    folder = folder_for(run, source or env or "", run_dir, alone)
    console = Console(stderr=True)
    how = supervisor.train_sequential if alone else partial(supervisor.train, without_keys=without_keys)
    with display(console, not no_progress) as shown:
        outcome = how(run, folder, shown.show, shown.tell)
    if outcome.summary:
        tell_summary(console, outcome.summary)
    else:
        click.echo("rookery: the run ended at once and wrote no summary; see the logs in its folder", err=True)
    console.print(f"run folder: {folder}", highlight=False)
    if not outcome.complete and (folder / "state.json").exists():
        again = shlex.join(["rookery", "train", str(folder)])
        console.print(f"to go on: {again}", highlight=False, markup=False, soft_wrap=True)
    if as_json and outcome.summary:
        click.echo(json.dumps(outcome.summary, indent=2))
    sys.exit(0 if outcome.complete and outcome.summary else 1)


@click.command(cls=Configured)
@click.argument("source", default="treasure-hunt", metavar="[PRESET or FILE.yaml]", shell_complete=presets_and_files)
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="The run's folder; default runs/…")
@click.option("--bind", default="127.0.0.1:5600", show_default=True, metavar="HOST:PORT", help="Port 0: a free one.")
@click.option("--advertise", default="", metavar="HOST", help="Address that others reach it at, if another.")
@click.option("--insecure", is_flag=True, help="Allow sockets that other machines can reach without authentication.")
@click.option("--keys", envvar="ROOKERY_KEYS", default="", metavar="DIR", help="Keys, as `rookery keys new` makes.")
@click.option("--open", "without_keys", is_flag=True, help="Without keys: every user of this machine may take part.")
@click.option(
    "--resident",
    envvar="ROOKERY_RESIDENT",
    is_flag=True,
    help="For schedulers: when stopped, leave the run to the next one; when it has ended, stay and say so.",
)
@click.option("--until-end", is_flag=True, help="With --resident: end when the run has.")
def coordinator(
    source: str,
    settings: tuple[str, ...],
    run_dir: Path | None,
    bind: str,
    advertise: str,
    insecure: bool,
    keys: str,
    without_keys: bool,
    resident: bool,
    until_end: bool,
) -> None:
    """The coordinator of one run, for learners and actors that are started by hand.

    \b
    rookery coordinator cartpole --run-dir runs/mine
    rookery learner --coordinator tcp://127.0.0.1:5600 --keys runs/mine     (in another terminal)
    rookery actor --coordinator tcp://127.0.0.1:5600 --keys runs/mine       (in a third)

    On this machine alone it makes keys of its own in the run's folder.
    """
    run = load(source, settings)
    folder = run_dir.resolve() if run_dir and resident else folder_for(run, source, run_dir)
    with left_as_found(folder, make_folder(folder)):
        config = write_config(run, folder)
        if without_keys:
            keys = ""
            os.environ.pop("ROOKERY_KEYS", None)
        elif not keys and not insecure and is_loopback(bind.rpartition(":")[0]):
            keys = str(run_keys(folder))
    command = [str(config), "--run-dir", str(folder), "--bind", bind]
    command += ["--advertise", advertise] if advertise else []
    command += ["--insecure"] if insecure else []
    command += ["--keys", keys] if keys else []
    command += ["--resident"] if resident else []
    command += ["--until-end"] if until_end else []
    become("workers.coordinator", command)
