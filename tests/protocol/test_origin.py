"""Whose a frame is, and which of them is named: the user's innermost one, a library's where there is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors.origin import Crash, blame, crash_in
from tests.tools import ROOT

OURS = f"{ROOT}/workers/actor.py"
LIBRARY = "/opt/some/lib/python3/dist-packages/torch/nn/functional.py"


def dump(*frames: tuple[str, str]) -> str:
    """What `faulthandler` writes of a thread with these (function, file), the innermost first, beside another one."""
    lines = [f'  File "{file}", line {10 + i} in {function}\n' for i, (function, file) in enumerate(frames)]
    other = 'Thread 0x01 (most recent call first):\n  File "/home/me/other.py", line 1 in other\n\n'
    return f"Fatal Python error: Bus error\n\n{other}Current thread 0x02 (most recent call first):\n{''.join(lines)}\n"


@pytest.mark.parametrize(
    ("frames", "at"),
    [
        ([("copy", LIBRARY), ("look", "/home/me/bad.py"), ("step", "/home/me/bad.py"), ("_act", OURS)], "look"),
        ([("linear", LIBRARY), ("_act", OURS), ("_run_code", "<frozen runpy>")], "linear"),
        ([("_act", OURS), ("main", OURS)], ""),
        ([], ""),
    ],
)
def test_a_crash_is_told_with_the_users_innermost_function(frames: list[tuple[str, str]], at: str) -> None:
    crash = crash_in(f"a line of a log\n{dump(*frames)}")
    assert crash is not None
    assert (crash.what, crash.at.partition(" (")[0]) == ("Bus error", f" in {at}" if at else "")


def test_of_several_crashes_the_last_is_told_and_stacks_alone_are_none() -> None:
    earlier = "os._exit(3)\nStack (most recent call first):\n" + '  File "/home/me/bad.py", line 4 in leave\n'
    assert crash_in(earlier) == Crash("os._exit(3)", " in leave (/home/me/bad.py:4)")
    assert crash_in(earlier + dump(("look", "/home/me/bad.py"))) == Crash("Bus error", " in look (/home/me/bad.py:10)")
    assert crash_in(earlier.partition("\n")[2]) is None
    assert crash_in("event=left error=os._exit(3) was there\n") is None


def test_what_only_a_library_raises_is_told_with_the_librarys_place() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    facts = blame(caught.value.with_traceback(caught.tb.tb_next))
    assert Path(facts["file"]).parent.name == "json"
    assert facts["reason"].startswith("JSONDecodeError: ")
