"""What all workers share: the command line, signals, logs, the coordinator's leave and the exit code.

A worker is a function that gets a `WorkerProcess`; whatever it raises ends up here, is told in one sentence (a
traceback for what nobody foresaw), is reported to the coordinator and becomes the exit code.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click
import yaml
import zmq

from protocol.config.run import Run
from protocol.config.yaml_file import Change, going_on
from protocol.control.client import ControlClient
from protocol.control.heartbeat import Report
from protocol.errors import ConfigurationError, RookeryError
from protocol.memory.shared_file import sweep
from protocol.messages.core import Role, Welcome
from protocol.transport.node_id import node_name
from protocol.transport.ports import HTTP
from protocol.transport.sockets import Ports, check_bind, open_context, refusals_of
from workers.runtime.entry_points import add_cwd_to_path
from workers.runtime.files import sync
from workers.runtime.health import Health, Usage
from workers.runtime.http_server import HttpServer
from workers.runtime.last_words import kill_children, leave, tell_end, tell_failure, watch_user_code
from workers.runtime.logs import configure_logging
from workers.runtime.metric_names import Identity
from workers.runtime.watchdog import install_stack_dump_signal, return_or_go_on, run_watchdog

log = logging.getLogger(__name__)

INCOMPLETE = 9
"""Exit code of a run that ended in order before all its steps were made."""
_KEYS_SECONDS = 10.0
_ORPHAN_SECONDS = 20.0
"""How long a worker without a supervisor may take to end."""
_CLEANUP_SCRIPT = """
import os, sys, time
from protocol.memory.shared_file import sweep
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.05)
sweep(sys.argv[2])
"""


class StopRequested(Exception):
    """Raised inside a wait when the worker has to end."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a worker is started with; everything else it is told at joining."""

    coordinator: str
    name: str
    bind: str
    advertise: str
    insecure: bool
    patience: float
    keys: str = ""
    node: str = ""
    resident: bool = False

    @property
    def host_and_base(self) -> tuple[str, int]:
        """The host to bind and the first port of the block (0: a free one)."""
        host, _, port = self.bind.rpartition(":")
        if not host:
            host, port = self.bind, "0"
        if not port.isdigit() or int(port) > 65_535:
            raise ConfigurationError("bind_not_host_port", value=self.bind)
        return host, int(port)


