"""Starts workers by a fork server: a process that has imported once what they are made of.

In flow: a worker's command line. Out flow: a process, this one's child as if it had been started by command line, or
None where it has to be: on another system than Linux, with other variables than the server was started with, or where
the server is gone, too slow, or has a reason of its own.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import msgspec

from protocol.control.fork_request import MAX_REQUEST_BYTES, STALE, ForkReply, ForkRequest

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_START_SECONDS = 60.0
"""An import on a machine with much to do takes long."""
_ANSWER_SECONDS = 10.0
_LOOK_EVERY = 0.1
_SERVERS = 3
"""As many may die or fall behind the code on disk; then workers are started by command line."""
_ROOM = "." * 96
"""A word that is added to the server's command line: its room is that of longer ones, of workers."""
_ADOPTING = threading.Lock()


class ForkedProcess:
    """A child that a fork server made, with the methods of `subprocess.Popen` that are needed here."""

    stdout: IO[str] | None = None

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.descriptor = os.pidfd_open(pid)
        """Can be read once it has ended."""

    def poll(self) -> int | None:
        """The exit code, None while it runs; negative: killed by that signal; 0 where another has asked before."""
        return self.returncode if self.returncode is not None else self._reap(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, as soon as it ends; subprocess.TimeoutExpired after `timeout` seconds."""
        if self.returncode is None and timeout is not None:
            waiting = select.poll()
            waiting.register(self.descriptor, select.POLLIN)
            if not waiting.poll(min(max(0.0, timeout) * 1_000, 2**31 - 1)):
                raise subprocess.TimeoutExpired(str(self.pid), timeout)
        code = self.returncode if self.returncode is not None else self._reap(0)
        assert code is not None
        return code

    def send_signal(self, number: int) -> None:
        """To it, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self.send_signal(signal.SIGKILL)

    def _reap(self, options: int) -> int | None:
        try:
            ended, status = os.waitpid(self.pid, options)
        except ChildProcessError:
            ended, status = self.pid, 0
        if ended:
            self.returncode = os.waitstatus_to_exitcode(status)
            os.close(self.descriptor)
        return self.returncode


class ForkClient:
    """Of a launcher; the server ends with it.

    `command`: of the server, to which a socket's number is added; `output`: the file that gets what it says;
    `stopping`: whether nobody is to wait any more.
    """

    def __init__(self, command: Sequence[str], output: Path, stopping: Callable[[], bool] = lambda: False) -> None:
        self._command, self._output, self._stopping = list(command), output, stopping
        self._server: subprocess.Popen[bytes] | None = None
        self._pair: socket.socket | None = None
        self._environment: dict[str, str] = {}
        self._ready = False
        self._servers = 0
        output.parent.mkdir(parents=True, exist_ok=True)

    def start(self, environment: Mapping[str, str]) -> None:
        """Starts the server, with what a worker would be started with; it imports while others do what they do."""
        self._environment, self._ready = _lasting(environment), False
        self._servers += 1
        self._pair, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._output.open("ab") as output:
            self._server = subprocess.Popen(
                [*self._command, str(theirs.fileno()), _ROOM],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def fork(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        output: IO[str],
        errors: IO[str],
        folder: Path | None = None,
    ) -> ForkedProcess | None:
        """A process that becomes `python -m command` in `folder`, or None."""
        own = {name: value for name, value in environment.items() if name.startswith("ROOKERY_")}
        try:
            request = msgspec.json.encode(ForkRequest(list(command), str(folder or os.getcwd()), own))
            while self._servers < _SERVERS or self._pair is not None:
                if self._pair is None:
                    self.start(environment)
                if why := self._unfit(environment, request):
                    self._note(command, why)
                    return None
                made, why = self._ask(request, [output.fileno(), errors.fileno()])
                if made is not None:
                    return made
                if why != STALE and not self._has_ended():
                    self._servers = _SERVERS  # another one would do no better
                self.close()
                self._note(command, why)
        except (OSError, UnicodeEncodeError) as fault:  # no descriptor, no right to adopt, a name that is no text
            self.close()
            self._note(command, str(fault))
        return None

    def close(self) -> None:
        """Ends the server, not what it has started."""
        if self._pair is not None:
            self._pair.close()
            self._pair = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def _unfit(self, environment: Mapping[str, str], request: bytes) -> str:
        """Why the server cannot make it; empty if it can."""
        changed = sorted({name for name, _ in self._environment.items() ^ _lasting(environment).items()})
        if changed:
            return f"{', '.join(changed)} changed since the server began"
        return f"a command line of {len(request)} bytes" if len(request) > MAX_REQUEST_BYTES else ""

    def _note(self, command: Sequence[str], why: str) -> None:
        with suppress(OSError), self._output.open("a") as log:  # a full disk keeps no worker from being started
            log.write(f"{command[0]} was not forked: {why}\n")

    def _has_ended(self) -> bool:
        """Whether the server has, or is about to."""
        try:
            return self._server is None or self._server.wait(_LOOK_EVERY) is not None
        except subprocess.TimeoutExpired:
            return False

    def _ask(self, request: bytes, files: list[int]) -> tuple[ForkedProcess | None, str]:
        """The process, or why there is none. It begins when this process has taken note of it."""
        assert self._pair is not None
        if not self._ready:
            if self._reply(_START_SECONDS) is None:
                return None, "the server has not begun"
            self._ready = True
        word, promise = os.pipe()
        try:
            with _ADOPTING, _adopting():
                socket.send_fds(self._pair, [request], [*files, word])
                reply = self._reply(_ANSWER_SECONDS)
            if reply is None or not reply.pid:
                return None, "no answer" if reply is None else reply.refusal
            process = ForkedProcess(reply.pid)
            os.write(promise, b"!")
            return process, ""
        except ConnectionError:
            return None, "the server has died"
        finally:
            os.close(word)
            os.close(promise)

    def _reply(self, seconds: float) -> ForkReply | None:
        """The next one; None where none comes."""
        assert self._pair is not None
        waiting = select.poll()
        waiting.register(self._pair, select.POLLIN)
        end = time.monotonic() + seconds
        while not waiting.poll(_LOOK_EVERY * 1_000):
            if time.monotonic() > end or self._stopping():
                return None
        data = self._pair.recv(MAX_REQUEST_BYTES)
        return msgspec.json.decode(data, type=ForkReply) if data else None


@contextmanager
def _adopting() -> Iterator[None]:
    """Whose parents end below this process become its children meanwhile (prctl(2))."""
    libc, before = ctypes.CDLL(None, use_errno=True), ctypes.c_int()
    libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def _lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """What must not have changed since the server was started."""
    return {name: value for name, value in environment.items() if not name.startswith("ROOKERY_")}
