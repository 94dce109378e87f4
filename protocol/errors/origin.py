"""Where in a user's code something went wrong: of an exception, or of a process that ended without one.

In flows: an exception; what a process wrote as it crashed. Out flows: facts for an error, with a traceback that shows
the user's frames and folds ours; the function, file and line.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Sequence
from dis import opmap
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException, walk_stack, walk_tb
from types import FrameType
from typing import Any, NamedTuple

_HOME = Path(__file__).resolve().parents[2]
_OURS = tuple(f"{_HOME / name}{os.sep}" for name in ("launch", "protocol", "rookery", "workers"))
_WORLDS = f"{_HOME / 'workers' / 'environments'}{os.sep}"
_STDLIB = tuple(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "platstdlib"))
_FATAL = re.compile(r"^(?:Fatal Python error: (?P<fatal>.+)|(?P<exit>os\._exit\(.*\)))$", re.MULTILINE)
_STACK = re.compile(r"^(?:Current thread .*|Stack) \(most recent call first\):\n((?:  .*\n)*)", re.MULTILINE)
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


class Told(Exception):
    """The whole traceback of another process, as the cause of the error that it told."""


class Crash(NamedTuple):
    """How a process ended that could raise nothing: `what`, and where it was, as in ` in step (bad.py:27)`."""

    what: str
    at: str


def is_users(fault: BaseException) -> bool:
    """Whether the code that was called raised it: what Python makes of Ctrl-C, wherever it is, is nobody's."""
    trace = fault.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return not isinstance(fault, KeyboardInterrupt) or (
        trace is not None and trace.tb_frame.f_code.co_code[trace.tb_lasti] == opmap["RAISE_VARARGS"]
    )


def one_line(fault: BaseException) -> str:
    """An exception in one line."""
    try:
        said = " ".join(str(fault).split())
    except Exception:
        said = "its text cannot be made"
    return f"{type(fault).__name__}: {said}" if said else type(fault).__name__


def shortened(said: object, most: int) -> str:
    """Its text in one line of at most so many characters."""
    text = " ".join(str(said).split())
    return text if len(text) <= most else text[: most - 3] + "..."


def blame(fault: BaseException) -> dict[str, Any]:
    """Facts of what a user's code raised: `reason` in one line; `at`, `function`, `file` and `line` of its innermost
    frame, empty where none is the user's; `traceback`, with ours folded."""
    last = _innermost(StackSummary.extract(walk_tb(fault.__traceback__), lookup_lines=False))
    function, file, line = (last.name, last.filename, last.lineno) if last is not None else ("", "", None)
    if isinstance(fault, SyntaxError) and fault.filename:
        function, file, line = "", fault.filename, fault.lineno
    shown = TracebackException.from_exception(fault, compact=True)
    _fold(shown, set())
    return {
        "reason": one_line(fault),
        "at": f" in {_place(function, file, line)}" if file else "",
        "function": function,
        "file": file,
        "line": line,
        "traceback": "".join(shown.format()),
    }


def place_of(frame: FrameType) -> str:
    """Where a thread is that has this innermost frame: in the user's code, if there is any of it."""
    stack = StackSummary.extract(walk_stack(frame), lookup_lines=False)
    last = _innermost(stack[::-1]) or stack[0]
    return _place(last.name, last.filename, last.lineno)


def awaited_in(frame: FrameType | None) -> str:
    """Which function of the user a thread with this innermost frame waits for, or of a world's library that we have
    called; empty where it is in what we do ourselves."""
    called = ""
    while frame is not None:
        file = frame.f_code.co_filename
        owner = _owner(file)
        if owner == "user":
            return _place(frame.f_code.co_name, file, frame.f_lineno)
        if owner == "rookery":
            return called if file.startswith(_WORLDS) else ""
        if owner != "python":
            called = called or _place(frame.f_code.co_name, file, frame.f_lineno)
        frame = frame.f_back
    return ""