@dataclass(slots=True)
class WorkerProcess:
    """A running worker: its context, options, and the order to stop."""

    role: str
    options: Options
    context: zmq.Context[zmq.Socket[bytes]] = field(default_factory=lambda: zmq.Context(1))
    stopping: threading.Event = field(default_factory=threading.Event)
    client: ControlClient | None = None
    vitals: Health = field(default_factory=Health)
    orders: Callable[[], dict[str, float]] = dict
    """What hooks ask of the run, for heartbeats."""
    _here: str = field(default_factory=os.getcwd)
    _http: HttpServer | None = None
    _run: str = ""
    _signal: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def join(self, role: Role) -> tuple[Welcome, Run]:
        """Becomes a member, waiting for the coordinator as long as `--patience` says; heartbeats begin at once. What it
        is told, and of that the run's configuration; from now on logs lie in the run's folder."""
        options = self.options
        self.client = ControlClient(self.context, options.coordinator, role, options.name, node_name(options.node))
        self.vitals.client = self.client
        welcome = self.client.join(options.patience)
        self._run = welcome.run
        self.vitals.identity = Identity(welcome.run, self.role, welcome.name, welcome.incarnation)
        self.client.start(Report)  # a world, a device, a dataset may take longer to open than a lease lasts
        threading.Thread(target=self._end_orphan, name="orphan", daemon=True).start()
        run = Run.model_validate_json(welcome.config)
        configure_logging(welcome.name if role == self.role else self.role, run, run_dir_of(welcome))
        log.info("event=joined run=%s name=%s incarnation=%d", welcome.run, welcome.name, welcome.incarnation)
        return welcome, run

    def report(self, snapshot: Callable[[], Report]) -> None:
        """From now on heartbeats tell that, and what this process takes."""
        usage = Usage()

        def told() -> Report:
            found = snapshot()
            found.metrics.update(usage.look(found.counters) | self.orders())
            return found

        assert self.client is not None
        self.client.start(told)

    def watch(self, seconds: float) -> None:
        """From now on a loop that makes no turn for so long ends this process, with its stacks on stderr."""
        arguments = (self.vitals, seconds, self._ended, self._say_farewell)
        threading.Thread(target=run_watchdog, args=arguments, name="watchdog", daemon=True).start()

    def _say_farewell(self, error: str) -> None:
        if self.client is not None:
            self.client.leave(error, 2.0)

    @property
    def must_stop(self) -> bool:
        """Whether a signal or the coordinator said stop."""
        return self.stopping.is_set() or (self.client is not None and self.client.command == "stop")

    @property
    def renewable(self) -> bool:
        """Whether, its work done, it is to look for more, because a scheduler keeps it and nobody said stop."""
        return self.options.resident and not self._signal and not self.orphaned

    @property
    def orphaned(self) -> bool:
        """Whether the process that started this worker is gone."""
        return self.client is not None and self.client.orphaned

    def check(self) -> None:
        """Raises Stop when the worker must end; for waits."""
        if self.must_stop:
            raise StopRequested

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Only takes note: the loop ends at its next turn, in order."""
        self._signal = number
        self.stopping.set()

    def run(self, body: Callable[[WorkerProcess], None]) -> int:
        """Runs `body`; returns the exit code: 128 + the signal's number where a signal ended it."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        raised: BaseException | None = None
        try:
            self._tell()
            body(self)
        except Exception as fault:
            raised = fault
        finally:
            code = self._end_body(raised)
        return code

    def close_world(self, close: Callable[[], object]) -> None:
        """Closes what the user's code has made, at the end of the body. Where that hangs this process ends as it would
        have without it."""
        raised = sys.exc_info()[1]

        def go_on() -> NoReturn:
            code = self._end_body(raised)
            self.say_end(code)
            leave(code)

        return_or_go_on(self.role, close, go_on)

    def say_end(self, code: int) -> None:
        """The last thing that a process does which ends with `code`, unless it begins again."""
        if code == 0 and self.renewable:  # without a restart that the scheduler would count, and delay ever longer
            kill_children()
            os.chdir(self._here)  # the user's code may have changed it
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        if code == 0:
            tell_end(self.role)

    def _end_body(self, raised: BaseException | None) -> int:
        """Says what ended it, and farewell; the exit code."""
        error, code = "", 0
        if isinstance(raised, StopRequested):
            log.info("event=stopped role=%s", self.role)
        elif isinstance(raised, Exception):
            error, code = tell_failure(self.role, raised)
        self._leave(error)
        return code or (128 + self._signal if self._signal else 0)

    def _tell(self) -> None:
        """Answers, from before it joins, whether it is well."""
        host, base = self.options.host_and_base
        check_bind(host, self.options.keys, self.options.insecure)
        self.vitals.identity = Identity(role=self.role)
        ports = Ports(self.context, host, base, self.options.advertise)
        address = ports.bind({}, http=True)[HTTP]
        assert ports.http is not None
        self._http = HttpServer(ports.http, self.vitals.routes(), self.vitals.refusals)
        log.info("event=http address=%s", address)

    def _leave(self, error: str) -> None:
        """Says farewell; a coordinator that is just coming back hears it too. After an orphan nobody else clears up."""
        if self.client is not None:
            self.client.leave(error, 1.0 if self.orphaned else 5.0)
            self.client.close()
            if self.orphaned and self._run:
                sweep(self._run)
        if self._http is not None:
            self._http.close()
        self.context.destroy(linger=0)
        self._ended.set()

    def _end_orphan(self) -> None:
        """Ends this process if it has lost its supervisor and hangs (in a world's step, say): nobody else would."""
        client = self.client
        while client is not None and not client.orphaned:
            if self._ended.wait(1.0):
                return
        if not self._ended.wait(_ORPHAN_SECONDS):
            log.error("event=killed_itself reason=no supervisor, and still running after %g s", _ORPHAN_SECONDS)
            heir = [sys.executable, "-P", "-c", _CLEANUP_SCRIPT, str(os.getpid()), self._run]
            subprocess.Popen(heir, stdin=subprocess.DEVNULL, start_new_session=True)  # holds none of our memory
            os.kill(os.getpid(), signal.SIGKILL)


