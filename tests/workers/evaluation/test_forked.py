"""A forked process: what it tells, how it ends, and that it ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import kinds_in
from tests.waiting import PATIENCE, until
from workers.evaluation import forked
from workers.evaluation.forked import Forked, Tell, apart

__all__ = []


def raises(_: Tell) -> int:
    raise ValueError("it broke")


def read_nothing(_: Tell) -> int:
    ctypes.string_at(0)
    return 0


def group_lives(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("body", "fate"),
    [
        (lambda _: 0, "it ended with exit code 0"),
        (lambda _: 7, "it ended with exit code 7"),
        (raises, "it ended with exit code 1"),
        (lambda _: sys.exit("no"), "it ended with exit code 1"),
        (lambda _: os._exit(3), "it ended with exit code 3 in <lambda> ({})"),
        (read_nothing, "it was killed by SIGSEGV in read_nothing ({})"),
        (lambda _: os.abort(), "it was killed by SIGABRT in <lambda> ({})"),
    ],
)
def test_how_it_ends_is_told_and_ends_nobody_else(body: Callable[[Tell], int], fate: str) -> None:
    def tells(tell: Tell) -> int:
        tell("begun")
        return body(tell)

    forked = Forked(tells)
    try:
        assert forked.lines(PATIENCE) == ["begun"]
        assert forked.lines(PATIENCE) == []
        place = r"tests/workers/evaluation/test_forked\.py:\d+"
        assert (forked.over, re.sub(place, "{}", forked.fate)) == (True, fate)
    finally:
        forked.close()


def test_more_than_a_pipe_holds_is_told_whole() -> None:
    def tells(tell: Tell) -> int:
        tell("x" * 1_000_000)
        return 0

    forked = Forked(tells)
    try:
        assert [len(line) for line in forked.lines(PATIENCE)] == [1_000_000]
    finally:
        forked.close()


def start_another(tell: Tell) -> None:
    """Which is left behind in the group."""
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(PATIENCE)
        os._exit(0)
    tell("begun")


def test_one_that_ends_by_itself_leaves_nobody_behind() -> None:
    def ends(tell: Tell) -> int:
        start_another(tell)
        return 0

    forked = Forked(ends)
    until(lambda: forked.over)
    forked.close()
    until(lambda: not group_lives(forked.pid))
    assert forked.code == 0


def test_one_that_is_closed_may_close_what_it_has_made(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def closes(tell: Tell) -> int:
        try:
            tell("begun")
            time.sleep(PATIENCE)
        finally:
            (tmp_path / "closed").touch()
        return 0

    forked = Forked(closes)
    assert forked.lines(PATIENCE) == ["begun"]
    forked.close()
    assert (tmp_path / "closed").exists()
    assert capfd.readouterr().err == ""


def test_one_that_hangs_is_killed_with_what_it_started() -> None:
    def hangs(tell: Tell) -> int:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        start_another(tell)
        time.sleep(PATIENCE)
        return 0

    forked = Forked(hangs)
    assert forked.lines(PATIENCE) == ["begun"]
    until(lambda: forked.fate.startswith("it did not end in hangs ("))
    assert not forked.over
    forked.close()
    until(lambda: not group_lives(forked.pid))


def spin(_: Tell) -> int:
    while True:
        pass


def hold_the_interpreter(_: Tell) -> int:
    return len(re.findall(r"(a+)+$", "a" * 64 + "b"))


def wait_for_a_thread(_: Tell) -> int:
    threading.Event().wait(PATIENCE)
    return 0


@pytest.mark.parametrize("body", [spin, hold_the_interpreter, wait_for_a_thread])
def test_where_one_is_that_does_not_end_is_known_at_any_time(body: Callable[[Tell], int]) -> None:
    forked = Forked(body)
    try:
        until(lambda: forked.at().startswith(f" in {body.__name__} (tests/workers/evaluation/test_forked.py:"))
    finally:
        forked.close(0.0)
    assert forked.at() == ""
    assert forked.code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("command", "code", "kinds"),
    [
        (lambda: None, 0, []),
        (lambda: sys.exit(5), 5, []),
        (lambda: read_nothing(print), 7, ["playing_crashed"]),
        (lambda: os._exit(5), 7, ["playing_crashed"]),
        (lambda: ctypes.CDLL(None)._exit(0), 7, ["playing_crashed"]),
        (lambda: ctypes.CDLL(None)._exit(5), 7, ["playing_crashed"]),
    ],
)
def test_a_command_ends_as_its_other_process_does_or_says_what_ended_that(
    command: Callable[[], object], code: int, kinds: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        apart(command)
    assert (ended.value.code, kinds_in(capfd.readouterr().err)) == (code, kinds)


def test_one_that_is_told_to_end_just_as_it_ends_does_not_go_on_as_its_maker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order comes as the last function is entered."""
    monkeypatch.setattr(forked, "leave", forked._end)
    try:
        one = Forked(lambda tell: 0)
    except SystemExit:
        os._exit(77)  # the other process
    until(lambda: one.over)
    assert one.code == 0
    one.close()
