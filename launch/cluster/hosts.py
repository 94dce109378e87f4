"""`rookery hosts`: a run on a handful of machines by ssh, or as a batch of Slurm, from one plan."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import click
import yaml
from rich.console import Console

from launch.cli.display import Display, Plain, Silent, tell_summary
from launch.cluster.plan import Command, Hosts, as_plain, plan, read_hosts
from launch.cluster.remote_view import RemoteView
from launch.cluster.slurm import batch
from launch.cluster.ssh import LOST, HostFailed, Remote, copies, end_all, ssh
from launch.config_loader import load
from launch.local.process import FATAL
from launch.run_dir import held
from launch.run_plan import outline_of
from protocol.config.run import Run
from protocol.errors import ConfigurationError
from protocol.transport.curve import Keys

_LOOK_EVERY = 0.2
_STATE = "hosts.json"
"""In the folder of logs: who holds the workers, and what they are; locked as long as they are held."""
_GRACE = 5.0
"""Seconds for the network, beyond those that workers have to end."""
_LOST_PAUSE = 10.0
"""Seconds from the end of a connection to the next: the worker behind it has to notice, and to end."""


@click.group()
def hosts() -> None:
    """Runs on several machines, which a YAML file names."""


_file = click.argument("file", metavar="HOSTS.yaml", type=click.Path(dir_okay=False, path_type=Path))


_logs = click.option(
    "--logs",
    default="logs",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Of the workers.",
)


@hosts.command()
@_file
@click.option("--dry-run", is_flag=True, help="Print every command instead of running it.")
@click.option("--json", "as_json", is_flag=True, help="With --dry-run: the plan as JSON.")
@_logs
def up(file: Path, dry_run: bool, as_json: bool, logs: Path) -> None:
    """Copies keys, starts all workers by ssh, keeps them alive, ends them with the run or with Ctrl-C.

    \b
    rookery keys new keys
    rookery hosts up hosts.yaml
    """
    read, run, commands = _plan(file)
    if as_json:
        click.echo(json.dumps(as_plain(commands), indent=2))
    elif dry_run:
        for words in [*copies(read, commands, Path("run.yaml")), *(ssh(read, c.host, c.line) for c in commands)]:
            click.echo(shlex.join(words))
    else:
        _check_keys(read, commands)
        sys.exit(_Session(read, run, commands, logs).go())


@hosts.command()
@_file
@_logs
def down(file: Path, logs: Path) -> None:
    """Tells the `up` that runs with these logs to end, and waits for it."""
    read_hosts(file)
    pid = _living(logs)
    if pid is None:
        raise ConfigurationError("hosts_not_running", file=logs)
    os.kill(pid, signal.SIGTERM)
    while _living(logs) is not None:
        time.sleep(_LOOK_EVERY)
    click.echo("all have ended")


@hosts.command()
@_file
@_logs
def status(file: Path, logs: Path) -> None:
    """Every worker, its host, whether it runs, how often it was started again. For the run: `rookery status`."""
    read_hosts(file)
    if not (logs / _STATE).is_file():
        raise ConfigurationError("hosts_never_started", file=logs)
    held = _living(logs) is not None
    for worker in json.loads((logs / _STATE).read_text())["workers"]:
        runs = (
            "runs" if held and worker["code"] is None else f"ended with {worker['code']}" if held else "was let go of"
        )
        click.echo(f"{worker['name']:24} {worker['host']:16} {runs:16} restarts {worker['restarts']}")


def _living(logs: Path) -> int | None:
    """The process of the `up` that holds these logs; None if none does."""
    return int(json.loads((logs / _STATE).read_text())["pid"]) if held(logs / _STATE) else None


@hosts.command()
@_file
@click.option("--seeds", default="", metavar="LIST", help="An array of jobs, a run for each seed: 0-4, or 1,5,9%2.")
def slurm(file: Path, seeds: str) -> None:
    """Prints a batch script: one job, one step of `srun` for each worker. The nodes take the places of the hosts.

    \b
    rookery hosts slurm hosts.yaml > run.sbatch && sbatch run.sbatch
    """
    if seeds and not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*(%[1-9]\d*)?", seeds):
        raise ConfigurationError("seeds_not_list", value=seeds, key="--seeds")
    read = read_hosts(file)
    run = load(read.run, read.set)
    click.echo(batch(read, run, outline_of(run), seeds), nl=False)


def _plan(file: Path) -> tuple[Hosts, Run, list[Command]]:
    read = read_hosts(file)
    run = load(read.run, read.set)
    return read, run, plan(read, run, outline_of(run))


def _check_keys(read: Hosts, commands: Sequence[Command]) -> None:
    """ConfigurationError where a role of the plan lacks what it needs: before it is copied, and anything is started."""
    folder = Path(read.keys)
    if not any(folder.glob("*.secret")):
        raise ConfigurationError("keys_missing", file=read.keys)
    for role in dict.fromkeys(command.role for command in commands):
        Keys.load(folder, role)


class _Session:
    """One `up`: from copying keys to the end of the run."""

    def __init__(self, read: Hosts, run: Run, commands: list[Command], logs: Path) -> None:
        self._hosts, self._run, self._commands, self._logs = read, run, commands, logs
        self._remotes: list[Remote] = []
        self._console = Console(stderr=True)
        self._display: Silent = Display(self._console) if self._console.is_terminal else Plain(self._console)
        self._view = RemoteView(read, logs / "status.out")
        self._page = ""
        self._stopped = threading.Event()

    def go(self) -> int:
        """The coordinator's exit code; raises HostFailed where a host or a worker cannot be kept."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: self._stopped.set())
        seconds = max(self._run.actor_timeout, self._run.learner_timeout)
        if _living(self._logs) is not None:
            raise ConfigurationError("hosts_logs_in_use", file=self._logs)
        self._logs.mkdir(parents=True, exist_ok=True)
        (self._logs / _STATE).touch()
        with (self._logs / _STATE).open("r+") as state:
            fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._hold(seconds, state)

    def _hold(self, seconds: float, state: TextIO) -> int:
        try:
            self._tell(state)  # before what takes long: `down` believes what it reads here
            self._copy()
            for command in self._commands:
                self._remotes.append(Remote(self._hosts, command, self._logs, 2 * seconds, self._run.restarts))
                self._display.tell(f"started {command.name} on {command.host}")
            self._tell(state)
            coordinator = self._remotes[0]
            with self._display:
                while coordinator.code is None and not self._stopped.wait(_LOOK_EVERY):
                    self._show()
                    news = [self._look_after(remote) for remote in self._remotes[1:]]
                    if any(news):
                        self._tell(state)
        finally:
            self._view.close()
            for name in end_all(self._remotes, 2 * seconds + _GRACE):
                self._display.tell(f"let go of {name}: it did not end in time")
            self._tell(state)
        if summary := self._view.summary():
            tell_summary(self._console, summary)
        if coordinator.code or not summary:
            self._display.tell(f"the coordinator said: {coordinator.last_words(1)}")
        self._display.tell(f"run folder: {self._view.folder}")
        return coordinator.code or 0

    def _show(self) -> None:
        """What the run is at, and where its page is, once that is known."""
        view = self._view.newest()
        if view is None:
            return
        if self._view.page != self._page:
            self._page = self._view.page
            self._display.tell(f"the run's page: {self._page}")
        if "made" in view:
            self._display.show(view)

    def _copy(self) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            config = Path(scratch) / "run.yaml"
            config.write_text(yaml.safe_dump(self._run.model_dump(mode="json"), sort_keys=False))
            for words in copies(self._hosts, self._commands, config):
                ended = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
                if ended.returncode:
                    raise HostFailed(
                        "host_copy_failed", command=shlex.join(words), reason=" ".join(ended.stderr.split())
                    )

    def _tell(self, state: TextIO) -> None:
        """Those who ask, of every worker."""
        workers = [
            {"name": r.command.name, "host": r.command.host, "code": r.code, "restarts": r.budget.again}
            for r in self._remotes
        ]
        text = json.dumps({"pid": os.getpid(), "workers": workers})
        state.seek(0)
        state.write(text.ljust(os.fstat(state.fileno()).st_size))  # in one piece: who reads just now finds it whole
        state.flush()

    def _look_after(self, remote: Remote) -> bool:
        """Starts it again if it has died, after a pause and within its budget; whether there is news of it."""
        now, code, name = time.monotonic(), remote.code, remote.command.name
        if code is None or remote.done_without or (code == 0 and remote.in_order()):
            return False
        if remote.again_at:
            if now < remote.again_at:
                return False
            remote.start()
            return True
        remote.lost = code == LOST or (remote.lost and code in FATAL)
        pause = None if code in FATAL and not remote.lost else remote.budget.died(now)
        if pause is None and remote.command.role == "relay":  # a way around, no part of the run
            remote.done_without = True
            self._display.tell(f"{name} on {remote.command.host}: {remote.last_words(1)}; the run goes on without it")
            return True
        if pause is None:
            raise HostFailed("remote_worker_lost", peer=name, status=code, reason=remote.last_words())
        remote.again_at = now + max(pause, _LOST_PAUSE if remote.lost else 0.0)
        self._display.tell(f"{name} on {remote.command.host} ended with code {code}; starting it again")
        return True