def lock_run_folder(run: Run, folder: Path) -> int:
    """Makes `folder` this process's alone until it ends, and writes `run`'s configuration into it where nothing has
    begun there; returns the lock.

    Raises ConfigurationError if another run uses it, or if it holds the state of one that cannot go on as `run`.
    """
    if not Path(os.path.normpath(folder / run.log_dir)).is_relative_to(folder):
        raise ConfigurationError("log_folder_outside_run", value=run.log_dir, key="log_dir")
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _keep_history(folder)
        if going_on(run, folder)[1] is None:
            keep_config(run, folder)
    except BlockingIOError:
        os.close(lock)
        raise ConfigurationError("folder_in_use", file=folder) from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def keep_config(run: Run, folder: Path, changes: Sequence[Change] = (), agent_steps: int = 0) -> None:
    """Writes `run`'s configuration into `folder`; what `changes` there from so many agent steps on is told in its
    history, and a run that had reached its end has not any more."""
    config, text = folder / "config.yaml", yaml.safe_dump(run.model_dump(mode="json"), sort_keys=False)
    if config.exists() and config.read_text() == text:  # one that returns needs no room on a full disk
        return
    aside = folder / ".config.yaml"
    aside.write_text(text)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    lines = [json.dumps({"time": now, "agent_steps": agent_steps, **asdict(one)}) + "\n" for one in changes]
    if lines:
        history, whole = folder / "history.jsonl", folder / ".history.jsonl"
        whole.write_text((history.read_text() if history.exists() else "") + "".join(lines))
        sync(whole)  # commands stand there too, and outlast the machine
        (folder / "summary.json").unlink(missing_ok=True)
    aside.rename(config)
    (folder / "config.new.yaml").unlink(missing_ok=True)
    _keep_history(folder)


def _keep_history(folder: Path) -> None:
    """Puts the history in place that tells of a change, once the configuration has it; of one that never came to be,
    as who made it died, nothing is told."""
    whole = folder / ".history.jsonl"
    if (folder / ".config.yaml").exists():
        whole.unlink(missing_ok=True)
    elif whole.exists():
        whole.rename(folder / "history.jsonl")
        sync(folder)


def run_dir_of(welcome: Welcome) -> Path | None:
    """The run's folder if it can be seen from here: it holds a file with the run's identity."""
    if not welcome.run_dir:
        return None
    marker = Path(welcome.run_dir) / "run_id"
    try:
        return Path(welcome.run_dir) if marker.read_text().strip() == welcome.run else None
    except OSError:
        return None


def _context(options: Options, role: str) -> zmq.Context[zmq.Socket[bytes]]:
    """With the keys of a run that may be about to make them: workers may be started in any order."""
    end, told = time.monotonic() + min(options.patience, _KEYS_SECONDS), False
    while True:
        try:
            return open_context(options.keys, role)
        except ConfigurationError as fault:
            if fault.kind != "key_file_unreadable" or time.monotonic() >= end:
                raise
            if not told:
                log.info("event=waiting for=keys folder=%s", options.keys)
            told = True
            time.sleep(0.1)


def worker_command(role: str, body: Callable[[WorkerProcess], None], keys: str = "") -> click.Command:
    """The command line of a worker, which has the `keys` of another role where it joins as one."""

    @click.command(
        name=role,
        help=f"One {role}. Everything but the coordinator's address it is told at joining.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    @click.option("--coordinator", envvar="ROOKERY_COORDINATOR", required=True, metavar="tcp://HOST:PORT")
    @click.option("--name", default="", help="Identity to claim; the coordinator chooses one otherwise.")
    @click.option("--bind", default="127.0.0.1:0", show_default=True, metavar="HOST:PORT", help="First of its ports.")
    @click.option("--advertise", default="", metavar="HOST", help="Address that others reach it at, if another.")
    @click.option(
        "--insecure", is_flag=True, help="Allow sockets that other machines can reach without authentication."
    )
    @click.option(
        "--keys",
        envvar="ROOKERY_KEYS",
        default="",
        metavar="DIR",
        help="Keys, as `rookery keys new` makes, or of the run in DIR.",
    )
    @click.option("--node", envvar="ROOKERY_NODE", default="", metavar="NAME", help="Who shares memory has one name.")
    @click.option(
        "--resident",
        envvar="ROOKERY_RESIDENT",
        is_flag=True,
        help="When its work is done, ask for more: for schedulers.",
    )
    @click.option("--patience", default=60.0, show_default=True, help="Seconds to wait for the coordinator.")
    def command(**options: object) -> None:
        add_cwd_to_path()
        watch_user_code()
        configure_logging(role)
        install_stack_dump_signal()
        given = Options(**options)  # type: ignore[arg-type]
        try:
            context = _context(given, keys or role)
            life = WorkerProcess(role, given, context, vitals=Health(refusals=refusals_of(context)))
        except RookeryError as fault:
            sys.exit(tell_failure(role, fault)[1])
        code = life.run(body)
        life.say_end(code)
        sys.exit(code)

    return command
