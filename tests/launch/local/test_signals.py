"""What is started by a sweep hears of its death as of a signal."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.tools import PYTHON_PATH
from tests.waiting import until

CHILD = """
import os, sys
from pathlib import Path
from launch.local.signals import Interrupt
with Interrupt() as interrupt:
    Path(sys.argv[1], "began").touch()
    while not interrupt.count:
        interrupt.sleep(0.01)
    Path(sys.argv[1], "ended").touch()
"""
PARENT = """
import os, subprocess, sys
environment = {**os.environ, "ROOKERY_PARENT": str(os.getpid())}
subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=environment)
"""


def test_who_is_started_by_a_process_that_is_killed_ends_in_order(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, CHILD, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": PYTHON_PATH}) as parent:
        until((tmp_path / "began").exists)
        assert not (tmp_path / "ended").exists()
        parent.kill()
    until((tmp_path / "ended").exists, what="the child has heard of it")
