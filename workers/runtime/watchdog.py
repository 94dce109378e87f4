"""Ends a worker whose loop does not turn any more, whatever holds it: a world's step, a driver, a lock.

In flow: the ticks of the loop (workers/runtime/health.py). Out flows: the stacks of all threads, a sentence to the
coordinator and to stderr, and exit code 4, upon which whoever supervises starts it again. Heartbeats come from another
thread, so that a lease would say nothing; a loop that holds the interpreter itself loses its lease, and is killed for
that.
"""

from __future__ import annotations

import faulthandler
import logging
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping

from protocol.config.run import Run
from protocol.errors import Timeout
from protocol.errors.origin import place_of
from workers.runtime.health import Health
from workers.runtime.logs import rates

__all__ = ["StallTimer", "install_stack_dump_signal", "place_of_thread", "run_watchdog", "turn_seconds"]

log = logging.getLogger(__name__)

_TICK = 0.5
_RATES_EVERY = 10.0
_TO_BEGIN = 5
"""Times as long as a turn that the first one may take, and all before it: a world that opens or resets, a dataset."""


class StallTimer:
    """How long a loop has made no turn, in time in which this process ran: one that was stopped did not hang. Pure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ticked_at, self._still = -1.0, 0.0

    def poll(self, vitals: Health, elapsed: float, most: float = math.inf) -> float:
        """Seconds that the loop stands still, `elapsed` seconds of them new, once they are too many, or more than
        `most`; 0 else."""
        begun, ticked_at = vitals.at_work, vitals.ticked_at
        if not begun or ticked_at != self._ticked_at:
            self._ticked_at, self._still = ticked_at, 0.0
            return 0.0
        self._still += elapsed
        return self._still if self._still >= min(most, self._seconds * (1 if ticked_at else _TO_BEGIN)) else 0.0


def turn_seconds(run: Run) -> float:
    """How long a turn may take: processes that step the world are told to be hung, and started again, within it."""
    world = run.environment
    return run.stall_timeout + (2 * world.step_timeout * (1 + world.restarts) if world.processes else 0.0)


def run_watchdog(
    vitals: Health,
    seconds: float,
    ended: threading.Event,
    farewell: Callable[[str], None],
    look: Callable[[], float] = lambda: math.inf,
) -> None:
    """Until the worker has `ended`; to be run by a thread of its own. `farewell` tells the coordinator. Logs now and
    then what the worker did and waited for. `look` is called again and again, and says how long the loop may stand
    still now if that is less."""
    stall, tick = StallTimer(seconds), min(_TICK, seconds / 4)
    before = told_at = time.monotonic()
    counted: Mapping[str, float] = {}
    while not ended.wait(tick):
        now = time.monotonic()
        most = look()
        still = stall.poll(vitals, min(now - before, 2 * tick), most)
        before = now
        if now - told_at >= _RATES_EVERY and vitals.counters is not None:
            fresh = vitals.counters.snapshot()
            if said := rates(counted, fresh, now - told_at):
                log.info("event=rates %s", said)
            told_at, counted = now, fresh
        if still:
            _end(vitals.identity.role, still, farewell, most < math.inf)


def install_stack_dump_signal() -> None:
    """On SIGUSR1 the stacks of all threads go to stderr."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def place_of_thread(number: int | None) -> str:
    """Where a thread is: function, file and line."""
    frame = sys._current_frames().get(number or 0)
    if frame is None:
        return "an unknown place"
    return place_of(frame)


def _end(role: str, still: float, farewell: Callable[[str], None], stopping: bool) -> None:
    where = place_of_thread(threading.main_thread().ident)
    faulthandler.dump_traceback(all_threads=True)
    slow = "" if stopping else ", or raise stall_timeout where a turn may take so long"
    said = f"no turn for {still:.0f} s: it hangs in {where}{' and does not stop' * stopping}; correct that{slow}"
    log.critical("event=stalled seconds=%.0f where=%s", still, where)
    farewell(said)
    sys.stderr.write(f"{role}: {said}\n")
    sys.stderr.flush()
    os._exit(Timeout.exit_code)  # the main thread will not come back to end in order
