"""A run in one process, as its supervisor sees it: what it shows, how it ends, that it is never waited for in vain."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launch.local import supervisor
from launch.local.process import start_process
from launch.local.supervisor import RunFailed, RunOutcome, train_sequential
from protocol.config.run import parse_run
from tests.faults import raises
from tests.tools import ROOT

STAND_IN = """
import ctypes, faulthandler, os, pathlib, signal, sys, threading, time

faulthandler.register(signal.SIGUSR1)
folder, what = pathlib.Path(sys.argv[1]), sys.argv[2]

def trained(complete=True):
    (folder / "summary.json").write_text('{"complete": %s}' % str(complete).lower())
    sys.stderr.write("a world's dots ...")

def says(code, words="ended in order"):
    print("sequential:", words, file=sys.stderr, flush=True)
    os._exit(code)

def waits():
    for words in ("waits: a", "no more", "waits: b"):
        print("sequential:", words, file=sys.stderr, flush=True)
        time.sleep(0.1)

def hold():
    ctypes.PyDLL(None).sleep(600)

def linger():
    while True:
        ctypes.CDLL(None).sleep(600)

def kept_by_a_library():
    begins(signal.SIG_IGN)
    os.write(1, b'ber": 3}\\n')
    threading.Thread(target=looks, daemon=True).start()
    linger()

def looks():
    try:
        while os.write(1, b"\\n"):
            time.sleep(0.02)
    except BrokenPipeError:
        rescued()

def rescued(*_):
    trained(False)
    sys.stderr.write("\\n")
    says(4, "it hangs")

def begins(handler=signal.SIG_DFL):
    signal.signal(signal.SIGTERM, handler)
    sys.stdout.write('\\n{"number": 1}\\n{"number": 2}\\n\\n{"num')
    sys.stdout.flush()

WAYS = {
    "complete": lambda: (begins(), trained(), says(0)),
    "stopped": lambda: (trained(False), says(9)),
    "complete and slow": lambda: (begins(), waits(), trained(), says(0)),
    "nothing made": lambda: says(0),
    "0 past Python": lambda: (trained(), ctypes.CDLL(None)._exit(0)),
    "0 before all": lambda: ctypes.CDLL(None)._exit(0),
    "9 past Python": lambda: (trained(False), ctypes.CDLL(None)._exit(9)),
    "hangs": rescued,
    "silent": lambda: (begins(), hold()),
    "silent and stopped": lambda: (begins(), os.kill(os.getpid(), signal.SIGSTOP)),
    "interrupted": lambda: (begins(rescued), time.sleep(600)),
    "interrupted in a library": kept_by_a_library,
    "interrupted early": lambda: (begins(), time.sleep(600)),
    "interrupted and deaf": lambda: (begins(signal.SIG_IGN), linger()),
    "interrupted twice": lambda: (begins(signal.SIG_IGN), linger()),
}
WAYS[what]()
"""


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: list[str]) -> Any:
    """Trains with a stand-in for the process; interrupted as soon as it shows anything, if it is to be."""
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    folder = tmp_path / "run"

    def trained(what: str) -> tuple[RunOutcome, list[dict[str, Any]]]:
        shown: list[dict[str, Any]] = []
        twice = what.endswith("twice")
        run = parse_run({"stall_timeout": 0.5, "learner_timeout": 600 if twice else 1})

        def show(view: Any) -> None:
            shown.append(dict(view))
            if what.startswith("silent"):
                monkeypatch.setattr(supervisor, "_START_SECONDS", 0.5)
            if what.startswith("interrupted"):
                os.kill(os.getpid(), signal.SIGINT)
            if twice:
                os.kill(os.getpid(), signal.SIGINT)

        monkeypatch.setattr(
            supervisor,
            "start_process",
            lambda role, _, *more, **so: start_process(role, ["stand_in", str(folder), what], *more, **so),
        )
        return train_sequential(run, folder, show, told.append), shown

    return trained


@pytest.mark.parametrize(("what", "complete", "last"), [("complete", True, [{"number": 2}]), ("stopped", False, [])])
def test_who_says_that_it_ended_in_order_did(train: Any, what: str, complete: bool, last: list[Any]) -> None:
    """Whatever the world wrote before it in the same line; what is shown is the newest view, as soon as it is whole."""
    outcome, shown = train(what)
    assert (outcome, shown[-1:]) == (RunOutcome(complete, {"complete": complete}), last)


def test_what_is_waited_for_in_the_users_code_is_told_as_it_comes(train: Any, told: list[str]) -> None:
    train("complete and slow")
    assert told == ["sequential: a", "sequential: b"]


@pytest.mark.parametrize(
    ("what", "code", "kept"),
    [
        ("nothing made", 0, False),
        ("0 past Python", 0, True),
        ("0 before all", 0, False),
        ("9 past Python", 9, True),
        ("hangs", 4, True),
    ],
)
def test_who_does_not_has_failed_and_what_it_has_kept_is_told(train: Any, what: str, code: int, kept: bool) -> None:
    with raises(RunFailed, "sequential_run_failed") as caught:
        train(what)
    failed: Any = caught.value
    assert failed.facts["reason"].startswith(f"ended with exit code {code}: ")
    assert bool(failed.facts["kept"]) == kept


@pytest.mark.parametrize(("what", "at"), [("silent", "in hold ("), ("silent and stopped", "")])
def test_who_gives_no_sign_of_life_is_killed_and_says_where_it_is(train: Any, what: str, at: str) -> None:
    """As where a library keeps the interpreter to itself."""
    with raises(RunFailed, "sequential_run_failed") as caught:
        train(what)
    assert at in str(caught.value)
    assert ("stand_in.py:" in str(caught.value)) == bool(at)


@pytest.mark.parametrize("what", ["interrupted", "interrupted in a library"])
def test_an_interrupted_run_that_does_not_end_in_order_is_stopped_with_what_it_has_kept(
    train: Any, told: list[str], what: str
) -> None:
    """Though no signal reaches a main thread that a library keeps."""
    assert train(what)[0] == RunOutcome(False, {"complete": False})
    assert "it hangs" in told[-1]


def test_one_that_had_not_begun_says_so(train: Any) -> None:
    with raises(RunFailed, "run_interrupted_early", reason=""):
        train("interrupted early")


@pytest.mark.parametrize("what", ["interrupted and deaf", "interrupted twice"])
def test_one_that_hears_nothing_is_killed_in_time_or_at_once_and_says_where_it_is(train: Any, what: str) -> None:
    with raises(RunFailed, "sequential_run_failed") as caught:
        train(what)
    assert "in linger (" in str(caught.value)
