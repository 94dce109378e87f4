"""One process that steps copies, as the actor sees it, and the few bytes that both exchange over a pair of sockets.

In flows: commands. Out flows: answers, each awaited until a deadline; `ProcessDied` when the process has ended or
hangs. `RESET` and `STEP` are answered by `TURN`, in order; `HEAR`, of a curriculum as JSON, is not; `WORLD` comes once,
first. An error's message is text.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum

from protocol.config.run import EnvironmentConfig
from protocol.errors import EnvironmentFault, RookeryError, Timeout
from protocol.errors.origin import Crash, Told
from protocol.spaces import World, parse_world
from workers.environments.base import Episodes, add_episodes
from workers.runtime.last_words import noted_crash

COMMAND = struct.Struct("<BxHxxxxQ")
"""kind, group, seed (of HEAR: bytes of text that follow)"""
ANSWER = struct.Struct("<BxHI")
"""kind, group (of FAULT: the error's exit code), bytes of text that follow"""


class ProcessCommand(IntEnum):
    """What a command or an answer is."""

    RESET = 1
    STEP = 2
    WORLD = 3
    """The process is ready; the text is its world, and the descriptor of the memory is to come."""
    TURN = 4
    FAULT = 5
    """An error that was foreseen; the text is JSON: its sentence, facts, and the whole traceback where a user's code
    raised."""
    CRASH = 6
    """The last line of a traceback, before the process ends."""
    HEAR = 7
    """What is said of the members of a collection."""


log = logging.getLogger(__name__)

_FAULTS = {fault.exit_code: fault for fault in RookeryError.__subclasses__()}
_REAP_SECONDS = 5.0


class ProcessDied(Exception):
    """The process is of no use any more; the text says what became of it, as in "it was killed by SIGKILL". `crash`:
    how and where it crashed, if that was told."""

    def __init__(self, text: str, crash: Crash | None = None) -> None:
        super().__init__(text)
        self.crash = crash


class ProcessHandle:
    """Process number `index` of those that `config` asks for, which adds what it tells of episodes to `episodes`. Call
    `kill` or `end` in the end."""

    def __init__(self, config: EnvironmentConfig, index: int, episodes: Episodes) -> None:
        self._episodes = episodes
        self.pending: set[int] = set()
        """Groups whose turn is awaited."""
        self._last_words, self._asked = "", "while it was made"
        self._begun = time.monotonic()
        self._notes = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        ours, theirs = socket.socketpair()
        self._wire = ours
        module = [sys.executable, "-P", "-m", "workers.environments.process_main"]
        inherited = theirs.fileno(), self._notes.fileno()
        arguments = [*map(str, inherited), str(os.getpid()), str(index), config.model_dump_json()]
        threads = {
            name: os.environ.get(name, "1") for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        }
        try:
            self._process = subprocess.Popen(
                [*module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=2,  # what a world prints must not be taken for what a worker says
                pass_fds=inherited,
                env={**os.environ, **threads},
                start_new_session=True,  # Ctrl-C reaches the actor alone, and whatever a world starts dies with it
            )
        except BaseException:
            ours.close()
            self._notes.close()
            raise
        finally:
            theirs.close()

    @property
    def age(self) -> float:
        """Seconds since it was started."""
        return time.monotonic() - self._begun

    def world(self, deadline: Deadline) -> World:
        """What it steps, said once it is ready."""
        kind, _, text = self._receive(deadline)
        assert kind == ProcessCommand.WORLD, kind
        return parse_world(text)

    def attach(self, descriptor: int) -> None:
        """Gives it the shared memory."""
        with suppress(BrokenPipeError, ConnectionResetError):  # the wait for its first answer will tell
            socket.send_fds(self._wire, [b"m"], [descriptor])

    def reset(self, group: int, seed: int) -> None:
        """Orders new episodes in all its copies of `group`."""
        self._send(ProcessCommand.RESET, group, seed)

    def step(self, group: int) -> None:
        """Orders a step with the actions that are in the shared memory."""
        self._send(ProcessCommand.STEP, group, 0)

    def set_curriculum(self, curriculum: str) -> None:
        """Hands on what is said of the members of a collection."""
        said = curriculum.encode()
        with suppress(BrokenPipeError, ConnectionResetError):  # the wait for its answer will tell
            self._wire.sendall(COMMAND.pack(ProcessCommand.HEAR, 0, len(said)) + said)

    def wait(self, group: int, deadline: Deadline) -> None:
        """Returns when the turn of `group` is written; raises `ProcessDied`, or the fault that the process met."""
        while group in self.pending:
            _, number, text = self._receive(deadline)
            self.pending.discard(number)
            if text:
                add_episodes(self._episodes, {tuple(place): told for place, told in json.loads(text)})

    def kill(self) -> None:
        """At once, with whatever it has started."""
        self._wire.close()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:  # held in the kernel, by a device or a network file system
            log.warning("event=environment_not_reaped pid=%d", self._process.pid)
        self._notes.close()

    def release(self) -> None:
        """Tells it to close its environments and end."""
        self._wire.close()

    def end(self, deadline: Deadline) -> int | None:
        """After `release`: its exit code, that of a kill if it does not end in time; None if even that fails."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(deadline.left)
        self.kill()
        return self._process.returncode

    def _send(self, kind: ProcessCommand, group: int, seed: int) -> None:
        self.pending.add(group)
        self._asked = f"in {kind.name.lower()}"
        with suppress(BrokenPipeError, ConnectionResetError):  # the wait for its answer will tell
            self._wire.sendall(COMMAND.pack(kind, group, seed))

    def _receive(self, deadline: Deadline) -> tuple[int, int, str]:
        kind, number, length = ANSWER.unpack(self._read(ANSWER.size, deadline))
        text = self._read(length, deadline).decode() if length else ""
        if kind == ProcessCommand.FAULT:
            coded, facts, whole = json.loads(text)
            raise _FAULTS.get(number, EnvironmentFault).heard(coded, **facts) from Told(whole) if whole else None
        if kind == ProcessCommand.CRASH:
            self._last_words = text
            return self._receive(deadline)
        return kind, number, text

    def _read(self, size: int, deadline: Deadline) -> bytes:
        read = b""
        while len(read) < size:
            self._wire.settimeout(max(deadline.left, 1e-3))
            try:
                got = self._wire.recv(size - len(read))
            except TimeoutError:
                raise ProcessDied(f"it did not answer within {deadline.seconds:g} s") from None
            except ConnectionResetError:
                got = b""
            if not got:
                raise self._end()
            read += got
        return read

    def _end(self) -> ProcessDied:
        """What became of a process whose socket has ended."""
        try:
            code = self._process.wait(_REAP_SECONDS)
        except subprocess.TimeoutExpired:
            return ProcessDied("it closed its socket")
        crash = noted_crash(self._notes)
        if code < 0:
            how = f"it was killed by {signal.Signals(-code).name}"
        elif self._last_words:
            return ProcessDied(f"it ended with {self._last_words}")
        else:
            how = f"it ended with {crash.what if crash is not None else f'exit code {code}'}"
        return ProcessDied(f"{how}{crash.at if crash is not None and crash.at else f' {self._asked}'}", crash)


class Deadline:
    """`seconds` from now by `clock`; `what` completes the sentence "… in time"."""

    def __init__(self, seconds: float, what: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds = seconds
        self.what = what
        self._clock = clock
        self._end = clock() + seconds

    @property
    def left(self) -> float:
        """Seconds left, never negative."""
        return max(0.0, self._end - self._clock())

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self._clock() >= self._end

    def check(self) -> None:
        """Raises Timeout if the time is up."""
        if self.passed:
            raise Timeout("deadline_passed", what=self.what, seconds=self.seconds)
