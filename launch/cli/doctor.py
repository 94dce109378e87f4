"""What `rookery doctor` looks at: this machine before a run, and a short run, the same workers as in any other; and
`rookery model`, the networks of a run before it starts.

In flow: a configuration. Out flow: findings, the run's folder, whatever became of the run. What needs torch or an
environment is looked at by processes of its own.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from launch.cli.display import Silent
from launch.cli.options import Configured, presets_and_files
from launch.config_loader import load
from launch.local import supervisor
from launch.local.bundle import collected, write
from launch.local.process import python
from launch.run_dir import write_config
from protocol.config.run import Run
from protocol.errors import EnvironmentFault


def preflight(run: Run, folder: Path, bind: str, keys: str | None, as_json: bool) -> tuple[int, str]:
    """Whether this machine can carry `run` in `folder`: an exit code, and the findings."""
    with tempfile.TemporaryDirectory() as scratch:
        config = write_config(run, Path(scratch))
        options = ["--run-dir", str(folder), "--bind", bind, *(["--keys", keys] if keys else [])]
        return said_by("workers.tools.preflight", str(config), *options, *(["--json"] if as_json else []))


def diagnosis(folder: Path, as_json: bool = True) -> tuple[int, str]:
    """Which layer of learning fails in the run of `folder`: an exit code, and the findings."""
    return said_by("workers.tools.doctor", str(folder), *(["--json"] if as_json else []))


def said_by(module: str, *arguments: str) -> tuple[int, str]:
    """The exit code of a tool of the workers', and what it printed."""
    ended = subprocess.run(python(module, *arguments), stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode < 0:
        raise EnvironmentFault("check_crashed", reason=signal.Signals(-ended.returncode).name)
    return ended.returncode, ended.stdout


def pack(folder: Path, target: Path, sure: bool) -> None:
    """Writes the bundle of the run in `folder` to `target`, once what goes in was shown and the user is `sure`, or says
    so."""
    files = collected(folder, lambda: diagnosis(folder, as_json=False)[1])
    for name, text in files.items():
        click.echo(f"{len(text):>9,}  {name}")
    if sure or click.confirm(f"write these to {target}?"):
        click.echo(f"wrote {write(files, target):,} bytes to {target}; read them before you send them")


def short_run(run: Run, folder: Path, display: Silent) -> None:
    """Trains `run` in `folder`; a worker that cannot be kept alive is told, and is a finding like any other.
    ConfigurationError if nothing could begin."""
    how = supervisor.train_sequential if run.multiprocessing.enabled is False else supervisor.train
    with display:
        try:
            how(run, folder, lambda _view: None, display.tell)
        except supervisor.RunFailed as fault:
            display.tell(fault.coded)


@click.command(cls=Configured)
@click.argument("source", required=False, metavar="[PRESET or FILE.yaml]", shell_complete=presets_and_files)
@click.option(
    "--env", metavar="MODULE:FUNCTION", help="Another environment: your own, gymnasium:ID, pettingzoo:MODULE."
)
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--json", is_flag=True, help="Print it as JSON.")
@click.option("--picture", is_flag=True, help="Draw it instead, as Mermaid, which GitHub and editors show.")
@click.option("--graph", is_flag=True, help="Instead try to export it, as for actors in other languages.")
@click.pass_context
def model(ctx: click.Context, source: str | None, env: str | None, settings: tuple[str, ...], **flags: bool) -> None:
    """Says what each policy's network is made of: which part of an observation goes where, shapes, parameters, and
    what a row costs.

    \b
    rookery model mine.yaml
    rookery model cartpole --set policy.network.core=lstm
    """
    options = [f"--{name}" for name, given in flags.items() if given]
    with tempfile.TemporaryDirectory() as scratch:
        config = write_config(load(source, settings, env=env), Path(scratch))
        code, told = said_by("workers.tools.model", str(config), *options)
    click.echo(told, nl=False)
    ctx.exit(code)


@click.command(cls=Configured)
@click.argument("id", metavar="ID")
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--seconds", type=float, default=2.0, show_default=True, help="That each of three measurements takes.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="A film of it: .gif or .mp4.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@click.pass_context
def env(
    ctx: click.Context, id: str, settings: tuple[str, ...], seconds: float, out: Path | None, as_json: bool
) -> None:
    """Says what an environment is, how fast it steps, what is suspicious in it, and how to begin with it.

    \b
    rookery env gymnasium:CartPole-v1
    rookery env mine:Bandit --set environment.settings.arms=5 -o bandit.gif
    """
    options = ["--seconds", str(seconds), *(["--out", str(out)] if out else []), *(["--json"] if as_json else [])]
    options += ["--picture"] if sys.stdout.isatty() and not as_json else []
    with tempfile.TemporaryDirectory() as scratch:
        config = write_config(load(None, settings, env=id), Path(scratch))
        code, told = said_by("workers.tools.environment", str(config), *options)
    click.echo(told, nl=False)
    ctx.exit(code)
