"""A suite that costs too much is red, and a part of it says nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools import ROOT, SHORT

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pidfds are missing")
BURNS = """
import subprocess, sys, time

def test_one():
    subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 1.2: pass"], check=True)
"""


@pytest.mark.parametrize(
    ("most", "arguments", "code", "lines"),
    [
        (1e9, (), 0, 1),
        (11.0, ("-n", "1"), 1, 1),
        (0.0, ("test_one.py",), 0, 0),
        (0.0, ("-k", "one"), 0, 0),
    ],
)
def test_a_whole_run_beyond_its_processor_time_is_red(
    most: float, arguments: tuple[str, ...], code: int, lines: int, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers =\n    learning\n    slow\n    cluster\n")
    (tmp_path / "conftest.py").write_text(f"from tests import total\ntotal.MOST = {most}\ntotal.unit = lambda: 0.1\n")
    (tmp_path / "test_one.py").write_text(BURNS if most == 11.0 else "def test_one(): ...\n")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.total", "-m", SHORT, *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTEST_ADDOPTS", "ROOKERY_FORK")}
    environment["PYTHONPATH"] = str(ROOT)
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout
    assert len(re.findall("^processor time", ended.stdout, re.MULTILINE)) == lines
