"""The `rookery` command."""

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

from launch.cli.display import Silent, display, tell_summary
from launch.cli.doctor import diagnosis, env, model, pack, preflight, short_run
from launch.cli.exec import BECOMES, become
from launch.cli.hosts import hosts
from launch.cli.import_weights import import_weights
from launch.cli.k8s import k8s
from launch.cli.new import new
from launch.cli.options import Configured, Count, Preset, presets_and_files
from launch.cli.plot import plot
from launch.cli.roster import roster
from launch.cli.status import status
from launch.cli.sweep import pbt
from launch.cli.sweep import sweep as sweep_command
from launch.config_loader import DEFAULT, PRESETS, load, preset_names, sentence
from launch.local import supervisor
from launch.run_dir import folder_for, left_as_found, make_folder, write_config
from protocol import RELEASE
from protocol.errors import one_sentence
from protocol.memory.shared_file import files, sweep
from protocol.simulator.connection import addresses_of, ended
from protocol.transport.curve import ROLES, connect_string, new_keys, revoke, run_keys
from protocol.transport.sockets import is_loopback

_SECTIONS = {
    "Train": ("train", "presets", "new", "env", "model", "import", "sweep", "pbt"),
    "Look at a run": ("status", "page", "plot", "evaluate", "watch", "doctor"),
    "Change a run": ("roster",),
    "Take from a run": ("export", "dataset"),
    "Several machines": ("hosts", "k8s", "keys"),
    "One worker of a run": ("coordinator", "learner", "actor", "relay", "evaluator", "hooks", "simulate", "bridge"),
    "This machine": ("bench", "clean"),
}
"""In which the commands are listed."""


class _Group(click.Group):
    """Every error of ours is one sentence and its own exit code."""

    def invoke(self, ctx: click.Context) -> object:
        with one_sentence():
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """By sections, with whole first sentences, in columns that begin at the same place."""
        width = max(map(len, self.commands))
        for section, names in _SECTIONS.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:{width}}", self.commands[name].get_short_help_str(200)) for name in names])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(RELEASE, prog_name="rookery")
def main() -> None:
    """Asynchronous multi-agent reinforcement learning by separate workers.

    \b
    rookery train                       the default run, on this machine
    rookery train cartpole --json       another preset, with its summary
    rookery presets                     what is ready-made
    """


_env = click.option(
    "--env", metavar="MODULE:FUNCTION", help="Another environment: your own, gymnasium:ID, pettingzoo:MODULE."
)


@main.command(cls=Configured)
@click.argument(
    "source", required=False, metavar="[PRESET or FILE.yaml or RUN-FOLDER]", shell_complete=presets_and_files
)
@_env
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
    if not outcome.summary:
        click.echo("rookery: the run ended before it could write a summary; see the logs in its folder", err=True)
        sys.exit(1)
    tell_summary(console, outcome.summary)
    console.print(f"run folder: {folder}", highlight=False)
    if not outcome.complete and (folder / "state.json").exists():
        again = shlex.join(["rookery", "train", str(folder)])
        console.print(f"to go on: {again}", highlight=False, markup=False, soft_wrap=True)
    if as_json:
        click.echo(json.dumps(outcome.summary, indent=2))
    sys.exit(0 if outcome.complete else 1)


@main.command()
@click.argument("name", required=False, type=Preset(), metavar="[NAME]")
def presets(name: str | None) -> None:
    """Lists the ready-made configurations, or prints one.

    \b
    rookery presets
    rookery presets cartpole > mine.yaml
    """
    if name:
        click.echo((PRESETS / f"{name}.yaml").read_text(), nl=False)
        return
    names = preset_names()
    width = max(map(len, names))
    for name in names:
        click.echo(f"{name:{width}} {sentence(name)}")


@main.command()
def clean() -> None:
    """Removes shared memory that dead processes left; what is in use stays."""
    for path in sweep():
        click.echo(f"removed {path}")
    for path in files():
        click.echo(f"kept    {path}: a living process uses it")


