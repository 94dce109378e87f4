"""Reads the fenced blocks of a document and what its author says about testing them.

A block of kind `bash` or `python` is run as it stands, except:

* `<!-- test-as: COMMAND -->` before it: COMMAND runs instead (the same with fewer steps, say);
* ```` ```bash no-test ```` with `<!-- no-test: REASON -->` before it: it is not run;
* `<!-- deadline: SECONDS -->` before it: it may take this long.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.tools import ROOT

__all__ = ["DEADLINE", "Block", "blocks", "clone", "environment", "guide"]

DEADLINE = 300.0
"""Seconds a block may take unless it says otherwise."""
EXECUTABLE = ("bash", "python")
DISGUISED = ("sh", "shell", "zsh", "py", "python3")
"""Other names of what could be run: refused, so that no block escapes by its name."""
_IGNORED = (
    ".git",
    ".venv",
    ".*_cache",
    "*.egg-info",
    "build",
    "dist",
    "runs",
    ".hypothesis",
    "node_modules",
)
_COMMENT = re.compile(r"<!--\s*(test-as|no-test|deadline):\s*(.*?)\s*-->")
_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,})(?P<info>[^`]*)$")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block that could be run; `line` is that of its opening fence."""

    line: int
    kind: str
    text: str
    test_as: str | None = None
    skipped_because: str | None = None
    deadline: float = DEADLINE


def guide() -> list[str]:
    """The pages of the site in the order in which they are read: what the first ones made is there for the others."""
    folder = ROOT / "launch" / "docs"
    pages = sorted(folder.rglob("*.md"), key=lambda path: (path.parent.name != "start", path))
    return [path.relative_to(ROOT).as_posix() for path in pages]


def blocks(document: str) -> list[Block]:
    """All executable blocks of `document`, in order; ValueError says what is wrong with one that cannot be judged."""
    found: list[Block] = []
    notes: dict[str, str] = {}
    lines = enumerate(document.splitlines(), start=1)
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            notes |= dict(_COMMENT.findall(line))
            if line.strip() and not line.strip().startswith("<!--"):
                notes = {}
            continue
        body: list[str] = []
        for _, inner in lines:
            if inner.strip().startswith(opening["fence"]) and not inner.strip().strip("`"):
                break
            body.append(inner.removeprefix(opening["indent"]))
        else:
            raise ValueError(f"line {number}: this block is never closed")
        kind, *options = opening["info"].split() or [""]
        if kind in DISGUISED:
            raise ValueError(f"line {number}: call the block bash or python instead of {kind}")
        if kind in EXECUTABLE:
            found.append(_block(number, kind, options, "\n".join(body) + "\n", notes))
        notes = {}
    return found


def _block(line: int, kind: str, options: list[str], text: str, notes: dict[str, str]) -> Block:
    if set(options) - {"no-test"}:
        raise ValueError(f"line {line}: unknown words after {kind}: {' '.join(options)}; only no-test is known")
    if ("no-test" in options) != bool(notes.get("no-test")):
        raise ValueError(f"line {line}: no-test stands both after {kind} and, with the reason, in a comment before it")
    deadline = float(notes.get("deadline", DEADLINE))
    return Block(line, kind, text, notes.get("test-as"), notes.get("no-test"), deadline)


def clone(folder: Path) -> None:
    """Makes `folder` a copy of the repository, without what is no part of it."""
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*_IGNORED))


def environment(home: Path, folder: Path) -> dict[str, str]:
    """What a reader's shell has set, in a copy of the repository."""
    path = os.pathsep.join([str(home), str(Path(sys.executable).parent), os.environ["PATH"]])
    ours = os.pathsep.join([str(folder), str(folder / "launch" / "face")])
    return {**os.environ, "HOME": str(home), "PATH": path, "PYTHONPATH": ours}
