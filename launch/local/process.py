"""The processes of a run on this machine: started by command line, watched, started again, ended under a deadline."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from launch.local.fork_client import ForkClient, ForkedProcess
from launch.local.restart_budget import RestartBudget
from protocol.control.process_token import PROCESS_TOKEN, mark_of
from protocol.errors import DiskFault, EnvironmentFault
from protocol.errors.origin import Crash, crash_in, ended, stack_in, waiting

REFUSED = 3
INCOMPLETE = 9
"""Of a coordinator or a sequential run that ended in order before all steps were made."""
FATAL = {2, REFUSED, 5}
"""Exit codes after which starting the same command again cannot help."""
FATAL_AT_FIRST = {6}
"""The same, as long as the command has never worked: there was room before, and may be again."""
_MOST_LINES = 60
"""Of a traceback that is shown."""
_STACK_SECONDS, _LOOK_EVERY = 2.0, 0.1
"""In which one that is asked for it writes where it is, and from one look at that to the next."""
_SPEECHLESS = "it did not say why, as where a library or os._exit ends the process"
_GROUP = "  + Exception Group Traceback"
_CHAINED = ("During handling of the above", "The above exception was")


@dataclass(slots=True)
class Process:
    """One worker process and how often it was started."""

    role: str
    command: list[str]
    output: Path
    budget: RestartBudget
    pipe: bool = False
    """Whether its output is read; only its errors go to the file then."""
    forks: ForkClient | None = None
    """Who starts it, where that is not by command line."""
    popen: subprocess.Popen[str] | ForkedProcess = field(init=False)
    mark: str = ""
    """By which it is known in the coordinator's table."""
    again_at: float = 0.0
    done: bool = False
    fault: str = ""
    """Why its supervisor killed it."""
    _swept: bool = False
    """Whether nothing is left of its session."""
    _said_before: int = 0
    """Bytes in the file when it was started last."""
    _heard: int = 0
    """Bytes in the file that `new_waits` has looked at."""

    @property
    def code(self) -> int | None:
        """The exit code, None while it runs (negative: killed by that signal). What it has left in its session ends
        with it."""
        code = self.popen.poll()
        if code is not None and not self._swept:
            self._swept = True
            with suppress(ProcessLookupError, PermissionError):  # there is nothing, or what is there is another's
                os.killpg(self.popen.pid, signal.SIGKILL)
        return code

    def kill(self, fault: str) -> None:
        """Ends it at once, because of `fault`."""
        self.fault = fault
        self.popen.kill()
        self.popen.wait()

    def at(self) -> str:
        """Where it is now, as in ` in step (bad.py:27)`, though it may hold the interpreter; empty if unknown."""
        before, at, end = len(self._said()), "", time.monotonic() + _STACK_SECONDS
        self.popen.send_signal(signal.SIGUSR1)
        while not at and time.monotonic() < end:
            time.sleep(_LOOK_EVERY)
            at = stack_in("".join(f"{line}\n" for line in self._said()[before:]))
        return at

    def last_words(self, lines: int = 12) -> str:
        """The end of what it wrote since it was started last."""
        return "\n".join(self._said()[-lines:])

    def own_words(self) -> str:
        """The last line that it said itself since then, whatever a user's code wrote after it; empty without one."""
        mine = [line for line in self._said() if line.startswith(f"{self.role}: ")]
        return mine[-1].removeprefix(f"{self.role}: ") if mine else ""

    def why(self) -> str:
        """How it ended and why, in one line: the sentence that it said last, or what its exit code tells, and where it
        was. A line of its log that happens to be the last is no cause."""
        code, said, crash = self.code or 0, self.last_words(1), self.crash()
        if code < 0:
            at = crash.at if crash is not None else ""
            return f"was killed by signal {-code} ({signal.Signals(-code).name}){at}"
        how = f"ended with exit code {code}: "
        if code == DiskFault.exit_code and not said.endswith("]"):
            return how + DiskFault("output_not_writable", file=self.output).coded
        if said.startswith(f"{self.role}: "):
            return how + said.removeprefix(f"{self.role}: ")
        if crash is not None:
            return f"{how}{crash.what}{crash.at}"
        return how + (self.traceback().rpartition("\n")[2] or _SPEECHLESS)

    def new_waits(self) -> list[str]:
        """What it has said since this was asked last of code of the user that it waits for."""
        begins = waiting(self.role)
        with suppress(OSError), self.output.open("rb") as stream:
            stream.seek(max(self._heard, self._said_before))
            whole = stream.read().rpartition(b"\n")[0]
            self._heard = max(self._heard, self._said_before) + len(whole)
            lines = whole.decode(errors="replace").splitlines()
            return [line.removeprefix(begins) for line in lines if line.startswith(begins)]
        return []

    def in_order(self) -> bool:
        """Whether it said that its work was done, before it ended: a library can end it past Python, too."""
        return self.code in (0, INCOMPLETE) and any(line.endswith(ended(self.role)) for line in self._said())

    def crash(self) -> Crash | None:
        """How and where it ended without a word of its own, if so it did."""
        return crash_in("".join(f"{line}\n" for line in self._said()))

    def place(self) -> str:
        """Where it ended and of what, to know it by when it does so again; empty where that is unknown."""
        if (crash := self.crash()) is not None:
            return f"{crash.what}{crash.at}"
        trace = self.traceback().splitlines()
        frames = [line for line in trace if line.startswith("  File ")]
        if frames:
            return f"{frames[-1].strip()}: {trace[-1].partition(':')[0]}"
        return self.last_words(1).rpartition(" [")[2] if self.code == EnvironmentFault.exit_code else ""

    def traceback(self) -> str:
        """The last traceback that it wrote since then, with those that led to it; empty without one."""
        said = self._said()
        starts = [i for i, line in enumerate(said) if line.startswith(("Traceback (most recent", _GROUP))]
        first = [i for i in starts if i < 2 or not said[i - 2].startswith(_CHAINED)]
        if not first:
            return ""
        if said[first[-1]].startswith(_GROUP):
            return "\n".join([*takewhile(lambda line: line.startswith(" "), said[first[-1] :])][:_MOST_LINES])
        block: list[str] = []
        for line in said[first[-1] :]:
            told = bool(block) and bool(block[-1]) and not block[-1].startswith((" ", "Traceback", *_CHAINED))
            if told and line and not line.startswith(_CHAINED):  # behind the line that names the exception
                break
            block.append(line)
        return "\n".join(block[-_MOST_LINES:]).rstrip()

    def _said(self) -> list[str]:
        try:
            with self.output.open("rb") as stream:
                stream.seek(self._said_before)
                return stream.read().decode(errors="replace").splitlines()
        except OSError:
            return []


