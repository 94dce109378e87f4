"""The processes of a run on this machine: started by command line, watched, ended under a deadline."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import ConfigurationError

__all__ = ["FATAL", "INCOMPLETE", "REFUSED", "Process", "end_all", "python", "start"]

REFUSED = 3
INCOMPLETE = 9
"""Of a coordinator or a sequential run that ended in order before all steps were made."""
FATAL = {2, REFUSED, 5, 6}
"""Exit codes after which starting the same command again cannot help."""


@dataclass(slots=True)
class Process:
    """One worker process and how often it was started."""

    role: str
    command: list[str]
    output: Path
    popen: subprocess.Popen[str]
    restarts: int = 0
    again_at: float = 0.0
    done: bool = False
    fault: str = ""
    """Why its supervisor killed it."""
    lines: list[str] = field(default_factory=list)

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs (negative: killed by that signal)."""
        return self.popen.poll()

    def last_words(self, lines: int = 12) -> str:
        """The end of what it wrote."""
        try:
            return "\n".join(self.output.read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return ""


def python(*command: str) -> list[str]:
    """The command line of `python -m ...`. The working directory is not put in front of the packages (-P): workers add
    it at the end, so that a user's folder called like one of ours is never taken for it.

    Raises ConfigurationError if another package of that name is installed.
    """
    home = Path(__file__).resolve().parent.parent
    for name in ("protocol", "workers"):
        found = importlib.util.find_spec(name)
        places = list(found.submodule_search_locations or ()) if found is not None else []
        if not places or Path(places[0]).resolve().parent != home:
            raise ConfigurationError(
                f"the package {name!r} that Python finds is {places[0] if places else 'missing'}, not Rookery's in "
                f"{home}; uninstall the other one or use a virtual environment of its own"
            )
    return [sys.executable, "-P", "-m", *command]


def start(role: str, command: Sequence[str], output: Path, pipe: bool = False) -> Process:
    """Starts `python -m ...`; its output goes to a file (with `pipe`, only its errors do)."""
    output.parent.mkdir(parents=True, exist_ok=True)
    threads = {
        name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    }
    environment = {**os.environ, **threads, "ROOKERY_PARENT": str(os.getpid())}
    with output.open("a") as errors:
        popen = subprocess.Popen(
            python(*command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipe else errors,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends the run in order
        )
    return Process(role, list(command), output, popen)


def end_all(processes: Sequence[Process], seconds: float) -> None:
    """SIGTERM to all that still run, SIGKILL to those that do not end within `seconds`."""
    for process in processes:
        if process.code is None:
            process.popen.send_signal(signal.SIGTERM)
    end = time.monotonic() + seconds
    for process in processes:
        try:
            process.popen.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.popen.kill()
            process.popen.wait()
