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
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from protocol.config.run import Run
from protocol.errors import Timeout
from protocol.errors.origin import awaited_in, place_of, waiting
from workers.runtime.health import Health
from workers.runtime.logs import SHOWN, rates

log = logging.getLogger(__name__)

_TICK = 0.5
_RATES_EVERY = 10.0
_SLOW_SECONDS = 10.0
"""Without a turn, after which it is said what is waited for."""
_CLOSE_SECONDS = 10.0
"""In which a world may close itself when its run is over."""
_TO_BEGIN = 5
"""Times as long as a turn that the first one may take, and all before it: a world that opens or resets, a dataset."""


class StallTimer:
    """How long a loop has made no turn, in time in which this process ran: one that was stopped did not hang. Pure."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._ticked_at = -1.0
        self.still = 0.0
        """Seconds that the loop stands still, be they many or few."""

    def limit(self, vitals: Health) -> float:
        """Seconds that it may."""
        return self._seconds * (1 if vitals.ticked_at else _TO_BEGIN)

    def poll(self, vitals: Health, elapsed: float, most: float = math.inf) -> float:
        """Seconds that the loop stands still, `elapsed` seconds of them new, once they are too many, or more than
        `most`; 0 else."""
        begun, ticked_at = vitals.at_work, vitals.ticked_at
        if not begun or ticked_at != self._ticked_at:
            self._ticked_at, self.still = ticked_at, 0.0
            return 0.0
        self.still += elapsed
        return self.still if self.still >= min(most, self.limit(vitals)) else 0.0


class SlowTurns:
    """Which turns are worth a word: those twice as long as the last of which one was said, once each. Pure."""

    def __init__(self, seconds: float) -> None:
        self._due, self._longest = seconds, 0.0

    def poll(self, still: float) -> bool:
        """Whether the loop has stood still for so long that it is to be said now."""
        if self._longest and still < self._longest:
            self._due, self._longest = 2 * self._longest, 0.0
        if self._longest or still >= self._due:
            first, self._longest = not self._longest, still
            return first
        return False


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
    stall, slow, tick = StallTimer(seconds), SlowTurns(_SLOW_SECONDS), min(_TICK, seconds / 4)
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
        if slow.poll(stall.still) and (where := awaited_in(_frame_of(threading.main_thread().ident))):
            limit = stall.limit(vitals)
            log.warning("event=slow seconds=%.0f limit=%g where=%s", stall.still, limit, where, extra=SHOWN)
            said = f"no turn for {stall.still:.0f} s, as {where} does not return; at {limit:g} s it counts as hung"
            _say(waiting(vitals.identity.role, f"{said} (stall_timeout)"))
        if still:
            _end(vitals.identity.role, still, farewell, most < math.inf)


def install_stack_dump_signal() -> None:
    """On SIGUSR1 the stacks of all threads go to stderr."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)


def place_of_thread(number: int | None) -> str:
    """Where a thread is: function, file and line."""
    frame = _frame_of(number)
    return "an unknown place" if frame is None else place_of(frame)


def return_or_go_on(role: str, close: Callable[[], object], go_on: Callable[[], NoReturn]) -> None:
    """`close` in this thread, as libraries want it, where code of the user may keep it for ever. After some seconds it
    is said where that is, and another thread does what is left to do: `go_on` ends this process."""
    turn, here = threading.Lock(), threading.get_ident()

    def late() -> None:
        if not turn.acquire(blocking=False):
            return
        try:
            where = place_of_thread(here)
            log.warning("event=not_closed seconds=%g where=%s", _CLOSE_SECONDS, where, extra=SHOWN)
            said = f"the world is not closed, as {where} has not returned for {_CLOSE_SECONDS:g} s"
            _say(waiting(role, f"{said}; the run ends without it"))
            go_on()
        finally:
            os._exit(1)  # nobody else would

    timer = threading.Timer(_CLOSE_SECONDS, late)
    timer.daemon = True
    timer.start()
    try:
        close()
    finally:
        timer.cancel()
        turn.acquire()  # for ever, where the other thread goes on


def _frame_of(number: int | None) -> FrameType | None:
    return sys._current_frames().get(number or 0)


def _say(line: str) -> None:
    with suppress(OSError, ValueError):  # a full disk, or the user's code has closed it
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


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
