"""The fork server: it has imported once what workers that compute are made of, and forks one for each command line.

In flow: requests of the one launcher that started it, over a socket pair. Out flow: workers, which are the launcher's
children as if it had started them itself: it hears how they end, and they do not miss a server that dies. It holds no
module of a user, no thread, no device and no socket but that pair, and ends when its launcher does.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

_BEGUN = time.time_ns()  # before the imports: what is saved while they go on is not what they read

import msgspec  # noqa: E402
import numpy as np  # noqa: E402

import protocol.transport.curve  # noqa: E402, F401  # a worker imports it when it has keys, as all of a local run have
from protocol.control.fork_request import MAX_REQUEST_BYTES, STALE, ForkReply, ForkRequest  # noqa: E402
from workers import actor, evaluator, freeze_startup_objects, hooks, learner  # noqa: E402
from workers.runtime.last_words import run_to_end  # noqa: E402

__all__ = ["ForkServer", "main"]

_COMMANDS: dict[str, Callable[[], object]] = {
    "workers.actor": actor.command,
    "workers.evaluator": evaluator.command,
    "workers.hooks": hooks.command,
    "workers.learner": learner.command,
}
_FILES = 3
_LOOK_EVERY = 1.0


class ForkServer:
    """Answers the launcher at the other end of `pair`, which has to be this process's parent."""

    def __init__(self, pair: socket.socket) -> None:
        self._pair = pair
        self._launcher = os.getppid()
        self._modules = _modification_times()

    def serve(self) -> ForkRequest | None:
        """None when the launcher is gone. Returns the request too, in a new process, which is to become that worker."""
        self._pair.settimeout(_LOOK_EVERY)
        self._answer(ForkReply())
        while os.getppid() == self._launcher:  # a fork of the launcher may hold the other end too
            try:
                data, files, flags, _ = socket.recv_fds(self._pair, MAX_REQUEST_BYTES, _FILES)
            except TimeoutError:
                continue
            if not data:
                return None
            try:
                if flags & socket.MSG_TRUNC:
                    raise msgspec.DecodeError("too long")
                request = msgspec.json.decode(data, type=ForkRequest)
            except msgspec.DecodeError as fault:
                reply: ForkReply | None = ForkReply(refusal=str(fault))
            else:
                refusal = self._refusal(request, files)
                reply = ForkReply(refusal=refusal) if refusal else self._fork(files[-1])
                if reply is None:
                    self._pair.close()
                    for file, standard in zip(files, (1, 2), strict=False):
                        os.dup2(file, standard)
            for file in files:
                os.close(file)
            if reply is None:
                return request
            self._answer(reply)
        return None

    def _answer(self, reply: ForkReply) -> None:
        self._pair.send(msgspec.json.encode(reply))

    def _refusal(self, request: ForkRequest, files: Sequence[int]) -> str:
        if not request.command or request.command[0] not in _COMMANDS:
            return f"not a worker: {request.command[:1]}"
        if foreign := [name for name in request.environment if not name.startswith("ROOKERY_")]:
            return f"not a variable of a worker: {foreign[0]}"
        if len(files) != _FILES:
            return "without files for its output and errors and one to wait for"
        if (threads := len(os.listdir("/proc/self/task"))) > 1:
            return f"{threads} threads: what the others hold would stay locked in a fork"
        changed = _modification_times() != self._modules or max(self._modules.values()) > _BEGUN
        return STALE if changed else ""

    def _fork(self, word: int) -> ForkReply | None:
        """None within the new process, once the launcher has given its `word`. The process between it and this one ends
        at once, so that it becomes the child of the launcher, who has asked for orphans (PR_SET_CHILD_SUBREAPER)."""
        sys.stdout.flush()
        sys.stderr.flush()
        reader, writer = os.pipe()
        try:
            between = os.fork()
        except OSError as fault:
            os.close(reader)
            os.close(writer)
            return ForkReply(refusal=str(fault))
        if not between:
            if _is_worker(reader, writer, word, self._launcher):
                return None
            os._exit(0)
        os.close(writer)
        pid = int.from_bytes(os.read(reader, 4), "little")
        os.close(reader)
        os.waitpid(between, 0)
        return ForkReply(pid) if pid else ForkReply(refusal="no process could be made")


def _is_worker(reader: int, writer: int, word: int, launcher: int) -> bool:
    """Forks; whether this is the new process, and its launcher has told it to begin. Nothing is raised: who is neither
    has to end, and not to go on as a server."""
    try:
        if pid := os.fork():
            os.write(writer, pid.to_bytes(4, "little"))
            return False
        os.close(reader)
        os.close(writer)
        os.setsid()
        return os.read(word, 1) != b"" and os.getppid() == launcher
    except BaseException:
        return False


def main() -> None:
    """Serves at the socket whose number is the first argument; a process that was forked becomes its worker here."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket(fileno=int(sys.argv[1])) as pair:
        try:
            request = ForkServer(pair).serve()
        except ConnectionError:  # the launcher was gone before it had its answer
            return
    if request is None:
        return
    name, *arguments = request.command
    os.chdir(request.directory)
    for variable in [variable for variable in os.environ if variable.startswith("ROOKERY_")]:
        del os.environ[variable]
    os.environ.update(request.environment)
    importlib.invalidate_caches()
    sys.orig_argv[:] = [sys.executable, "-P", "-m", *request.command]
    sys.argv[:] = [sys.modules[name].__file__ or name, *arguments]
    _show_command_line(sys.orig_argv)
    np.random.seed()  # noqa: NPY002 - the global generator that worlds use, which the fork would share
    run_to_end(_COMMANDS[name])


def _show_command_line(words: Sequence[str]) -> None:
    """What `ps` shows of this process, in the room of what it was started with (proc(5): arg_start, arg_end)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    text = b"\0".join(word.encode(errors="surrogateescape") for word in words)
    ctypes.memmove(start, text[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _modification_times() -> dict[str, int]:
    """Of our own modules, as they are on disk now, in nanoseconds."""
    found = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is not None and name.partition(".")[0] in ("protocol", "workers", "__main__"):
            try:
                found[file] = os.stat(file).st_mtime_ns
            except OSError:
                found[file] = 0
    return found


if __name__ == "__main__":
    freeze_startup_objects()
    main()
