"""What `make test` may cost: the processor time of all it runs, as a multiple of what an import of torch takes.

A ratio, since processors differ, and one that is shared takes longer for the same: the import is measured beside the
tests, again and again, so that both meet the same load.
Who adds a test makes something else cheaper by as much, or raises `MOST` by what his work may add: 20 s of the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from tests.tools import SHORT

__all__ = ["MOST", "Total", "unit"]

MOST = 525.0
_EVERY = 60.0
"""Seconds of the clock from one measure to the next."""
_PARTS = ("collectonly", "deselect", "ignore", "ignore_glob", "keyword", "lf", "passed", "seconds", "stepwise")
"""Options with which not everything is run."""


def unit() -> float:
    """Seconds of processor time that an import of torch takes now."""
    before = os.times()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def _is_whole(config: pytest.Config) -> bool:
    """Whether all is run that `make test` runs, and in the way that `MOST` was measured."""
    forks = hasattr(os, "pidfd_open") and os.environ.get("ROOKERY_FORK") != "0"
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS or config.option.markexpr != SHORT
    part = any(getattr(config.option, name, None) not in (None, False, "", []) for name in _PARTS)
    return forks and not named and not part and not hasattr(config, "workerinput")


class Total:
    """Judges a green run, when its processes have ended."""

    def __init__(self) -> None:
        self._units: list[float] = []
        self._due = 0.0
        self._said = ""

    def pytest_runtest_logreport(self) -> None:
        """Takes a measure where one is due; the processes of xdist test on meanwhile."""
        if time.monotonic() >= self._due:
            self._units.append(unit())
            self._due = time.monotonic() + _EVERY

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Red beyond what is allowed."""
        if exitstatus or not self._units:
            return
        spent, one = sum(os.times()[:4]) - sum(self._units), sum(self._units) / len(self._units)
        self._said = f"processor time {spent:.0f} s, {spent / one:.0f} imports of torch; {MOST:.0f} are allowed"
        if spent > MOST * one:
            self._said += ": FAILED; make some test cheaper, or raise MOST in tests/total.py"
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """One line."""
        if self._said:
            terminalreporter.write_line(self._said)


def pytest_configure(config: pytest.Config) -> None:
    """Only a whole run is judged."""
    if _is_whole(config):
        config.pluginmanager.register(Total(), "total")
