"""Runs one simulator and sees to it that it does not outlive the actor, however that dies: run by path, for it needs
nothing but Python itself.

    python -I guardian.py COMMAND...

In flow: standard input, a pipe whose other end the actor holds and never writes to. Out flow: the command's exit code,
128 and more for a signal. What the command started itself, in its process group, ends with it.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys

_PR_SET_PDEATHSIG = 1
_POLITE_SECONDS = 1.0
_LOOK_SECONDS = 0.2


def main(command: list[str]) -> int:
    """Until the command ends, or the actor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_guardian
        )
    except OSError as fault:
        sys.stderr.write(f"cannot start {command[0]!r}: {fault.strerror}; correct environment.settings.command\n")
        return 127
    try:
        _watch(child)
        return child.returncode if child.returncode >= 0 else 128 - child.returncode
    finally:
        _signal(child.pid, signal.SIGKILL)  # whatever it left behind
        child.wait()


def _watch(child: subprocess.Popen[bytes]) -> None:
    """Returns when the child has ended; if the actor ends first, it is asked to, and then made to."""
    ends = [0]
    if hasattr(os, "pidfd_open"):
        ends.append(os.pidfd_open(child.pid))
    while child.poll() is None:
        ready, _, _ = select.select(ends, [], [], None if len(ends) > 1 else _LOOK_SECONDS)
        if 0 in ready:
            _signal(child.pid, signal.SIGTERM)
            try:
                child.wait(_POLITE_SECONDS)
            except subprocess.TimeoutExpired:
                _signal(child.pid, signal.SIGKILL)
                child.wait()


def _signal(group: int, number: int) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        pass  # all of it has ended


def _end_with_guardian() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
