"""Commands of a test without what each would import: `rookery` and all of its processes are forked, as a run's workers
are by the fork server, from a process that has imported for all of them. `python -m tests.forge SOCKET` is that one.

What a launcher starts by command line in earnest, its coordinator and its fork server, comes from the same process;
what runs is the same code from the parsed command line on. Where the test changes a variable that is read at import,
or wants it so by ROOKERY_FORK=0, the command is started by command line.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import socket
import struct
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingUnixStreamServer
from types import ModuleType, SimpleNamespace
from typing import IO, Any
from unittest.mock import patch

from launch.cli import doctor, import_weights, train
from launch.cli import main as command_line
from launch.local import fork_client, process, supervisor
from launch.local.fork_client import ForkClient, ForkedProcess
from tests.flows.network import Place
from tests.tools import PYTHON_PATH, require
from workers.environments import process_main
from workers.environments.vectorized import process_handle
from workers.runtime.last_words import run_to_end

__all__ = ["Forge", "forging", "program", "stepping"]

PROGRAM = """\
import json, os, signal, socket, sys

with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
    door.connect({address!r})
    request = json.dumps([{module!r}, sys.argv[1:], os.getcwd(), dict(os.environ)])
    socket.send_fds(door, [request.encode()], [1, 2])
    answer = door.recv(16).decode() or "1"
if answer == "-":
    os.execv({command[0]!r}, [*{command!r}, *sys.argv[1:]])
if int(answer) < 0:
    os.kill(os.getpid(), -int(answer))
sys.exit(int(answer))
"""
"""What has a command forked, or, where it cannot be, becomes {command}."""
LAUNCH, CODE = "launch.__main__", "runpy"
"""`rookery`, and `python -c`, in a request."""
STEPPER = "workers.environments.process_main"
"""Which steps copies, as actors start it."""
SERVER = "tests.forge"
"""One more process that forks, with other variables."""
TOOLS = ("doctor", "environment", "evaluate", "export", "import_weights", "model", "preflight")
PLAIN = ("coordinator", "relay", "sequential", *(f"tools.{tool}" for tool in TOOLS))
"""Modules of workers/ that a launcher starts by command line, or becomes."""

OWN = (
    *("PYTEST_CURRENT_TEST", "PYGAME_HIDE_SUPPORT_PROMPT", "TORCHINDUCTOR_CACHE_DIR"),
    *("COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "_"),
)
"""Variables that pytest, pygame, torch, readline and shells write into the environment."""
PLACE, VARIABLES = "ROOKERY_TEST_PLACE", "ROOKERY_TEST_VARIABLES"
"""Variables: on which machine a command is to run, and all that SERVER is to have."""


class Forge:
    """The process that forks, of one process of the tests. A fork of `origin`, which has imported, if there is one."""

    def __init__(self, environment: Mapping[str, str], output: Path, origin: Forge | None = None) -> None:
        room = ["-X", "room=" + "." * 2_000]  # in which the command lines of those that step copies are shown
        self._client = ForkClient([sys.executable, *room, "-P", "-m", SERVER], output)
        if origin is None or not origin._serve(self._client, _lasting(environment), output):
            self._client.start(_lasting(environment))

    def _serve(self, client: ForkClient, environment: Mapping[str, str], output: Path) -> bool:
        """Whether a fork of this one's process serves `client` from now on."""
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        given = {**self._client._environment, VARIABLES: json.dumps(environment)}
        with theirs, output.open("a") as errors:
            made = self._client.fork([SERVER], given, _file(theirs.fileno()), errors)
        if made is None:
            mine.close()
            return False
        client._pair, client._server, client._servers = mine, made, 1  # type: ignore[assignment]
        client._environment = fork_client._lasting(environment)
        return True

    def start(
        self,
        arguments: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        output: IO[str],
        errors: IO[str],
        place: Place | None = None,
        module: str = LAUNCH,
    ) -> ForkedProcess | None:
        """`rookery ARGUMENTS`, in a place; None where that has to be started by command line."""
        if not _wanted(environment):
            return None
        if place is not None:
            environment = {**environment, **place.variables, PLACE: json.dumps(vars(place))}
        return self._client.fork([module, *arguments], _lasting(environment), output, errors, cwd)

    @property
    def pid(self) -> int | None:
        """That of the process that forks."""
        return self._client._server.pid if self._client._server is not None else None

    def close(self) -> None:
        """Ends it."""
        self._client.close()


def _wanted(environment: Mapping[str, str]) -> bool:
    return hasattr(os, "pidfd_open") and environment.get("ROOKERY_FORK") != "0"


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in OWN}


