"""Format, lint and types of all code, tests included."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.tools import ROOT, require

CODE = ("protocol", "workers", "launch", "tests")
LINTERS = {
    "ruff format": [sys.executable, "-m", "ruff", "format", "--check", *CODE],
    "ruff check": [sys.executable, "-m", "ruff", "check", "--output-format", "concise", *CODE],
    "mypy": [sys.executable, "-m", "tests.typed", *CODE],
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", sorted(LINTERS))
def test_code_passes(name: str) -> None:
    require(name.partition(" ")[0])
    result = subprocess.run(LINTERS[name], cwd=ROOT, capture_output=True, text=True, timeout=1800, check=False)
    if result.returncode:
        pytest.fail(f"{name}\n{result.stdout}{result.stderr}", pytrace=False)
