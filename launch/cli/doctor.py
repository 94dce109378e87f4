"""What `rookery doctor` looks at: this machine before a run, and a short run, the same workers as in any other.

In flow: a configuration. Out flow: findings, the run's folder, whatever became of the run. What needs torch or an
environment is looked at by processes of its own.
"""

from __future__ import annotations

import signal
import subprocess
import tempfile
from pathlib import Path

from launch.cli.display import Silent
from launch.local import supervisor
from launch.local.process import python
from launch.run_dir import write_config
from protocol.config.run import Run
from protocol.errors import EnvironmentFault


def preflight(run: Run, folder: Path, bind: str, keys: str | None, as_json: bool) -> tuple[int, str]:
    """Whether this machine can carry `run` in `folder`: an exit code, and the findings."""
    with tempfile.TemporaryDirectory() as scratch:
        config = write_config(run, Path(scratch))
        options = ["--run-dir", str(folder), "--bind", bind, *(["--keys", keys] if keys else [])]
        return _said(python("workers.tools.preflight", str(config), *options, *(["--json"] if as_json else [])))


def diagnosis(folder: Path) -> tuple[int, str]:
    """Which layer of learning fails in the run of `folder`: an exit code, and the findings as JSON."""
    return _said(python("workers.tools.doctor", str(folder), "--json"))


def _said(command: list[str]) -> tuple[int, str]:
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if ended.returncode < 0:
        raise EnvironmentFault("check_crashed", reason=signal.Signals(-ended.returncode).name)
    return ended.returncode, ended.stdout


def short_run(run: Run, folder: Path, display: Silent) -> None:
    """Trains `run` in `folder`; a worker that cannot be kept alive is told, and is a finding like any other.
    ConfigurationError if nothing could begin."""
    how = supervisor.train_sequential if run.multiprocessing.enabled is False else supervisor.train
    with display:
        try:
            how(run, folder, lambda _view: None, display.tell)
        except supervisor.RunFailed as fault:
            display.tell(fault.coded)