@contextmanager
def forging(environment: Mapping[str, str], output: Path, origin: Forge | None = None) -> Iterator[Forge | None]:
    """For commands that have variables as in `environment`; None where processes are not forked."""
    forge = Forge(environment, output, origin) if _wanted(environment) else None
    try:
        yield forge
    finally:
        if forge is not None:
            forge.close()


class _CommandServer(ThreadingUnixStreamServer):
    """Where PROGRAM asks. A variable of `instead` has this value in a command, whatever its caller's is."""

    socket_type = socket.SOCK_SEQPACKET

    def __init__(self, address: str, forge: Forge, instead: Mapping[str, str]) -> None:
        super().__init__(address, _CommandHandler)
        self.forge, self.instead, self.lock = forge, instead, threading.Lock()
        self.made = set[ForkedProcess]()

    def verify_request(self, request: Any, client_address: Any) -> bool:
        """Only this user's: an abstract socket has no permissions."""
        peer = request.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return struct.unpack("3i", peer)[1] == os.getuid()


class _CommandHandler(BaseRequestHandler):
    """From a request to the end of what was forked for it, which is killed when its caller ends, by whatever signal."""

    server: _CommandServer

    def handle(self) -> None:
        data, files, _, _ = socket.recv_fds(self.request, 2**20, 2)
        module, arguments, cwd, given = json.loads(data)
        with self.server.lock, open(files[0], "w") as output, open(files[1], "w") as errors:
            environment = given | self.server.instead
            made = self.server.forge.start(arguments, Path(cwd), environment, output, errors, module=module)
        if made is None:
            self.request.send(b"-")
            return
        self.server.made.add(made)
        waiting = select.poll()
        for descriptor in (self.request.fileno(), made.descriptor):
            waiting.register(descriptor, select.POLLIN)
        if waiting.poll()[0][0] != made.descriptor:
            made.kill()
        code = made.wait()
        self.server.made.discard(made)
        with suppress(ConnectionError):
            self.request.send(str(code).encode())


@contextmanager
def program(folder: Path, forge: Forge | None, instead: Mapping[str, str]) -> Iterator[None]:
    """Lays a `rookery` into `folder`, and a `python-c` that runs code: `forge` forks them, if they are started with its
    variables; those of `instead` may be others."""
    if forge is None:
        yield
        return
    address = f"\0rookery-{uuid.uuid4()}"
    python = [sys.executable, "-c"]
    for name, module, command in (("rookery", LAUNCH, [require("rookery")]), ("python-c", CODE, python)):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{path}.py" "$@"\n')
        path.chmod(0o755)
        path.with_suffix(".py").write_text(PROGRAM.format(address=address, module=module, command=command))
    with _CommandServer(address, forge, instead) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield
        finally:
            server.shutdown()
            serving.join()
            for made in [*server.made]:
                made.kill()


@contextmanager
def stepping(forge: Forge | None) -> Iterator[None]:
    """Those that step copies for this process are forked; what their worlds print is lost."""

    def started(command: Sequence[str], **how: Any) -> Any:
        wire, notes = map(_file, how["pass_fds"])
        environment = how["env"] | {"PYTHONPATH": PYTHON_PATH}
        made = forge and forge.start(command[4:], Path.cwd(), environment, wire, notes, module=STEPPER)
        return made or subprocess.Popen(command, **how)

    instead = SimpleNamespace(**vars(subprocess) | {"Popen": started})
    with patch.object(process_handle, "subprocess", instead):
        yield


def _file(descriptor: int) -> Any:
    """What has this descriptor."""
    return SimpleNamespace(fileno=lambda: descriptor)


class _Taken(ForkClient):
    """Of a launcher whose first server is there already: `pid`, a fork of this process, at the other end of `pair`."""

    def __init__(self, pair: socket.socket, pid: int) -> None:
        super().__init__([], Path(os.devnull))
        self._pair, self._server, self._servers = pair, ForkedProcess(pid), 1  # type: ignore[assignment]
        self._environment = fork_client._lasting(process._environment())

    def of_a_run(self, output: Path, stopping: Callable[[], bool]) -> ForkClient | None:
        """As `process.fork_client`."""
        if not _wanted(os.environ):
            return None
        self._command, self._output, self._stopping = process.python("workers.fork_server"), output, stopping
        output.parent.mkdir(parents=True, exist_ok=True)
        return self

    def started(self, command: Sequence[str], **how: Any) -> Any:
        """As `subprocess.Popen`."""
        if command[3:4] == [] or command[3].removeprefix("workers.") not in PLAIN or not _wanted(os.environ):
            return subprocess.Popen(command, **how)
        output, reader = how["stdout"], None
        if output == subprocess.PIPE:
            reading, writing = os.pipe()
            output, reader = os.fdopen(writing, "w"), os.fdopen(reading)
        made = self.fork(command[3:], how["env"], output, how["stderr"])
        if reader is not None:
            output.close()
        if made is not None:
            made.stdout = reader
        return made or subprocess.Popen(command, **how)

    def ran(self, command: Sequence[str], **how: Any) -> subprocess.CompletedProcess[str]:
        """As `subprocess.run` of a command that prints little."""
        how.pop("check")
        popen = self.started(command, env=process._environment(), stderr=sys.stderr, **how)
        with popen.stdout:
            said = popen.stdout.read()
        return subprocess.CompletedProcess(command, popen.wait(), said)