def python(*command: str) -> list[str]:
    """The command line of `python -m ...`. The working directory is not put in front of the packages (-P): workers add
    it at the end, so that a user's folder called like one of ours is never taken for it."""
    return [sys.executable, "-P", "-m", *command]


def start_process(
    role: str,
    command: Sequence[str],
    output: Path,
    restarts: int = 0,
    pipe: bool = False,
    forks: ForkClient | None = None,
) -> Process:
    """Starts `python -m ...`, which may be started again so often; its output goes to a file (with `pipe`, only its
    errors do)."""
    output.parent.mkdir(parents=True, exist_ok=True)
    process = Process(role, list(command), output, RestartBudget(restarts), pipe, forks)
    start(process)
    return process


def fork_client(output: Path, stopping: Callable[[], bool]) -> ForkClient | None:
    """One whose server begins to import at once; None where every worker is started by command line."""
    if sys.platform != "linux" or os.environ.get("ROOKERY_FORK") == "0":
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
        client = ForkClient(python("workers.fork_server"), output, stopping)
        client.start(_environment())
    except (AttributeError, OSError):  # an old kernel or Python, a sandbox
        return None
    return client


def start(process: Process) -> None:
    """Starts its command, for the first time or again."""
    token = secrets.token_hex(8)
    environment, process.mark = {**_environment(), PROCESS_TOKEN: token}, mark_of(token)
    with open(process.output, "a", opener=_private) as errors:
        process._said_before = errors.tell()
        forked = process.forks.fork(process.command, environment, errors, errors) if process.forks is not None else None
        process.popen = forked or subprocess.Popen(
            python(*process.command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if process.pipe else errors,
            stderr=errors,
            env=environment,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the supervisor alone, which ends the run in order
        )
    process.budget.began(time.monotonic())
    process.again_at, process.fault, process._swept = 0.0, "", False


def _private(path: str, flags: int) -> int:
    """What a run says holds the page's token, and connect strings."""
    return os.open(path, flags, 0o600)


def _environment() -> dict[str, str]:
    """Of a worker."""
    threads = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    given = {name: value for name, value in os.environ.items() if name != "ROOKERY_KEYS"}  # they are told theirs
    return {**dict.fromkeys(threads, "1"), **given, "ROOKERY_PARENT": str(os.getpid())}


def end_all(processes: Sequence[Process], seconds: float) -> None:
    """SIGTERM to all that still run, SIGKILL to those that do not end within `seconds`."""
    for process in processes:
        if process.code is None:
            process.popen.send_signal(signal.SIGTERM)
    end = time.monotonic() + seconds
    for process in processes:
        while process.code is None:  # asked so, it also ends what such a process has left
            try:
                process.popen.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.popen.kill()
                process.popen.wait()
