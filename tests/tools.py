"""What a test needs from outside: tools on the PATH. Where ROOKERY_CI=1, a missing one fails instead of skipping."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from tests.skips import fault

__all__ = ["PYTHON_PATH", "ROOT", "SHORT", "build_site", "require", "skip_or_fail"]

ROOT = Path(__file__).resolve().parent.parent
"""The top level of the repository."""
PYTHON_PATH = os.pathsep.join([str(ROOT), str(ROOT / "launch" / "face")])
"""Where all of our packages are found, whatever is installed."""
SHORT = "not learning and not slow and not cluster"
"""The tests that `make test` runs, by their marks."""


def skip_or_fail(reason: str, detail: str = "") -> NoReturn:
    """Skips the test, or the module; fails it where tests.skips does not know the reason or it may not be."""
    said = f"{reason}: {detail}" if detail else reason
    wrong = fault(said)
    if wrong is not None:
        pytest.fail(wrong, pytrace=False)
    pytest.skip(said, allow_module_level=True)


def require(tool: str) -> str:
    """The path of an executable, looked for beside the interpreter first and where administrators' tools are last;
    skips or fails the test without it."""
    places = (str(Path(sys.executable).parent), None, "/usr/sbin")
    found = next((path for place in places if (path := shutil.which(tool, path=place)) is not None), None)
    if found is None:
        skip_or_fail(f"{tool} is not installed")
    return found


def build_site(folder: Path) -> None:
    """Builds the site of the documents as `make docs` does: without a warning, or the test fails."""
    if not all(map(importlib.util.find_spec, ("sphinx", "furo", "myst_parser"))):
        skip_or_fail("Sphinx is not installed")
    sphinx = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-c", "launch/docs/site", "launch/docs"]
    done = subprocess.run([*sphinx, folder], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
