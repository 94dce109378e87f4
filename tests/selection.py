"""Two options of pytest: `--passed FILE` goes on where an interrupted run ended; `--seconds N` begins no test after.

A night's tests take hours: what has passed is left out when they are started again, unless any code has changed.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.tools import ROOT

__all__ = ["Passed", "state"]


class Passed:
    """The tests that passed with the code as it is; `path` has one a line, of older code too."""

    def __init__(self, path: Path) -> None:
        self._path, self._state = path, state()
        self._failed: set[str] = set()
        self._left_out = 0
        path.parent.mkdir(parents=True, exist_ok=True)

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves them out."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        known = {row["test"] for row in map(_row, lines) if row.get("state") == self._state}
        if left_out := [item for item in items if item.nodeid in known]:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid not in known]
        self._left_out = len(left_out)

    def pytest_report_collectionfinish(self) -> str:
        """How many that are."""
        return f"left out, since they have passed: {self._left_out} (all run without {self._path})"

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Nothing is left to be run where all has passed."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._left_out:
            session.exitstatus = pytest.ExitCode.OK

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One more, once all of it is over; a skip is none."""
        if not report.passed:
            self._failed.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid not in self._failed:
            with self._path.open("a") as file:
                file.write("\n" + json.dumps({"state": self._state, "test": report.nodeid}))  # after one cut off


class Late:
    """From `seconds` on no test is begun; what is left is named at the end."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds
        self._left: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        """Nothing at all is done for a test that would be late."""
        if time.monotonic() < self._end:
            return None
        self._left[item.nodeid.partition("::")[0]] += 1
        return True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What a process of pytest-xdist has left."""
        self._left.update(getattr(node, "workeroutput", {}).get("late", {}))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """For the process that started this one."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["late"] = dict(self._left)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line; `make test` leaves out none."""
        if self._left:
            files = ", ".join(f"{file} ({count})" for file, count in sorted(self._left.items()))
            terminalreporter.write_line(f"not run for want of time, and run by make test: {files}")


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
    """Of all code and documents, whatever their languages: a digest."""
    digest = hashlib.sha256((root / "pyproject.toml").read_bytes())
    for folder in ("k8s", "launch", "protocol", "tests", "workers"):
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and {"__pycache__", "node_modules"}.isdisjoint(path.parts):
                digest.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _row(line: str) -> dict[str, str]:
    """Empty for a line that was cut off."""
    try:
        return dict(json.loads(line))
    except ValueError:
        return {}