def crash_in(said: str) -> Crash | None:
    """The last crash that is told in what a process wrote: by `faulthandler`, or of an `os._exit`."""
    ends = [*_FATAL.finditer(said)]
    if not ends:
        return None
    return Crash(ends[-1]["fatal"] or ends[-1]["exit"], stack_in(said[ends[-1].end() :]))


def stack_in(said: str) -> str:
    """Where the first stack is that `faulthandler` wrote into this, as in ` in step (bad.py:27)`; empty without one."""
    stack = _STACK.search(said)
    frames = [*_FRAME.finditer(stack[1])][::-1] if stack is not None else []
    last = _innermost(
        [FrameSummary(one["file"], int(one["line"]), one["function"], lookup_line=False) for one in frames]
    )
    return "" if last is None else f" in {_place(last.name, last.filename, last.lineno)}"


def ended(role: str) -> str:
    """What a worker says last that ended in order."""
    return f"{role}: ended in order"


def waiting(role: str, said: str = "") -> str:
    """What a worker says that waits long for code of the user; how such a line begins, without `said`."""
    return f"{role}: waits: {said}"


def is_ours(file: str) -> bool:
    """Whether a frame's file is Rookery's."""
    return _owner(file) == "rookery"


def _owner(file: str) -> str:
    """rookery, python (its own modules), the name of a package that is installed, or user."""
    if file.startswith(_OURS):
        return "rookery"
    parts = Path(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts[:-1]:
            return parts[parts.index(folder) + 1].removesuffix(".py")
    return "python" if file.startswith(("<frozen ", *_STDLIB)) else "user"


def _innermost(frames: Sequence[FrameSummary]) -> FrameSummary | None:
    """The user's last one, of frames from the outermost to the innermost; a library's where there is no such; none
    where all are ours."""
    owners = [(_owner(frame.filename), frame) for frame in frames]
    users = [frame for owner, frame in owners if owner == "user"]
    others = [frame for owner, frame in owners if owner != "rookery" and not frame.filename.startswith("<frozen ")]
    return next(iter((users or others)[::-1]), None)


def _fold(shown: TracebackException, seen: set[int]) -> None:
    """Leaves out our frames, and those of libraries through which we called the user's; in the exceptions that led to
    this one, too."""
    if id(shown) in seen:
        return
    seen.add(id(shown))
    files = [frame.filename for frame in shown.stack]
    owners = [*map(_owner, files)]
    in_a_file = shown.exc_type is not None and issubclass(shown.exc_type, SyntaxError)  # which tells its place itself
    first = len(owners) if in_a_file else owners.index("user") if "user" in owners else 0
    folded = [
        owner == "rookery" or file.startswith("<frozen ") or (index < first and owner != "user")
        for index, (owner, file) in enumerate(zip(owners, files, strict=True))
    ]
    if any(folded) and (in_a_file or not all(folded)):
        kept = [frame for frame, away in zip(shown.stack, folded, strict=True) if not away]
        names = [*dict.fromkeys(owner for owner, away in zip(owners, folded, strict=True) if away)]
        shown.stack = _Folded(kept)
        shown.stack.note = f"  … {sum(folded)} frame{'s' * (sum(folded) > 1)} of {', '.join(names)}\n"
    for other in (shown.__cause__, shown.__context__, *(shown.exceptions or ())):
        if other is not None:
            _fold(other, seen)


class _Folded(StackSummary):
    """A stack of which some frames are left out."""

    note = ""

    def __bool__(self) -> bool:
        """Shown as a stack even where no frame is left, as of a file that cannot be compiled."""
        return True

    def format(self) -> list[str]:
        """What is left out before the frames."""
        return [self.note, *super().format()]


def _place(function: str, file: str, line: int | None) -> str:
    here = f"{os.getcwd()}{os.sep}"
    spot = f"{file.removeprefix(here)}:{line}"
    return f"{function} ({spot})" if function else spot
