"""Format, lint and types of all code, tests included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tools import ROOT, require

CODE = ("protocol", "workers", "launch", "tests")


def passes(*command: str) -> None:
    """Fails with the tool's own words."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if result.returncode:
        pytest.fail(f"{' '.join(command)}\n{result.stdout}{result.stderr}", pytrace=False)


def test_code_is_formatted() -> None:
    passes(require("ruff"), "format", "--check", *CODE)


def test_code_passes_lint() -> None:
    passes(require("ruff"), "check", "--output-format", "concise", *CODE)


@pytest.mark.timeout(1800)
def test_code_passes_type_checks() -> None:
    require("mypy")
    passes(sys.executable, "-m", "mypy", "--no-error-summary", *CODE)
