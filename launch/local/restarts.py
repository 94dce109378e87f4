"""What becomes of a worker that died: started again after a pause, as long as its budget lasts, or the end of the run;
but for an evaluation, without which a run goes on.

In flows: the processes, as they are. Out flows: the processes started again, a line for each death; RunFailed, with the
first traceback that any of them left told before it.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from launch.local.process import FATAL, FATAL_AT_FIRST, REFUSED, Process, start
from protocol.errors import RookeryError

__all__ = ["RestartManager", "RunFailed"]

_IN_STEP = ("actor", "learner")
_BESIDE = ("evaluator",)
"""Of whom training needs nothing."""


class RunFailed(RookeryError):
    """A worker could not be kept alive."""


class RestartManager:
    """Of all workers of a run; `tell` gets the lines. `together`: in lock-step all begin anew when one dies."""

    def __init__(self, tell: Callable[[str], None], together: bool = False) -> None:
        self._tell, self._together = tell, together
        self._first: tuple[str, str] | None = None
        """Role and traceback of who crashed first: others may have died of that only."""

    def poll(self, process: Process, stopping: bool) -> None:
        """Starts a worker that died again; nobody when the run is `stopping`."""
        code = process.code
        if code is None or process.done or stopping:
            return
        restarts, now = process.budget.again, time.monotonic()
        needless = code == REFUSED and (restarts or process.last_words(1).endswith("[nothing_left_to_do]"))
        if not process.again_at and (code == 0 or needless):
            process.done = True  # others have taken over what was left to do, or an earlier life of the run had done it
        elif not process.again_at:
            self._plan(process, code, now)
        elif now >= process.again_at:
            start(process)

    def restart_together(self, processes: Sequence[Process], stage: str) -> None:
        """Where one of those that keep in step is to be started again, ends the others, to be started with it.
        RunFailed where the run is in a `stage` in which nobody begins any more."""
        kept = [process for process in processes if process.role in _IN_STEP]
        again = max((process.again_at for process in kept), default=0.0)
        if not self._together or not again:
            return
        if stage != "running":
            raise RunFailed("lockstep_worker_lost_late")
        for process in kept:
            if not process.again_at:
                process.popen.kill()
                process.popen.wait()
                process.again_at, process.done = again, False

    def last_words(self, process: Process) -> None:
        """Tells the traceback of who crashed first, if anybody did; `process` is the last one."""
        self._note(process)
        if self._first is not None:
            role, said = self._first
            self._tell(f"the first {role} that crashed said:\n{said}")
            self._first = None

    def _note(self, process: Process) -> None:
        said = process.traceback()
        self._first = self._first or ((process.role, said) if said else None)

    def _plan(self, process: Process, code: int, now: float) -> None:
        why = process.fault or f"was killed by signal {-code}"
        if code == -signal.SIGBUS:
            why += " (SIGBUS): shared memory that it had mapped was made shorter, or is on a full or broken disk"
        if code > 0:
            why = f"ended with exit code {code}: {process.why()}"
            if process.role not in _BESIDE:
                self._note(process)
        restarts = process.budget.again
        broken = process.last_words(1).endswith("[shared_memory_truncated]")  # it worked until then
        fatal = code in FATAL or (code in FATAL_AT_FIRST and not restarts and not broken)
        pause = None if fatal else process.budget.died(now)
        if pause is None:
            again = "" if fatal else f" again, after {restarts} restarts"
            if process.role in _BESIDE:
                self._tell(f"{process.role} {why}{again}; the run goes on without it; the log is {process.output}")
                process.done = True
                return
            self.last_words(process)
            raise RunFailed("worker_lost", peer=process.role, reason=why, again=again, file=process.output)
        process.again_at = now + pause
        comma = "," if process.fault else ";"
        when = f" in {pause:g} s" if pause else ""
        self._tell(f"{process.role} (pid {process.popen.pid}) {why}{comma} starting it again{when}")
