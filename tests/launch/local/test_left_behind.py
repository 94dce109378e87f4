"""A worker that its supervisor has started: whatever ends it, nothing that it has begun outlives it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launch.local.process import Process, end_all, start_process
from tests.flows.runs import alive
from tests.waiting import until

WORKER = """
import ctypes, os, pathlib, signal, sys, time

if not (child := os.fork()):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
pathlib.Path("child").write_text(f"{child} ")
FAULTS = {
    "os._exit": lambda: os._exit(3),
    "segfault": lambda: ctypes.string_at(0),
    "hang": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), time.sleep(600)),
}
FAULTS[sys.argv[1]]()
"""


@pytest.mark.parametrize("fault", ["os._exit", "segfault", "hang"])
def test_what_a_worker_has_begun_ends_with_it_whatever_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    (tmp_path / "worker_of_this_test.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))
    process: Process = start_process("worker", ["worker_of_this_test", fault], tmp_path / "out")
    child = tmp_path / "child"
    until(lambda: child.exists() and child.read_text().endswith(" "))
    if fault != "hang":
        until(lambda: process.code is not None)
    end_all([process], 0.1)
    until(lambda: not alive([int(child.read_text())]))
