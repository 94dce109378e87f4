"""What becomes of those that died: its traceback, a line, a pause, another start."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from launch.local import process as process_module
from launch.local.process import Process, start_process
from launch.local.restarts import RestartManager, RunFailed
from tests.faults import kinds_in, raises
from tests.tools import ROOT

CRASHES = (
    "import sys\nprint('warming up', file=sys.stderr)\n"
    "def inner():\n    raise KeyError('the cause')\n"
    "try:\n    inner()\nexcept KeyError as fault:\n    raise ValueError('what came of it') from fault\n"
)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "crashes.py").write_text(CRASHES)
    (tmp_path / "reads.py").write_text(
        "import faulthandler, os, signal\nfaulthandler.enable()\nos.kill(os.getpid(), signal.SIGBUS)\n"
    )
    (tmp_path / "sends.py").write_text(
        "import faulthandler, os\nfaulthandler.enable()\nos.write(2, b'Bad address (src/tcp.cpp:227)\\n')\nos.abort()\n"
    )
    (tmp_path / "gives_up.py").write_text(
        "import sys\nprint(f'{sys.argv[1]}: the sentence', file=sys.stderr)\nsys.exit(1)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def looked_after(revival: RestartManager, process: Process) -> None:
    """Until it has ended and was taken note of, or started again."""
    process.popen.wait(60)
    revival.poll(process, stopping=False)


def test_a_crashed_worker_shows_its_traceback_and_is_started_again_but_once_at_the_same_place_U13(
    scripts: Path,
) -> None:
    told: list[str] = []
    revival = RestartManager(told.append)
    process = start_process("actor", ["crashes"], scripts / "logs" / "a.out", restarts=5)
    looked_after(revival, process)
    assert f"(pid {process.popen.pid}) said:\nTraceback (most recent call last):" in told[0]
    assert "KeyError: 'the cause'" in told[0]
    assert told[0].endswith("ValueError: what came of it")
    assert "warming up" not in told[0]
    assert told[1].endswith("ended with exit code 1: ValueError: what came of it; starting it again in 0.25 s")
    time.sleep(max(0.0, process.again_at - time.monotonic()))
    revival.poll(process, stopping=False)
    assert process.budget.again == 1
    why = "ended with exit code 1: ValueError: what came of it"
    facts = {"peer": "actor", "reason": why, "again": " again, at the same place", "file": process.output}
    with raises(RunFailed, "worker_lost", **facts):
        looked_after(revival, process)
    assert len(told) == 2, "the same traceback is shown once"


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("os._exit(3)", "ended with exit code 3: os._exit(3) in step (ends.py:5)"),
        ("ctypes.string_at(0)", "was killed by signal 11 (SIGSEGV) in step (ends.py:5)"),
        ("os.abort()", "was killed by signal 6 (SIGABRT) in step (ends.py:5)"),
        ("ctypes.CDLL(None)._exit(3)", f"ended with exit code 3: {process_module._SPEECHLESS}"),
    ],
)
def test_who_can_say_nothing_is_told_with_the_place_and_no_line_of_its_log(scripts: Path, ends: str, why: str) -> None:
    (scripts / "ends.py").write_text(
        "import ctypes, os, sys\nfrom workers.runtime.last_words import watch_user_code\nwatch_user_code()\n"
        f"def step():\n    {ends}\n"
        "print('2026 - actor-0 - WARNING - event=not_sent type=join reason=coordinator_away', file=sys.stderr)\n"
        "sys.stderr.flush()\nstep()\n"
    )
    process = start_process("actor", ["ends"], scripts / "logs" / "ends.out")
    process.popen.wait(60)
    assert process.why() == why
    assert bool(process.place()) == ("ends.py" in why)


@pytest.mark.parametrize(("what", "how"), [("reads", "signal 7 (SIGBUS)"), ("sends", "signal 6 (SIGABRT)")])
def test_a_worker_whose_shared_memory_was_cut_short_is_started_again_and_that_is_said(
    scripts: Path, what: str, how: str
) -> None:
    """Twice as well: whoever did that was not at the place where it died."""
    told: list[str] = []
    process = start_process("learner", [what], scripts / "logs" / "short.out", restarts=2)
    revival = RestartManager(told.append)
    for again in (1, 2):
        looked_after(revival, process)
        assert f"was killed by {how}" in told[-1]
        assert ": shared memory that it had mapped was made shorter" in told[-1]
        time.sleep(max(0.0, process.again_at - time.monotonic()))
        revival.poll(process, stopping=False)
        assert process.budget.again == again
    process.popen.wait(60)


def test_a_run_goes_on_without_an_evaluation_that_cannot_be_kept_alive_and_says_so(scripts: Path) -> None:
    told: list[str] = []
    process = start_process("evaluator", ["gives_up", "evaluator"], scripts / "logs" / "e.out")
    revival = RestartManager(told.append)
    looked_after(revival, process)
    assert process.done
    (said,) = told
    assert said.startswith("evaluator ended with exit code 1: the sentence again, after 0 restarts; the run")
    revival.poll(process, stopping=False)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("ends", "done"),
    [
        ("tell_end('actor')", True),
        ("ctypes.CDLL(None)._exit(0)", False),
        ("os._exit(0)", False),
        ("tell_end('learner')", False),
        ("sys.exit(0)", False),
        ("tell_end('actor'); sys.exit(1)", False),
    ],
)
def test_who_ends_with_0_and_did_not_say_that_its_work_was_done_is_started_again(
    scripts: Path, ends: str, done: bool
) -> None:
    (scripts / "ends.py").write_text(
        "import ctypes, os, sys\nfrom workers.runtime.last_words import tell_end, watch_user_code\n"
        f"watch_user_code()\n{ends}\n"
    )
    output = scripts / "ends.out"
    output.write_text("actor: ended in order\n")  # in an earlier life
    process = start_process("actor", ["ends"], output, restarts=1)
    looked_after(RestartManager(lambda _: None), process)
    assert process.done == done
    assert bool(process.again_at) != done


def test_who_is_refused_fails_the_run_unless_nothing_is_left_for_it_to_do(scripts: Path) -> None:
    told: list[str] = []
    for kind in ("nothing_left_to_do", "run_has_ended", "identity_in_use"):
        (scripts / f"{kind}.py").write_text(f"import sys\nprint('actor: why [{kind}]', file=sys.stderr)\nsys.exit(3)\n")
    *done, refused = (
        start_process("actor", [kind], scripts / "logs" / f"{kind}.out", restarts=1)
        for kind in ("nothing_left_to_do", "run_has_ended", "identity_in_use")
    )
    for one in done:
        looked_after(RestartManager(told.append), one)
        assert one.done
    why = "ended with exit code 3: why [identity_in_use]"
    with raises(RunFailed, "worker_lost", peer="actor", reason=why, again="", file=refused.output):
        looked_after(RestartManager(told.append), refused)
    assert told == []


def test_who_finds_no_room_to_say_so_has_its_exit_code_put_into_words(scripts: Path) -> None:
    for name, said in (
        ("nothing", ""),
        ("half", "learner: cannot wr"),
        ("all", "learner: cannot write: full [disk_full]"),
    ):
        (scripts / f"{name}.py").write_text(f"import sys\nsys.stderr.write({said!r})\nsys.exit(10)\n")
        process = start_process("learner", [name], scripts / "logs" / f"{name}.out")
        process.popen.wait(60)
        kinds = ["disk_full"] if name == "all" else ["output_not_writable"]
        assert kinds_in(process.why()) == kinds
        assert "learner:" not in process.why()


def test_the_traceback_of_a_group_of_exceptions_is_one_too(scripts: Path) -> None:
    (scripts / "group.py").write_text(
        "import sys, traceback\ntry:\n    raise ExceptionGroup('both', [KeyError(1), ValueError(2)])\n"
        "except ExceptionGroup:\n    traceback.print_exc()\nprint('actor: it is said', file=sys.stderr)\nsys.exit(7)\n"
    )
    process = start_process("actor", ["group"], scripts / "logs" / "group.out")
    process.popen.wait(60)
    assert {"KeyError: 1", "ValueError: 2"} <= {line.strip("| ") for line in process.traceback().splitlines()}
    assert "it is said" not in process.traceback()


def test_nobody_is_started_again_while_the_run_ends(scripts: Path) -> None:
    process = start_process("actor", ["crashes"], scripts / "a.out", restarts=1)
    process.popen.wait(60)
    RestartManager(print).poll(process, stopping=True)
    assert process.again_at == 0.0


def test_the_words_of_an_earlier_life_are_not_those_of_this_one(scripts: Path) -> None:
    output = scripts / "a.out"
    output.write_text("Traceback (most recent call last):\n  long ago\nOldError: forgotten\n")
    process = start_process("actor", ["gives_up", "actor"], output)
    process.popen.wait(60)
    assert process.last_words() == "actor: the sentence"
    assert process.traceback() == ""


def test_in_lockstep_all_workers_are_started_again_with_the_one_that_died_L1(scripts: Path) -> None:
    (scripts / "waits.py").write_text("import time\ntime.sleep(600)\n")
    told: list[str] = []
    revival = RestartManager(told.append, together=True)
    workers = [start_process(role, ["waits"], scripts / "logs" / role, restarts=1) for role in ("actor", "learner")]
    coordinator = start_process("coordinator", ["waits"], scripts / "logs" / "c", restarts=1)
    every = [*workers, coordinator]
    pids = [process.popen.pid for process in every]
    try:
        workers[0].popen.kill()
        looked_after(revival, workers[0])
        revival.restart_together(every, "running")
        assert [process.code for process in every] == [-9, -9, None]
        time.sleep(max(0.0, workers[0].again_at - time.monotonic()))
        for process in every:
            revival.poll(process, stopping=False)
        assert [process.code for process in every] == [None, None, None]
        assert [a == b.popen.pid for a, b in zip(pids, every, strict=True)] == [False, False, True]
        assert len(told) == 1
        workers[1].popen.kill()
        looked_after(revival, workers[1])
        with raises(RunFailed, "lockstep_worker_lost_late"):
            revival.restart_together(every, "learners_draining")
    finally:
        for process in every:
            process.popen.kill()
            process.popen.wait()