def main() -> None:
    """Imports, and serves."""
    from workers import fork_server

    importlib.import_module(LAUNCH)
    for name in command_line.COMMANDS:
        command_line.command(name)
    commands = fork_server._COMMANDS | {LAUNCH: _launch, CODE: _run_code, STEPPER: _step}
    for name in PLAIN:
        module = importlib.import_module(f"workers.{name}")
        commands[module.__name__] = getattr(module, "command", None) or module.main
    fork_server._COMMANDS |= {name: partial(_begin, command) for name, command in commands.items()}
    given: list[Callable[[], object]] = []
    setattr(fork_server, "run_to_end", given.append)  # noqa: B010
    fork_server._COMMANDS[SERVER], sys.modules[SERVER] = _become_server, sys.modules["__main__"]
    gc.freeze()
    gc.enable()
    fork_server.main()
    while given and given[0] is _become_server:
        given.pop()()
        fork_server.main()
    if given and given[0] is fork_server._COMMANDS[CODE]:
        given[0]()  # no frame of a worker lies below: the code would take itself for a worker's
    elif given:
        run_to_end(given[0])


def _become_server() -> None:
    """With the variables that were asked for, and what a folder among them adds to every interpreter. The socket has
    come as the standard output."""
    variables = json.loads(os.environ[VARIABLES])
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[1:] = [str(os.dup(1))]
    os.dup2(2, 1)
    known = {*sys.path}
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in known]
    with suppress(ModuleNotFoundError):
        importlib.import_module("sitecustomize")
    gc.freeze()


def _begin(command: Callable[[], object]) -> None:
    """What a folder of the test's adds to every interpreter, now that the command line is known; and the command."""
    customize = sys.modules.get("sitecustomize")
    if customize and str(Path(customize.__file__ or "").parent) in os.environ.get("PYTHONPATH", "").split(os.pathsep):
        importlib.reload(customize)
    command()


def _step() -> None:
    """A process that steps copies, whose socket and notes have come as its standard output and errors."""
    inherited = os.dup(1), os.dup(2)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (1, 2):
        os.dup2(nowhere, standard)
    parent, index, config = sys.argv[3:]
    process_main.main(*inherited, int(parent), int(index), config)


def _run_code() -> None:
    """`python -c`: the code, and what it starts as `rookery` would."""
    _take_server()
    sys.argv[:2], code = ["-c"], sys.argv[1]
    sys.path.insert(0, "")
    sys.modules["__main__"] = module = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(module))


def _launch() -> None:
    """`rookery`."""
    from workers import fork_server

    if PLACE in os.environ:
        Place(**json.loads(os.environ.pop(PLACE))).enter()
    client = _take_server()

    def become(module: str, arguments: Sequence[str]) -> None:
        client.close()
        sys.orig_argv[:] = [sys.executable, "-P", "-m", module, *arguments]
        sys.argv[:] = [module, *arguments]
        fork_server._show_command_line(sys.orig_argv)
        fork_server._COMMANDS.get(module, partial(runpy.run_module, module, run_name="__main__", alter_sys=True))()

    entrance = importlib.import_module(LAUNCH)
    for module in (entrance, command_line, doctor, train):
        setattr(module, "become", become)  # noqa: B010
    entrance.main()


def _take_server() -> _Taken:
    """The first fork server of what is launched here is a fork of this process, and has its coordinator, too."""
    from workers import fork_server

    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    launcher = os.getpid()
    pid = os.fork()
    if not pid:
        mine.close()
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(silent, standard)
        if os.getppid() == launcher:
            for name in (LAUNCH, CODE, SERVER):
                del fork_server._COMMANDS[name]
            sys.argv[1:] = [str(theirs.detach())]
            setattr(fork_server, "run_to_end", run_to_end)  # noqa: B010
            fork_server.main()
        os._exit(0)
    theirs.close()
    client = _Taken(mine, pid)
    process.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": client.started})  # type: ignore[assignment]
    ran = SimpleNamespace(**vars(subprocess) | {"run": client.ran})
    doctor.subprocess = import_weights.subprocess = ran  # type: ignore[assignment]
    supervisor.fork_client = client.of_a_run
    return client


if __name__ == "__main__":
    gc.disable()
    main()
