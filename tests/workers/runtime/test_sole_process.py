"""A run in one process is shown on a pipe of its own, and ended where its loop hangs or does not stop."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from launch.local.view_reader import ViewReader
from protocol.errors import Timeout
from tests.tools import ROOT
from workers.runtime import sole_process
from workers.runtime.process import StopRequested
from workers.runtime.sole_process import SoleProcess

Pair = tuple[SoleProcess, ViewReader]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a pipe."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    reader = ViewReader(os.fdopen(reading))
    yield SoleProcess(_views=writing), reader
    os.close(writing)
    reader.close()


def test_the_newest_view_is_shown_once_and_nothing_is_no_view(pair: Pair) -> None:
    life, reader = pair
    assert (reader.newest(), reader.heard_at) == (None, 0.0)
    life.show()
    assert (reader.newest(), reader.heard_at > 0.0) == (None, True)
    for number in range(3):
        life.show({"number": number})
    assert [reader.newest(), reader.newest()] == [{"number": 2}, None]


@pytest.mark.parametrize("length", [100, 5_000, 100_000])
def test_who_does_not_read_holds_nobody_up_and_reads_whole_views_later(pair: Pair, length: int) -> None:
    """However little room there is: a view that does not fit is written on as there is room again."""
    life, reader = pair
    for number in range(700):
        life.show({"number": number, "text": "x" * length})
    found = [reader.newest()]
    for _ in range(5):
        life.show()
        found.append(reader.newest())
    life.show({"number": -1})
    views = [view["number"] for view in [*found, reader.newest()] if view is not None]
    assert len(views) >= 2
    assert views[-1] == -1


def test_a_run_that_nobody_sees_any_more_is_to_stop(pair: Pair) -> None:
    life, reader = pair
    life.tick()
    reader.close()
    life.show()
    assert reader.newest() is None
    with pytest.raises(StopRequested):
        life.tick()


def test_a_user_may_close_the_pipe() -> None:
    life = SoleProcess(_views=9_999)
    life.show({})
    assert not life.stopping.is_set()


def test_a_loop_has_its_time_from_the_order_to_stop_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(sole_process, "time", SimpleNamespace(monotonic=lambda: now))
    life = SoleProcess()
    limits: list[float] = []
    for now in (100.0, 110.0, 111.0, 115.9, 116.0, 117.0):
        if now == 111.0:
            life.stop()
        limits.append(life._look(5.0))
    assert limits == [float("inf")] * 3 + [5.0] * 3


LOOPS = """
import ctypes, json, os, sys, threading, time
from protocol.config.run import parse_run
from workers.runtime import watchdog
from workers.runtime.sole_process import SoleProcess

watchdog._TICK = 0.05
life = SoleProcess()
def linger(seconds=600):
    ctypes.CDLL(None).usleep(int(seconds * 1e6)) and linger(seconds)
def turns():
    while not life.stopping.is_set(): life.tick(); time.sleep(0.01)
def keeps(): life.tick(); life.rescue = lambda: print("kept", flush=True); linger()
def stops(): threading.Timer(0.3, life.stop).start(); turns()
def lasts(): life.tick(); threading.Timer(0.3, life.stop).start(); linger()
def unseen():  # no signal reaches a thread that a library keeps
    reading, life._views = os.pipe(); os.close(reading); lasts_on()
def lasts_on(): life.tick(); linger()
def rests(): life.tick(); life.rest(); life.stop(); time.sleep(1.5)
def prints():
    reading, writing = os.pipe(); os.dup2(writing, 1); life.take_stdout()
    print("of the world", flush=True); os.system("echo of its child"); life.show({"number": 1})
    os.write(2, b"shown %d " % os.get_blocking(life._views) + os.read(reading, 99))

LIMITS = {keeps: (0.3, 600), stops: (600, 600), lasts: (600, 1), unseen: (600, 1), rests: (0.3, 0.5), prints: (600, 1)}
for command, (stall, stop) in LIMITS.items():
    sys.stdout.write(f"; {command.__name__} "), sys.stdout.flush()
    if not (pid := os.fork()):
        life.watch(parse_run({"stall_timeout": stall, "learner_timeout": stop}))
        try: command()
        finally: os._exit(0)
    sys.stdout.write(str(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
"""


def test_a_loop_that_hangs_or_does_not_stop_is_ended_with_its_place_and_no_other() -> None:
    done = subprocess.run([sys.executable, "-c", LOOPS], cwd=ROOT, capture_output=True, text=True, check=True)
    hung = str(Timeout.exit_code)
    assert {name: said for name, *said in (part.split() for part in done.stdout.split(";")[1:])} == {
        "keeps": ["kept", hung],
        "stops": ["0"],
        "lasts": [hung],
        "unseen": [hung],
        "rests": ["0"],
        "prints": ["0"],
    }
    said = [line for line in done.stderr.splitlines() if line.startswith("sequential: ")]
    assert [("linger" in line, "stall_timeout" in line) for line in said] == [
        (True, True),
        (True, False),
        (True, False),
    ]
    assert done.stderr.endswith('of the world\nof its child\nshown 0 {"number": 1}\n')
