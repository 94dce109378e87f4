"""Processes are started with what they need, and ended whether they want to or not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from launch.local.process import Process, end_all, start_process
from tests.waiting import until

STUBBORN = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(60)\n"
WILLING = (
    "import sys, signal, time\nsignal.signal(15, lambda *_: sys.exit(5))\nprint('ready', flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that can be started like workers."""
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    (tmp_path / "willing.py").write_text(WILLING)
    (tmp_path / "speaks.py").write_text(
        "import os, sys\n"
        "print(os.environ['ROOKERY_PARENT'], os.environ['OMP_NUM_THREADS'], os.getsid(0) == os.getpid())\n"
        "print('speaks: a word', file=sys.stderr)\n"
        "print('the last word', file=sys.stderr)\nsys.exit(4)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def ready(process: Process) -> None:
    """Waits for its first word."""
    until(lambda: "ready" in process.last_words(), what="it has started")


def test_one_that_ignores_sigterm_is_killed_after_the_deadline_G4(scripts: Path) -> None:
    stubborn = start_process("stubborn", ["stubborn"], scripts / "logs" / "a.out")
    willing = start_process("willing", ["willing"], scripts / "logs" / "b.out")
    ready(stubborn)
    ready(willing)
    begun = time.monotonic()
    end_all([stubborn, willing], seconds=3)
    assert 2.9 < time.monotonic() - begun < 60
    assert (stubborn.code, willing.code) == (-signal.SIGKILL, 5)


def test_ending_twice_and_ending_the_dead_is_no_error_G4(scripts: Path) -> None:
    process = start_process("willing", ["willing"], scripts / "a.out")
    ready(process)
    end_all([process], seconds=60)
    end_all([process], seconds=60)
    assert process.code == 5


def test_a_worker_knows_its_supervisor_and_gets_one_thread_and_a_session_of_its_own_A7(scripts: Path) -> None:
    process = start_process("speaks", ["speaks"], scripts / "a.out")
    assert process.popen.wait(60) == 4
    own = {"speaks: a word", "the last word", f"{os.getpid()} 1 True"}
    assert set(process.last_words(3).splitlines()) == own
    assert process.own_words() == "a word"


def test_last_words_of_one_that_said_nothing_are_empty(tmp_path: Path) -> None:
    process = start_process("none", ["this_module_is_not_there"], tmp_path / "a.out")
    process.popen.wait(60)
    assert "No module named" in process.last_words(1)
    process.output.unlink()
    assert process.last_words() == process.own_words() == ""
