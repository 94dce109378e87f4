"""What becomes of a worker that died: started again after a pause, as long as its budget lasts, or the end of the run;
but for an evaluation, without which a run goes on.

In flows: the processes, as they are. Out flows: the processes started again, a line for each death, and the traceback
that it left; RunFailed.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from launch.local.process import FATAL, FATAL_AT_FIRST, REFUSED, Process, start
from protocol.errors import RookeryError

_IN_STEP = ("actor", "learner")
_BESIDE = ("evaluator", "hooks")
"""Of whom training needs nothing."""
_OVER = ("nothing_left_to_do", "run_has_ended", "learner_of_retired_policy")
"""Errors of those that come when their part is done: the run was stopped meanwhile, or their policy is no more."""
_FIRST_SECONDS = 30.0
"""Of a worker."""
_UNSENDABLE = "Bad address ("
"""What ZeroMQ says as it ends a process whose message lies in memory that is gone."""


class RunFailed(RookeryError):
    """A worker could not be kept alive."""


class RestartManager:
    """Of all workers of a run; `tell` gets the lines. `together`: in lock-step all begin anew when one dies."""

    def __init__(self, tell: Callable[[str], None], together: bool = False) -> None:
        self._tell, self._together = tell, together
        self._shown = set[str]()
        """Tracebacks that were told."""
        self._early = set[str]()
        """Where those crashed that had hardly begun: twice at the same place, and it would be so for ever."""

    def poll(self, process: Process, stopping: bool) -> None:
        """Starts a worker that died again; nobody when the run is `stopping`."""
        code = process.code
        if code is None or process.done or stopping:
            return
        now = time.monotonic()
        if process.again_at:
            if now >= process.again_at:
                start(process)
            return
        over = any(_told(process, kind) for kind in _OVER)
        needless = code == REFUSED and (process.budget.again or over)
        if process.in_order() or (needless and process.crash() is None):
            process.done = True  # others have taken over what was left to do, or an earlier life of the run had done it
        else:
            self._plan(process, code, now)

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

    def show(self, process: Process) -> None:
        """Tells the traceback that it left, if it is a new one."""
        said = process.traceback()
        if said and said not in self._shown:
            self._shown.add(said)
            self._tell(f"{process.role} (pid {process.popen.pid}) said:\n{said}")

    def _plan(self, process: Process, code: int, now: float) -> None:
        why = process.fault or process.why()
        unsendable = code == -signal.SIGABRT and _UNSENDABLE in process.last_words(100)
        short = code == -signal.SIGBUS or unsendable
        if short:
            why += ": shared memory that it had mapped was made shorter, or is on a full or broken disk"
        self.show(process)
        where = "" if process.fault or short else process.place()  # whoever made it shorter was elsewhere
        early = bool(where) and process.budget.lived(now) < _FIRST_SECONDS
        again = " again, at the same place" if early and where in self._early else ""
        vain = bool(again) or (early and _told(process, "environment_restarts_exhausted"))
        if early:
            self._early.add(where)
        restarts = process.budget.again
        broken = _told(process, "shared_memory_truncated")  # it worked until then
        fatal = code in FATAL or (code in FATAL_AT_FIRST and not restarts and not broken)
        pause = None if fatal or vain else process.budget.died(now)
        if pause is None:
            again = again if fatal or vain else f" again, after {restarts} restarts"
            if process.role in _BESIDE:
                self._tell(f"{process.role} {why}{again}; the run goes on without it; the log is {process.output}")
                process.done = True
                return
            raise RunFailed("worker_lost", peer=process.role, reason=why, again=again, file=process.output)
        process.again_at = now + pause
        comma = "," if process.fault else ";"
        when = f" in {pause:g} s" if pause else ""
        self._tell(f"{process.role} (pid {process.popen.pid}) {why}{comma} starting it again{when}")


def _told(process: Process, kind: str) -> bool:
    """Whether an error of this kind is what it said last."""
    return process.last_words(1).endswith(f"[{kind}]")
