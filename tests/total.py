"""What `make test` may cost: the processor time of all it runs, as a multiple of what an import of torch takes.

A ratio, since processors differ; what shares one with others takes longer, and so does the import, though not as much.
Who adds a test makes something else cheaper by as much, or raises `MOST` by what his work may add: 20 s of the clock.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.tools import SHORT

__all__ = ["MOST", "unit"]

MOST = 500.0
_BEFORE = pytest.StashKey[float]()
_SAID = pytest.StashKey[str]()
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


def pytest_sessionstart(session: pytest.Session) -> None:
    """Takes the measure, before anything runs."""
    if _is_whole(session.config):
        session.config.stash[_BEFORE] = unit()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Judges a green run, when its processes have ended."""
    config = session.config
    if exitstatus or _BEFORE not in config.stash:
        return
    spent, one = sum(os.times()[:4]), max(config.stash[_BEFORE], unit())
    config.stash[_SAID] = f"processor time {spent:.0f} s, {spent / one:.0f} imports of torch; {MOST:.0f} are allowed"
    if spent > MOST * one:
        config.stash[_SAID] += ": FAILED; make some test cheaper, or raise MOST in tests/total.py"
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line."""
    if said := config.stash.get(_SAID, ""):
        terminalreporter.write_line(said)
