"""What `make test` may cost: the processor time of all it runs, as a multiple of what one import of torch takes here.

Processors differ and are shared, and both do alike to both. Who adds a test makes something else cheaper by as much, or
raises `MOST` by what he may add.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tools import SHORT

__all__ = ["MOST", "unit"]

MOST = 600.0
_SAID = pytest.StashKey[str]()


def unit() -> float:
    """Seconds of processor time that an import of torch takes, at its best."""
    return min(_import() for _ in range(3))


def _import() -> float:
    before = os.times()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Of a whole green run, when its processes have ended."""
    config = session.config
    whole = config.args_source is pytest.Config.ArgsSource.TESTPATHS and config.option.markexpr == SHORT
    if exitstatus or not whole or config.option.keyword or hasattr(config, "workerinput"):
        return
    spent, one = sum(os.times()[:4]), unit()
    config.stash[_SAID] = f"processor time {spent:.0f} s, {spent / one:.0f} imports of torch, {MOST:.0f} allowed"
    if spent > MOST * one:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line."""
    if said := config.stash.get(_SAID, ""):
        terminalreporter.write_line(said)
