"""A process that is forked for code which may end, or hang, the process that it is in: that of the user.

In flow: a function that tells lines of text. Out flow: the lines as they come, and how the process ended.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NoReturn

from protocol.errors import EnvironmentFault, one_sentence
from protocol.errors.origin import stack_in
from workers.runtime.last_words import end_with, leave, noted_crash, watch_user_code

Tell = Callable[[str], None]

_LOOK_SECONDS = 0.1
_END_SECONDS = 1.0
"""In which one that is to end may close what it has made."""
_exit = os._exit


class Ended(SystemExit):
    """The other process is asked to end."""


class Forked:
    """Runs `body`, whose result is the exit code, in a process of its own, which begins at once, without the
    descriptors `without`, and lives no longer than this one. To be made before threads are begun: of them a fork has
    none, but it has the locks that they hold."""

    def __init__(self, body: Callable[[Tell], int], without: Sequence[int] = ()) -> None:
        self._read, write = os.pipe()
        self._rest = b""
        self._status: int | None = None
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        parent = os.getpid()
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._stacks = tempfile.TemporaryFile()  # noqa: SIM115 - the same
        self._at = ""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])  # until the other one can answer it
        self.pid = os.fork()
        if not self.pid:
            for descriptor in (self._read, *without):
                os.close(descriptor)
            _become(body, write, parent, self._notes.fileno(), self._stacks.fileno())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        os.close(write)
        os.set_blocking(self._read, False)

    def lines(self, seconds: float = 0.0) -> list[str]:
        """What it told since it was asked last; waits for the first line, or the end, for at most `seconds`."""
        end = time.monotonic() + seconds
        while True:
            over = self.over  # asked first: what it told before its end is read
            with suppress(BlockingIOError):
                while part := os.read(self._read, 1 << 16):
                    self._rest += part
            *found, self._rest = self._rest.split(b"\n")
            left = end - time.monotonic()
            if found or over or left <= 0:
                return [line.decode() for line in found]
            select.select([self._read], [], [], min(left, _LOOK_SECONDS))

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        if self._status is None:
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                return False
            self._kill_group()  # before it is reaped: its number is nobody else's yet
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            crash = noted_crash(self._notes)
            self._at = crash.at if crash is not None else ""
        return True

    @property
    def fate(self) -> str:
        """How it ended, or that it did not."""
        if not self.over or self._status is None:
            return f"it did not end{self.at()}"
        if self._status < 0:
            return f"it was killed by {signal.Signals(-self._status).name}{self._at}"
        return f"it ended with exit code {self._status}{self._at}"

    def at(self) -> str:
        """Where it is now, as in ` in step (bad.py:27)`, though it may hold the interpreter; empty where it does not
        tell so, or has ended."""
        if self.over:
            return ""
        before = os.fstat(self._stacks.fileno()).st_size
        os.kill(self.pid, signal.SIGUSR1)
        end = time.monotonic() + _END_SECONDS
        while time.monotonic() < end and not self.over:
            time.sleep(_LOOK_SECONDS)
            if said := os.pread(self._stacks.fileno(), 1 << 16, before):
                return stack_in(said.decode(errors="replace"))
        return ""

    @property
    def crashed(self) -> bool:
        """Whether a signal ended it, or an `os._exit`."""
        return self.over and ((self._status or 0) < 0 or bool(self._at))

    @property
    def code(self) -> int | None:
        """Its exit code, negative where a signal ended it; None while it runs."""
        return self._status if self.over else None

    def close(self, seconds: float = _END_SECONDS) -> None:
        """Ends it, with what it has started: it may close that within so many seconds."""
        if seconds and not self.over:
            os.kill(self.pid, signal.SIGTERM)
            end = time.monotonic() + seconds
            while not self.over and time.monotonic() < end:
                self.lines(_LOOK_SECONDS)  # what it tells must not keep it
        if not self.over:
            self._kill_group()
            os.kill(self.pid, signal.SIGKILL)
            self._status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._notes.close()
        self._stacks.close()
        if self._read >= 0:
            os.close(self._read)
            self._read = -1

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError):  # it has not become the first of its group yet
            os.killpg(self.pid, signal.SIGKILL)


def apart(command: Callable[[], object], in_order: float = 0.0) -> NoReturn:
    """Runs a `command` that a person types, and that runs code of the user, in a process of its own, and ends this one
    as that ended: with one sentence where it could say nothing itself. One that ends `in_order` at SIGTERM has so many
    seconds for it at Ctrl-C, and its exit code is told."""
    forked, said = Forked(lambda tell: _run(command, tell)), list[str]()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # with what the world has started
    try:
        while not forked.over:
            said += forked.lines(_END_SECONDS)
        said += forked.lines()
    except KeyboardInterrupt:
        forked.close(in_order or _END_SECONDS)
        sys.exit(forked.code if in_order and not forked.crashed else 128 + signal.SIGINT)
    finally:
        forked.close(in_order or _END_SECONDS)
    with one_sentence():
        if forked.crashed or not said:  # or a library has ended it, past Python
            raise EnvironmentFault("playing_crashed", reason=forked.fate)
    sys.exit(forked.code)


def _run(command: Callable[[], object], tell: Tell) -> int:
    try:
        command()
    except Ended:
        raise
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    finally:
        tell("ended")
    return 0


def _end(*_: object) -> NoReturn:
    raise Ended(1)


def _become(body: Callable[[Tell], int], write: int, parent: int, notes: int, stacks: int) -> NoReturn:
    """Nothing is raised, and no handler of `atexit` is run that is the other process's."""
    code = 1
    atexit._clear()

    def tell(line: str) -> None:
        data = memoryview(f"{line}\n".encode())
        while data:
            data = data[os.write(write, data) :]

    try:
        os.setsid()
        end_with(parent)
        signal.signal(signal.SIGTERM, _end)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        watch_user_code(notes)
        faulthandler.register(signal.SIGUSR1, stacks, all_threads=False)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        code = body(tell)
    except Ended:
        pass  # it was told to end, and has closed its world on the way here
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            leave(code)
        finally:  # told to end as it came there: whoever called goes on in the other process alone
            _exit(code)
