"""Lint, types and the tests near to what changed, side by side: `make check`, for less than a minute of one's time.

Changed is what differs from the last commit, or, where nothing does, what that commit changed. Near are a changed test
file, the one in the same place of tests/, and those that import what changed; tests of whole runs come last.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tests.test_lint import LINTERS
from tests.tools import ROOT, SHORT

__all__ = ["changed", "main", "near"]

_IMPORT = re.compile(r"^\s*(?:from ([\w.]+) import \(?([\w, ]*)|import ([\w., ]+))", re.MULTILINE)
DOCUMENTS = ("tests/launch/test_documents.py", "tests/launch/test_site.py")
"""What looks at any document."""
_LAST = ("chaos", "clients", "flows", "k8s", "learning")


def changed(since: str, root: Path = ROOT) -> list[str]:
    """Paths that differ from the commit `since`, and new ones; empty `since`: the last commit, or what that changed."""

    def git(*arguments: str) -> list[str]:
        result = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
        if result.returncode:
            raise SystemExit(f"make check asks git what has changed, and it says: {result.stderr.strip()}")
        return result.stdout.splitlines()

    found = git("diff", "--name-only", since or "HEAD") + git("ls-files", "--others", "--exclude-standard")
    return sorted({*(found or git("diff", "--name-only", "HEAD~1"))})


def near(paths: Iterable[str], root: Path = ROOT) -> tuple[list[str], list[str]]:
    """The test files that are near to `paths`, nearest first, and those of `paths` that none is near to."""
    tests = sorted((root / "tests").rglob("test_*.py"))
    imports = {test.relative_to(root).as_posix(): _imported(test.read_text()) for test in tests}
    ranks: dict[str, tuple[bool, int]] = {}
    lonely = []
    for path in paths:
        place = PurePosixPath(path)
        module = ".".join(place.with_suffix("").parts).removesuffix(".__init__")
        mirror = (PurePosixPath("tests") / place).with_name(f"test_{place.name}").as_posix()
        wanted = {path, mirror, *(DOCUMENTS if place.suffix == ".md" else ())}
        found = {test: 0 if test in (path, mirror) else 1 for test in imports if test in wanted}
        if place.suffix == ".py":
            found = {test: 1 for test, names in imports.items() if module in names} | found
        lonely += [] if found else [path]
        for test, rank in found.items():
            order = (PurePosixPath(test).parts[1] in _LAST, rank)
            ranks[test] = min(order, ranks.get(test, order))
    return sorted(ranks, key=lambda test: (ranks[test], test)), lonely


def _imported(text: str) -> set[str]:
    """Modules, and what may be one."""
    found = set()
    for module, names, plain in _IMPORT.findall(text):
        found |= {module, *(f"{module}.{name.strip()}" for name in names.split(","))} if module else set()
        found |= {name.strip().partition(" ")[0] for name in plain.split(",")}
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="tests.check", description=__doc__)
    parser.add_argument("--since", default="", metavar="COMMIT", help="what has changed since then")
    parser.add_argument("--seconds", type=float, default=40.0, help="then no test is begun (default %(default)s)")
    asked = parser.parse_args(arguments)
    paths = changed(asked.since)
    files, lonely = near(path for path in paths if (ROOT / path).exists())
    for path in lonely:
        print(f"no test is near to {path}")  # noqa: T201
    linters = {
        name: subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for name, command in LINTERS.items()
    }
    failed = []
    if files:
        command = ["pytest", "-q", "-n", "logical", "--dist", "loadfile", "--no-loadscope-reorder"]
        command += ["-m", SHORT, "--seconds", str(asked.seconds), *files]
        if subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False).returncode not in (0, 5):
            failed.append("tests")
    for name, linter in linters.items():
        said, _ = linter.communicate()
        if linter.returncode:
            failed.append(name)
            print(f"{name}:\n{said}")  # noqa: T201
    print(f"{len(paths)} files changed, {len(files)} files of tests are near; found wrong: {failed or 'nothing'}")  # noqa: T201
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
