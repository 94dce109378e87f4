"""Two options of pytest: `--passed FILE` goes on where an interrupted run ended; `--seconds N` begins no test after.

A night's tests take hours: what has passed is left out when they are started again, unless any code has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path

import pytest

from tests.tools import ROOT, skip_or_fail

__all__ = ["Passed", "state"]


class Passed:
    """The tests that passed with the code as it is; `path` has one a line, of older code too."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state()
        self._failed: set[str] = set()
        path.parent.mkdir(parents=True, exist_ok=True)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves them out."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        known = {row["test"] for row in map(_row, lines) if row.get("state") == self._state}
        if left_out := [item for item in items if item.nodeid in known]:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in known]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One more, once all of it is over; a skip is none."""
        if not report.passed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._path.open("a") as file:
                file.write(json.dumps({"state": self._state, "test": report.nodeid}) + "\n")


class Late:
    """From `end` on, tests are skipped."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    def pytest_runtest_setup(self) -> None:
        """Before anything of the test."""
        if time.monotonic() > self._end:
            skip_or_fail("not run for want of time")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Both."""
    parser.addoption("--passed", type=Path, metavar="FILE", help="leave out what FILE says has passed, and add to it")
    parser.addoption("--seconds", type=float, metavar="N", help="begin no test after N seconds")


def pytest_configure(config: pytest.Config) -> None:
    """What was asked for."""
    if config.option.passed and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Passed(config.option.passed))
    if config.option.seconds is not None:
        config.pluginmanager.register(Late(config.option.seconds))


def state(root: Path = ROOT) -> str:
    """Of all code and documents: a digest."""
    digest = hashlib.sha256((root / "pyproject.toml").read_bytes())
    for folder in ("launch", "protocol", "tests", "workers"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in (".py", ".yaml", ".md", ".json", ".js", ".html") and "node_modules" not in path.parts:
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _row(line: str) -> dict[str, str]:
    """Empty for a line that was cut off."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}
