"""`rookery doctor` looks at this machine before a run, and at a short run, the same workers as in any other;
`rookery model` at the networks of a run before it starts, `rookery env` at an environment; `rookery clean` tidies up.

In flow: a configuration. Out flow: findings, the run's folder, whatever became of the run. What needs torch or an
environment is looked at by processes of its own.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console

from launch.cli.display import Silent
from launch.cli.exec import become
from launch.cli.options import Configured, own_environment, presets_and_files
from launch.config_loader import DEFAULT, load
from launch.local import supervisor
from launch.local.bundle import collected, write
from launch.local.process import python
from launch.presets import preset_names
from launch.run_dir import folder_for, write_config
from protocol.config.run import Run
from protocol.errors import EnvironmentFault
from protocol.memory.shared_file import files, sweep


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
@own_environment
@click.option("--set", "settings", multiple=True, metavar="a.b=c", help="Change one key; may be repeated.")
@click.option("--json", is_flag=True, help="Print it as JSON.")
@click.option("--picture", is_flag=True, help="Draw it instead, as Mermaid, which GitHub and editors show.")
@click.option("--graph", is_flag=True, help="Instead try to export it, as for actors in other languages.")
@click.pass_context
def model(ctx: click.Context, source: str | None, env: str | None, settings: tuple[str, ...], **flags: bool) -> None:
    """Says what each policy's network is made of, and what a row costs.

    It shows which part of an observation goes where, shapes and parameters.

    \b
    rookery model mine.yaml
    rookery model cartpole --set policy.network.core=lstm
    """
    options = [f"--{name}" for name, given in flags.items() if given]
    if len(options) > 1:
        raise click.UsageError(f"{options[0]} and {options[1]} print different things; give one of them.")
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


@click.command(cls=Configured)
@click.argument(
    "source", required=False, metavar="[PRESET or FILE.yaml or RUN-FOLDER]", shell_complete=presets_and_files
)
@own_environment
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
    """Says whether this machine can carry a run, which layer of learning fails first, and what to do.

    It looks at a short run, or at one that is over.

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


@click.command()
def clean() -> None:
    """Removes shared memory that dead processes left; what is in use stays."""
    for path in sweep():
        click.echo(f"removed {path}")
    for path in files():
        click.echo(f"kept    {path}: a living process uses it")
