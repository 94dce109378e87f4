"""What a test needs from outside: tools on the PATH. Where ROOKERY_CI=1, a missing one fails instead of skipping."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

__all__ = ["ROOT", "require", "skip_or_fail"]

ROOT = Path(__file__).resolve().parent.parent
"""The top level of the repository."""


def skip_or_fail(reason: str) -> NoReturn:
    """Skips the test, or fails it where nothing may be missing (ROOKERY_CI=1)."""
    if os.environ.get("ROOKERY_CI") == "1":
        pytest.fail(f"{reason} (a skip is a failure with ROOKERY_CI=1)", pytrace=False)
    pytest.skip(reason)


def require(tool: str) -> str:
    """The path of an executable, looked for beside the interpreter first; skips or fails the test without it."""
    found = shutil.which(tool, path=str(Path(sys.executable).parent)) or shutil.which(tool)
    if found is None:
        skip_or_fail(f"{tool} is not installed")
    return found