@main.command(cls=Configured)
@click.argument(
    "source", required=False, metavar="[PRESET or FILE.yaml or RUN-FOLDER]", shell_complete=presets_and_files
)
@_env
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--seconds", type=click.FloatRange(min=1), default=15.0, show_default=True, help="Of the short run.")
@click.option("--run-dir", type=click.Path(file_okay=False, path_type=Path), help="The short run's folder.")
@click.option("--preflight", "only", is_flag=True, help="Look at this machine only, and train nothing.")
@click.option("--bind", default="127.0.0.1:0", metavar="HOST:PORT", help="Where a coordinator would listen.")
@click.option("--keys", "key_folder", envvar="ROOKERY_KEYS", metavar="DIR", help="Keys that workers would use.")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@click.option("--bundle", type=click.Path(path_type=Path), metavar="FILE.zip", help="Write what a report needs.")
@click.option("--yes", is_flag=True, help="Write the bundle without asking.")
def doctor(
    source: str | None,
    env: str | None,
    settings: tuple[str, ...],
    seconds: float,
    run_dir: Path | None,
    only: bool,
    bind: str,
    key_folder: str | None,
    as_json: bool,
    bundle: Path | None,
    yes: bool,
) -> None:
    """Says whether this machine can carry a run, then which layer of learning fails first, and what to do: of a short
    run, or of one that is over.

    \b
    rookery doctor cartpole
    rookery doctor mine.yaml --set environment.copies=8 --preflight
    rookery doctor --env package.module:function
    rookery doctor runs/first --json
    rookery doctor runs/first --bundle report.zip
    """
    if bundle is not None:
        pack(Path(source or "").resolve(), bundle, yes)
        return
    logging.getLogger().addHandler(logging.NullHandler())
    folder, said = Path(source or DEFAULT).resolve(), []
    if not (folder / "config.yaml").is_file() and not (folder.is_dir() and source not in (None, *preset_names())):
        run = load(source, settings, env=env, seconds=seconds, restarts=0)
        folder = folder_for(run, source or env or "", run_dir, run.multiprocessing.enabled is False)
        code, findings = preflight(run, folder, bind, key_folder, as_json)
        said.append(findings)
        if code or only:
            click.echo(findings, nl=False)
            sys.exit(code)
        if not as_json:
            click.echo(findings, nl=False)
        short_run(run, folder, Silent(Console(stderr=True)))
    sys.stdout.flush()
    if not as_json:
        become("workers.tools.doctor", [str(folder)])
    code, findings = diagnosis(folder)
    merged = {key: value for text in (*said, findings) if text for key, value in json.loads(text).items()}
    click.echo(json.dumps(merged, indent=2))
    sys.exit(code)


@main.group()
def keys() -> None:
    """Keys with which workers on several machines know each other."""


@keys.command("new")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
def make_keys(folder: Path) -> None:
    """Makes a pair of keys for every role in DIR.

    \b
    rookery keys new keys
    rookery coordinator --keys keys --bind 0.0.0.0:5600
    rookery learner --keys keys --coordinator tcp://trainer:5600 --bind 0.0.0.0:5610 --advertise gpu-1

    A machine needs all *.public files and the *.secret files of the roles that run on it.
    """
    with one_sentence("another DIR"):
        for path in new_keys(folder):
            click.echo(f"wrote {path}")


@keys.command("revoke")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.argument("role", type=click.Choice(ROLES))
def revoke_keys(folder: Path, role: str) -> None:
    """Makes a new pair for ROLE in DIR, a folder of keys or of a run: whoever has the old one is hung up on and let in
    no more, in a living run either.

    Copy ROLE.public to each machine that has the keys. Of a run's own keys only the simulators' can be made anew.
    """
    with one_sentence("another DIR"):
        for path in revoke(folder, role):
            click.echo(f"wrote {path}")
        if role == "simulator" and not ended(folder):  # whoever has the strings that were told is outside now
            for address in addresses_of(folder):
                click.echo(f"simulators connect to {connect_string(address, folder)}")


def _hand_over(name: str, module: str, does: str) -> click.Command:
    """A command that becomes another executable."""

    @click.command(
        name=name,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []},
        help=f"{does}.",
    )
    @click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
    def run(arguments: tuple[str, ...]) -> None:
        become(module, arguments)

    return run


@main.command(cls=Configured)
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


main.add_command(new)
main.add_command(env)
main.add_command(model)
main.add_command(import_weights)
main.add_command(plot)
main.add_command(status)
main.add_command(roster)
main.add_command(hosts)
main.add_command(sweep_command)
main.add_command(pbt)
main.add_command(k8s)
for _name, (_module, _does) in BECOMES.items():
    main.add_command(_hand_over(_name, _module, _does))
