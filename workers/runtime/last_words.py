"""What is said when something ends a worker or a thread of its, wherever that can still be said.

In flow: what was raised; of a process that runs a user's code, also a fatal signal or an `os._exit`. Out flows: a line
of the log (with the whole traceback), one for people (a traceback for what nobody foresaw; of what a user's code raised
one in which our frames are folded), the error that other processes are told, the exit code.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import IO, NoReturn

from protocol.errors import RookeryError, disk_fault
from protocol.errors.origin import Crash, blame, crash_in, ended, is_ours, place_of
from workers.runtime.logs import SHOWN

log = logging.getLogger(__name__)

_PR_SET_PDEATHSIG = 1
_exit = os._exit
_THREAD_SECONDS, _HANDLER_SECONDS = 4.0, 20.0
"""That the user's threads may go on at a process's end, and that its handlers of `atexit` may take then."""


def end_with(parent: int) -> None:
    """This process is killed when its parent dies, even while the user's code hangs."""
    if sys.platform == "linux":  # a stopped process and one that holds the interpreter's lock die, too
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGKILL)


def tell_failure(role: str, fault: Exception) -> tuple[str, int]:
    """Says why `role` ends; the error in words, and the exit code. Where its output lies on a full disk, the exit code
    alone is left to say it, and what could not be written must not become another one as the process ends."""
    told = fault if isinstance(fault, RookeryError) else disk_fault(fault)
    if told is not None:
        error, code, said = told.coded, told.exit_code, f"{told.traceback}{role}: {told.coded}"
        whole = fault if told.traceback else None
        log.error("event=failed kind=%s error=%s", told.kind, told, exc_info=whole, extra=SHOWN)
    else:
        error = said = "".join(traceback.format_exception(fault))
        code = 1
        log.error("event=crashed error=%s", type(fault).__name__, exc_info=fault, extra=SHOWN)
    try:
        sys.stdout.flush()  # what the user's code has printed comes before it
        print(said, file=sys.stderr, flush=True)  # noqa: T201 - the worker's last word
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(nowhere, stream)
    return error, code


def tell_end(role: str) -> None:
    """Says that `role` has ended in order: its supervisor takes an exit code of 0 without it for a crash, as a library
    can end a process past Python."""
    with suppress(OSError):  # a full disk
        print(ended(role), file=sys.stderr, flush=True)  # noqa: T201 - the worker's last word


def watch_user_code(notes: int = 2) -> None:
    """From now on what ends this process without an exception is written to the descriptor `notes`, with its place, as
    `protocol/errors/origin.py` reads it; what ends a thread that the user's code has started, to stderr. The user's
    code cannot close the streams that this is told on."""
    for stream in (sys.stdout, sys.stderr):
        stream.close = stream.flush  # type: ignore[method-assign]
    if notes != 2 or not faulthandler.is_enabled():
        faulthandler.enable(notes)
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _tell_thread
    process = os.getpid()

    def tell_exit(status: int) -> NoReturn:
        if os.getpid() == process and not is_ours(sys._getframe(1).f_code.co_filename):
            with suppress(OSError):  # a full disk
                os.write(notes, f"os._exit({status})\n".encode())
            faulthandler.dump_traceback(notes, all_threads=False)
            with suppress(OSError):
                os.write(notes, f"this process was ended by os._exit in {place_of(sys._getframe(1))}\n".encode())
        _exit(status)

    os._exit = tell_exit


def run_to_end(command: Callable[[], object]) -> NoReturn:
    """Runs a program that runs code of the user, and ends this process as that program ends."""
    code: object = 0
    try:
        command()
    except SystemExit as end:
        code = end.code
    except Exception:
        sys.excepthook(*sys.exc_info())
        code = 1
    if code is not None and not isinstance(code, int):
        sys.stderr.write(f"{code}\n")
        code = 1
    leave(code or 0)


def leave(code: int) -> NoReturn:
    """Ends this process as the interpreter does, in its order, but waits for nobody for long: of threads and handlers
    that the user's code has left some never end. Nothing is taken apart: in a fork that would copy what is shared."""
    try:
        kill_children()
        late = _later(_THREAD_SECONDS, _finish, code)
        threading._shutdown()  # type: ignore[attr-defined]
        late.cancel()
        _finish(code)
    finally:
        _exit(code & 0xFF)


def _spare_torch() -> None:
    """Its operators stay registered, where the interpreter would unregister one after another: a tenth of the processor
    time of a short learner."""
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]
        alive = finalizer.peek()
        if alive is not None and getattr(alive[1], "__module__", "") == "torch.library":
            finalizer.atexit = False


def _finish(code: int) -> NoReturn:
    try:
        left = {one.name for one in threading.enumerate() if not one.daemon} - {threading.main_thread().name}
        if left:
            log.warning("event=threads_left names=%s", ",".join(sorted(left)))
        _later(_HANDLER_SECONDS, _exit, code & 0xFF)
        _spare_torch()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):  # a full disk, or the user has closed it: the exit code is its own
                stream.flush()
        _exit(code & 0xFF)


def _later(seconds: float, end: Callable[[int], object], code: int) -> threading.Timer:
    timer = threading.Timer(seconds, end, [code])
    timer.daemon = True
    timer.start()
    return timer


def kill_children() -> None:
    """Ends what a user's code has begun by multiprocessing and left behind: the interpreter waits for it at its end."""
    used, here = sys.modules.get("multiprocessing"), os.getpid()
    for child in used.active_children() if used is not None else ():
        if child._parent_pid == here:  # and not that of the process which this one was forked from
            log.warning("event=child_left pid=%d name=%s", child.pid, child.name)
            child.kill()


def noted_crash(notes: IO[bytes]) -> Crash | None:
    """What a process that has ended wrote into its `notes`, if it crashed; the whole is said here."""
    notes.seek(0)
    said = notes.read().decode(errors="replace")
    sys.stderr.write(said)
    return crash_in(said)


def _tell_thread(told: threading.ExceptHookArgs) -> None:
    """The whole goes to the log. The process goes on, as Python would have it."""
    name = told.thread.name if told.thread is not None else ""
    if told.exc_value is None or isinstance(told.exc_value, SystemExit) or not blame(told.exc_value)["file"]:
        threading.__excepthook__(told)
        return
    facts = blame(told.exc_value)
    log.error(
        "event=thread_raised thread=%s at=%s reason=%s", name, facts["at"], facts["reason"], exc_info=told.exc_value
    )
    sys.stderr.write(f"in the thread {name!r}:\n{facts['traceback']}")
    sys.stderr.flush()
